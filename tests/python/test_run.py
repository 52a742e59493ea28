"""Training from Python: the run of the command, also with data and parts that are in memory."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

import xmclab as xl
from xmclab.api import MultiClassLoss
from xmclab.cli.keys import with_recipe
from xmclab.errors import ConfigError, DataError, PluginError, Stopped
from xmclab.host import default_registry, resolve
from xmclab.runs import store

Rows = list[tuple[str, list[str]]]
Class = type[Any]
SMALL: dict[str, Any] = {
    "encoder.dim": 16,
    "head.de.dim": 16,
    "head.clf.dim": 16,
    "sampler.batch_size": 8,
    "epochs": 2,
    "baseline": None,
    "device": "cpu",
    "quiet": True,
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass
class Stopping(MultiClassLoss):
    """Asks for the end in a step, as Ctrl-C does; or fails."""

    step: ClassVar[int] = 0
    at: ClassVar[int] = -1
    fails: ClassVar[bool] = False

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        Stopping.step += 1
        if Stopping.step == Stopping.at:
            if Stopping.fails:
                raise RuntimeError("boom")
            os.kill(os.getpid(), signal.SIGINT)
        return -s_QP.log_softmax(dim=1)


def test_a_run_is_that_of_the_command(call: Callable[..., Any]) -> None:
    words = ("recipe=unidec", "data=tiny", "sampler.batch_size=512", "epochs=1", "baseline=none", "encoder.dim=16")
    code, out, _ = call("run", *words, "head.de.dim=16", "head.clf.dim=16", "--out", "theirs", "--json")
    ours = xl.train("unidec", "tiny", "epochs=1", out="ours", **{**SMALL, "sampler.batch_size": 512})
    assert code == 0
    assert ours.metrics == json.loads(out)["metrics"]
    theirs, mine = (resolve([f"recipe={name}/config.yaml"], ours.registry).to_dict() for name in ("theirs", "ours"))
    assert {key for key in theirs if theirs[key] != mine[key]} == {"device"}


def test_the_recipe_of_a_call_without_one_is_that_of_the_command() -> None:
    words, _ = with_recipe([], default_registry())
    assert words == [f"recipe={inspect.signature(xl.train).parameters['recipe'].default}"]


def test_a_run_shows_what_it_found(rows: Rows) -> None:
    run = xl.train("unidec", xl.read(rows, test=rows[:5]), **SMALL)
    assert run.folder.parent == Path("runs")
    assert run.folder.name.startswith("unidec-memory-")
    assert run.document["metrics"] == run.metrics
    steps = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run.curves.loss == [record["loss"] for record in steps if record["event"] == "step"]
    assert len(run.curves.steps) == len(run.curves.loss) == len(run.curves.terms["de/ds/q2l"]) > 2
    assert run.curves.evaluations[-1].metrics == run.metrics
    shown = run._repr_html_()
    assert f"{run.metrics['de']['P@1']:.2f}" in shown
    assert "<svg" in shown
    assert str(run).startswith("unidec on memory (test: 5 queries, 9 labels)")
    search = [*run.metrics][-1]
    assert repr(run) == f"Run({run.folder}: unidec on memory, P@1 {run.metrics[search]['P@1']:.2f} by {search})"
    assert run.predict("red car", k=2)[0] == run.model.predict("red car", k=2)[0]
    assert run.rank(["red car"], k=2).ids_NK.shape == (1, 2)


def test_data_from_memory_is_kept_in_the_run_folder(rows: Rows, call: Callable[..., Any]) -> None:
    data = xl.read(rows, test=rows[:5], name="mine")
    run = xl.train("unidec", data, out="run", **SMALL)
    kept = run.folder.resolve() / "data" / "mine"
    assert (kept / "train.jsonl").read_bytes() == (data.tables / "train.jsonl").read_bytes()  # type: ignore[operator]
    assert run.document["config"]["data"]["source"] == str(kept)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["data"] == {"name": "mine", "sha256": data.dataset.fingerprint}
    shutil.rmtree(data.tables)  # type: ignore[arg-type]  # as when the process ends
    code, out, _ = call("eval", "run", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["de"] == pytest.approx(run.metrics["de"])


def test_a_run_that_cannot_begin_leaves_nothing(rows: Rows) -> None:
    with pytest.raises(ConfigError, match="start=nowhere"):
        xl.train("unidec", rows, out="run", start="nowhere", **SMALL)
    with pytest.raises(ConfigError, match=r"validate\.search|validate"):
        xl.train("unidec", rows, "validate.share=0.5", "validate.search=nope", out="run", **SMALL)
    assert not Path("run").exists()


def test_all_errors_of_the_command_are_raised_with_its_text(call: Callable[..., Any]) -> None:
    words = ["recipe=unidecc", "loss.clf=ds+bcee", "pool.beta=x"]
    code, _, err = call("run", *words)
    with pytest.raises(ConfigError) as caught:
        xl.train("unidecc", None, **{"loss.clf": "ds+bcee", "pool.beta": "x"})
    assert code == caught.value.exit_code
    assert [f"error: {problem}" for problem in caught.value.problems] == err.splitlines()


def test_a_loss_of_a_notebook_trains(rows: Rows, margin_loss: Class) -> None:
    run = xl.train("unidec", rows, out="run", **{**SMALL, "loss.clf": margin_loss(margin=0.3)})
    assert "clf/pairwise_margin/q2l" in run.curves.terms
    assert run.document["config"]["loss"]["clf"]["pairwise_margin"] == {"margin": 0.3}
    first = (run.folder / "config.yaml").read_text().splitlines()[0]
    name = f"{margin_loss.__module__}.PairwiseMargin"
    assert first == f"# made with classes given from Python: loss pairwise_margin ({name})"
    assert xl.load(run.folder).predict("red car") == run.predict("red car"), "predicting needs no loss"


def test_what_the_command_line_cannot_know_it_names(rows: Rows, margin_loss: Class, call: Callable[..., Any]) -> None:
    xl.train("unidec", rows, out="run", loss=margin_loss, **SMALL)
    code, _, err = call("run", "--resume", "run")
    assert code == 2
    assert "made with classes given from Python: loss pairwise_margin" in err
    assert "give the classes again, from Python: parts=[CLASS]" in err
    assert err.count("error:") == 1, "nothing of what follows from that"
    with pytest.raises(ConfigError, match="give the classes again"):
        xl.resume("run")
    ended = xl.resume("run", parts=[margin_loss], quiet=True)
    assert ended.document == json.loads(Path("run/result.json").read_text())


@pytest.fixture
def stopping() -> Any:
    Stopping.step, Stopping.fails = 0, False
    yield Stopping
    Stopping.at = -1


@pytest.mark.parametrize("how", ["resume", "train"])
def test_a_run_with_rows_and_classes_of_its_own_can_be_continued(rows: Rows, stopping: Class, how: str) -> None:
    whole = xl.train("unidec", rows, out="whole", loss=Stopping, **SMALL)
    stopping.step, stopping.at = 0, 4
    with pytest.raises(Stopped, match=r"resume with: xmclab.resume\('run', parts=\[Stopping\]\)"):
        xl.train("unidec", rows, out="run", loss=Stopping, **SMALL)
    assert not Path("run/result.json").exists()
    if how == "resume":
        run = xl.resume("run", parts=[Stopping], quiet=True)
    else:
        run = xl.train("unidec", rows, out="run", resume=True, loss=Stopping, **SMALL)
    assert run.metrics == whole.metrics
    assert run.curves.loss == whole.curves.loss
    assert run.document["config"]["data"]["source"] == str(Path("run").resolve() / "data" / "memory")


def test_other_rows_do_not_continue_a_run(rows: Rows, stopping: Class) -> None:
    stopping.at = 4
    with pytest.raises(Stopped):
        xl.train("unidec", rows, out="run", loss=Stopping, **SMALL)
    with pytest.raises(DataError, match="run: the rows are not those that the run began with"):
        xl.train("unidec", rows[:-1], out="run", resume=True, loss=Stopping, **SMALL)
    step = xl.replay("run", parts=[Stopping])
    assert step.record["loss"] > 0


def test_a_class_that_fails_is_named(rows: Rows, stopping: Class) -> None:
    stopping.at, stopping.fails = 2, True
    with pytest.raises(PluginError, match=r"class .*Stopping: loss 'stopping': RuntimeError: boom") as caught:
        xl.train("unidec", rows, loss=Stopping, **SMALL)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_quiet_is_quiet_and_otherwise_the_progress_is_shown(rows: Rows, capfd: pytest.CaptureFixture[str]) -> None:
    run = xl.train(data=rows, **SMALL)
    assert capfd.readouterr() == ("", "")
    assert run.document["recipe"] == "unidec", "as the command does without a recipe"
    xl.train("unidec", rows, **{**SMALL, "quiet": False})
    out, err = capfd.readouterr()
    assert out == ""
    assert "training queries" in err


def test_a_command_for_a_run_of_files_is_a_command(tmp_path: Path) -> None:
    config = resolve(["recipe=unidec", "data=tiny"], default_registry())
    assert store.command("run --resume", tmp_path, config) == f"xmclab run --resume {tmp_path}"


def test_the_functions_are_found_without_importing_torch() -> None:
    code = (
        "import sys, xmclab\n"
        "names = {'read', 'train', 'load', 'evaluate', 'compare', 'resume', 'api'}\n"
        "assert names - {'api'} <= set(xmclab.__all__) and names <= set(dir(xmclab))\n"
        "assert all(f'\\n{name} ' in xmclab.__doc__ for name in names)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
