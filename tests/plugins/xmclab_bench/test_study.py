"""Studies: interrupted, continued, shared, failing in part. Trials are planted."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from planted import Quality, planted

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.options import log
from xmclab_bench import runner
from xmclab_bench.space import Axis
from xmclab_bench.study import JOURNAL, REASON, Question, Runner, best_of, drawn_by, ended, open_study

AXES = [Axis("encoder.lr", log(1e-3, 1e-1))]
BASE = ("recipe=unidec", "data=tiny", "epochs=4", "validate.share=0.2")


def question(**changed: Any) -> Question:
    return Question(**{"name": "row", "base": BASE, "axes": AXES, "metric": "P@1", **changed})


def near(rate: float) -> Quality:
    """Best at this learning rate, 5 less for every factor of e away from it."""
    return lambda config: 40 - 5 * abs(math.log(config["encoder"]["lr"] / rate))


def rates(study: optuna.Study) -> list[str]:
    return [drawn_by(trial, AXES)["encoder.lr"] for trial in ended(study)]


def search(
    folder: Path, monkeypatch: pytest.MonkeyPatch, quality: Quality, trials: int, at_once: int = 1, **options: Any
) -> tuple[optuna.Study, list[str]]:
    """A study in a folder, and the lines that it told."""
    monkeypatch.setattr(runner, "processes", planted(quality, epochs=options.pop("validates", False)))
    told: list[str] = []
    asked = question(**options)
    study = open_study(folder / JOURNAL, asked)
    Runner(default_registry(), folder / "cells", at_once, told.append).run(study, asked, trials)
    return study, told


def test_the_best_trial_is_that_of_the_highest_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, told = search(tmp_path, monkeypatch, near(0.01), 6)
    best = best_of(study)
    assert best is not None
    expected = min(rates(study), key=lambda rate: abs(math.log(float(rate) / 0.01)))
    assert drawn_by(best, AXES) == {"encoder.lr": expected}
    assert len(told) == 6
    assert f"best {best.value:.2f}" in told[-1]


def test_what_a_random_trial_draws_depends_on_its_number_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, _ = search(tmp_path / "a", monkeypatch, near(0.01), 6)
    together, _ = search(tmp_path / "b", monkeypatch, near(0.01), 6, at_once=3)
    first = rates(search(tmp_path / "c", monkeypatch, near(0.01), 2)[0])
    continued, _ = search(tmp_path / "c", monkeypatch, near(0.01), 6)
    assert len(set(rates(alone))) == 6
    assert sorted(rates(alone)) == sorted(rates(together)) == sorted(rates(continued))
    assert first == rates(alone)[:2]
    assert rates(alone) != rates(search(tmp_path / "d", monkeypatch, near(0.01), 6, seed=1)[0])


def test_a_failing_trial_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quality(config: dict[str, Any]) -> float:
        if config["encoder"]["lr"] > 0.01:
            raise RuntimeError("the loss is not finite")
        return 30.0

    study, told = search(tmp_path, monkeypatch, quality, 8)
    states = {trial.state for trial in ended(study)}
    assert states == {TrialState.FAIL, TrialState.COMPLETE}
    assert len(ended(study)) == 8
    reasons = {trial.user_attrs[REASON] for trial in ended(study) if trial.state == TrialState.FAIL}
    assert reasons == {"the loss is not finite"}
    assert any("failed: the loss is not finite" in line for line in told)


def test_a_combination_that_no_config_allows_is_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, _ = search(tmp_path, monkeypatch, near(0.01), 3, base=(*BASE, "loss.clf=ds", "reduction.clf=ova"))
    assert [trial.state for trial in ended(study)] == [TrialState.FAIL] * 3


def test_an_interrupted_trial_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, _ = search(tmp_path / "a", monkeypatch, near(0.01), 5)
    count = 0

    def quality(config: dict[str, Any]) -> float:
        nonlocal count
        count += 1
        if count == 3:
            raise InterruptedError
        return near(0.01)(config)

    study, _ = search(tmp_path / "b", monkeypatch, quality, 5)
    assert len(ended(study)) == 2  # the others are not begun
    study, told = search(tmp_path / "b", monkeypatch, near(0.01), 5)
    assert told[0] == "row: 2 of 5 trials are done"
    assert rates(study) == rates(undisturbed)


SCRIPT = """
import sys
from pathlib import Path
from xmclab_bench import runner
import planted, test_study
quality = planted.exits_in({dies}) if {dies} else test_study.near(0.01)
runner.processes = planted.planted(quality, seconds={seconds})
asked, folder = test_study.question(), Path(sys.argv[1])
study = test_study.open_study(folder / test_study.JOURNAL, asked)
test_study.Runner(test_study.default_registry(), folder / "cells", 1, print).run(study, asked, {trials})
"""


def start(folder: Path, trials: int, dies: int = 0, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    """A process of its own that works on the study of a folder."""
    script = SCRIPT.format(dies=dies, trials=trials, seconds=seconds)
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL)


def test_an_interruption_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def quality(config: dict[str, Any]) -> float:
        raise KeyboardInterrupt

    told: list[str] = []
    monkeypatch.setattr(runner, "processes", planted(quality))
    study = open_study(tmp_path / JOURNAL, question())
    with pytest.raises(KeyboardInterrupt):
        Runner(default_registry(), tmp_path / "cells", 1, told.append).run(study, question(), 5)
    assert told == ["row: interrupted after 0 of 5 trials; the same command continues"]


def test_a_killed_study_is_continued_with_the_same_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, _ = search(tmp_path / "a", monkeypatch, near(0.01), 5)
    assert start(tmp_path / "b", trials=5, dies=2).wait(timeout=120) == 9
    left = open_study(tmp_path / "b" / JOURNAL, question())
    assert len(ended(left)) == 2
    study, _ = search(tmp_path / "b", monkeypatch, near(0.01), 5)
    assert sorted(rates(study)) == sorted(rates(undisturbed))
    assert {trial.state for trial in ended(study)} == {TrialState.COMPLETE}


def test_two_processes_share_a_journal(tmp_path: Path) -> None:
    both = [start(tmp_path, trials=8, seconds=0.5) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    study = open_study(tmp_path / JOURNAL, question())
    assert len(ended(study)) in (8, 9)  # each begins one at a time
    assert len(set(rates(study))) == len(ended(study))
    workers = {trial.user_attrs["process"] for trial in ended(study)}
    assert len(workers) == 2


def test_another_question_is_refused(tmp_path: Path) -> None:
    open_study(tmp_path / JOURNAL, question())
    with pytest.raises(ConfigError, match=r"other settings: nothing then, pool.eta=0 now"):
        open_study(tmp_path / JOURNAL, question(base=(*BASE, "pool.eta=0")))
    with pytest.raises(ConfigError, match=r"encoder.lr: log\(0.001, 0.1\) then, encoder.lr: log\(0.001, 0.01\) now"):
        open_study(tmp_path / JOURNAL, question(axes=[Axis("encoder.lr", log(1e-3, 1e-2))]))


def test_a_guided_study_prunes_what_falls_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"method": "guided", "validates": True}
    study, told = search(tmp_path, monkeypatch, near(0.01), 16, **asked)
    pruned = [trial for trial in ended(study) if trial.state == TrialState.PRUNED]
    assert pruned
    assert all(trial.last_step < 4 for trial in pruned if trial.last_step is not None)
    assert any("pruned after epoch" in line for line in told)
    best = best_of(study)
    assert best is not None
    random, _ = search(tmp_path / "random", monkeypatch, near(0.01), 16)
    assert all(trial.state == TrialState.COMPLETE for trial in ended(random))


def test_a_guided_study_learns_from_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, _ = search(tmp_path, monkeypatch, near(0.01), 30, method="guided")
    far = [abs(math.log(float(rate) / 0.01)) for rate in rates(study)]
    assert sum(far[-15:]) / 15 < 0.7 * math.log(10) / 2  # the mean of random ones, up to a factor of 10 off


def test_trials_end_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "processes", planted(near(0.01)))
    study = open_study(tmp_path / JOURNAL, question())
    Runner(default_registry(), tmp_path / "cells", 1, lambda _: None).run(study, question(), 5, deadline=0.0)
    assert ended(study) == []


def test_equal_trials_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(tmp_path, monkeypatch, near(0.01), 3)

    def refuse(config: dict[str, Any]) -> float:
        raise AssertionError("trained again")

    (tmp_path / JOURNAL).unlink()
    study, _ = search(tmp_path, monkeypatch, refuse, 3)
    assert [trial.state for trial in ended(study)] == [TrialState.COMPLETE] * 3
