"""Numbers that are not finite: the step is not taken, its culprit is named, and it can be repeated.

35  a loss plugin that returns NaN: exit 5 before the update, its name, and the weights of the step before
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from xmclab.errors import DivergedError, Problem
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs import checkpoints, store
from xmclab.runs.replay import replay
from xmclab.runs.run import run
from xmclab.training.trainer import Trainer

Call = Callable[..., tuple[int, str, str]]
QUIET = Console(quiet=True)
SMALL = [
    "recipe=none",
    "data=tiny",
    "encoder=bag",
    "encoder.dim=16",
    "head.de.dim=16",
    "head.clf.dim=16",
    "sampler.batch_size=256",
]
SMALL += ["epochs=2", "baseline=none"]
FAULTY = """
import torch
from dataclasses import dataclass
from xmclab import hookimpl, part
from xmclab.api import MultiClassLoss


@dataclass
class Faulty(MultiClassLoss):
    wrong: str = "value"
    step: int = 7
    calls = 0

    def terms(self, s_QP, y_QP):
        Faulty.calls += 1
        l_QP = torch.nn.functional.softplus(-s_QP)
        if Faulty.calls <= 2 * self.step:  # in both directions
            return l_QP
        return l_QP * torch.nan if self.wrong == "value" else l_QP + (s_QP - s_QP.detach()).abs().sqrt()


@hookimpl
def xmclab_parts():
    return [part("loss", "faulty", Faulty)]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "faulty_loss.py"
    file.write_text(FAULTY)
    return file


# 35


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        ("value", "q2l is nan, l2q is nan, for scores from "),
        ("gradient", "its gradient is not finite, for scores from "),
    ],
)
def test_a_faulty_loss_stops_the_run_before_the_update_and_is_named(
    call: Call, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, finding: str
) -> None:
    states: dict[int, dict[str, torch.Tensor]] = {}
    step = Trainer.launch

    def watched(self: Trainer, number: int, prepared: Any) -> Any:
        self.model.settle()
        states[number] = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return step(self, number, prepared)

    monkeypatch.setattr(Trainer, "launch", watched)
    out = tmp_path / "run"
    code, stdout, err = call(
        "run", *SMALL, f"plugin={plugin}", "loss.de=ds", f"loss.clf=ds+faulty(wrong='{wrong}')", "--out", out
    )
    assert (code, stdout) == (5, "")
    assert "Traceback" not in err
    assert f"error: step 7: loss.clf term faulty (faulty_loss (plugin {plugin})): {finding}" in err
    assert f"(repeat the step with: xmclab replay {out} plugin={plugin})" in err
    record = json.loads((out / "failure" / "step.json").read_text())
    assert record["step"] == 7
    assert record["rows"]
    assert record["labels"]
    assert record["scores"].keys() == {"de", "clf"}
    [culprit] = record["culprits"]
    assert finding in culprit
    saved = load_file(out / "model.safetensors")
    assert saved.keys() == states[7].keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, states[7][name]), name
        assert tensor.isfinite().all()
    found = checkpoints.newest(out)
    assert found
    assert found.at.step == 7
    code, stdout, _ = call("predict", out, "--text", "plot functions", f"--plugin={plugin}", "--json")
    assert code == 0


def test_the_step_can_be_repeated(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Config]
) -> None:
    """Weights that were broken before it are the culprit, and the replay finds the same; nothing is written."""
    prepare, step = Trainer.prepare, Trainer.launch
    out = tmp_path / "run"

    def breaking(self: Trainer, number: int, prepared: Any) -> Any:
        if number == 3:
            self.model.head("de").get_parameter("g1.0.bias").data[0] = torch.nan
        return step(self, number, prepared)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "launch", breaking)
        with pytest.raises(
            DivergedError, match=r"head\.de=dual_encoder \(xmclab .*: the weights heads\.de\.g1\.0\.bias"
        ):
            run(small_config(), out, QUIET)
    record = json.loads((out / "failure" / "step.json").read_text())
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    found = replay(out, resolve([f"recipe={out / 'config.yaml'}"], default_registry()))
    assert found.step == 3
    assert found.record["rows"] == record["rows"]
    assert found.record["labels"] == record["labels"]
    assert found.record["culprits"] == record["culprits"]
    code, stdout, err = call("replay", out)
    assert code == 5
    assert stdout.startswith("step 3\n")
    assert "the weights heads.de.g1.0.bias are not finite" in err
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before
    assert Trainer.prepare is prepare


def test_a_sound_step_can_be_repeated_too(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Config]
) -> None:
    """With the numbers that it had."""
    step = Trainer.launch

    def fails(self: Trainer, number: int, prepared: Any) -> Any:
        if number == 5:
            raise ZeroDivisionError
        return step(self, number, prepared)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "launch", fails)
        with pytest.raises(ZeroDivisionError):
            run(small_config("checkpoint.every=3"), tmp_path / "run", QUIET)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    [fourth] = [record for record in records if record.get("step") == 3]
    code, out, _ = call("replay", tmp_path / "run", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["step"] == 3
    assert document["record"]["loss"] == fourth["loss"]
    assert document["record"]["terms"] == fourth["terms"]
    low, high = document["scores"]["de"]
    assert -1.01 <= low < high <= 1.01


@pytest.mark.parametrize(
    ("overrides", "first", "epoch"),
    [
        ([], 5, 0),
        (["sampler=cluster", "miner=ann", "refresh_every=1"], 5, 0),
        (["sampler=cluster", "miner=ann", "refresh_steps=3"], 6, 1),
    ],
    ids=["plain", "mined", "mined within an epoch"],
)
def test_the_first_step_of_an_epoch_or_after_a_refresh_can_be_repeated(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_config: Callable[..., Config],
    overrides: list[str],
    first: int,
    epoch: int,
) -> None:
    """Its checkpoint comes before the refresh, which may be due in between."""
    step = Trainer.launch

    def fails(self: Trainer, number: int, prepared: Any) -> Any:
        if number == first:
            raise DivergedError(Problem(f"step {number}", "loss not finite"))
        return step(self, number, prepared)

    config = small_config(*overrides)
    run(config, tmp_path / "undisturbed", QUIET)
    records = [json.loads(line) for line in (tmp_path / "undisturbed" / "metrics.jsonl").read_text().splitlines()]
    [expected] = [record for record in records if record["event"] == "step" and record["step"] == first]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "launch", fails)
        with pytest.raises(DivergedError):
            run(config, tmp_path / "run", QUIET)
    found = checkpoints.newest(tmp_path / "run")
    assert found
    assert (found.at.epoch, found.at.step) == (epoch, first)
    code, out, err = call("replay", tmp_path / "run", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["step"] == first
    assert document["record"]["loss"] == expected["loss"]
    assert document["record"]["terms"] == expected["terms"]


def test_after_the_last_step_there_is_nothing_to_repeat(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Config]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "save_model", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(small_config("checkpoint.every=5"), tmp_path / "run", QUIET)
    code, out, err = call("replay", tmp_path / "run")
    assert (code, out) == (7, "")
    assert "its newest checkpoint is that of its last step: none follows" in err


def test_without_a_checkpoint_there_is_nothing_to_repeat(call: Call, small_run: Path) -> None:
    code, out, err = call("replay", small_run)
    assert (code, out) == (7, "")
    assert "the run has no checkpoint" in err


@pytest.mark.parametrize("clip", ["0", "1"])
def test_a_streamed_table_is_not_touched_by_a_step_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_config: Callable[..., Config], clip: str
) -> None:
    """Though its updates may come before the gradient of the encoder is known."""
    made: list[Trainer] = []
    step = Trainer.launch
    states: list[torch.Tensor] = []

    def breaking(self: Trainer, number: int, prepared: Any) -> Any:
        made.append(self)
        if number == 4:
            self.model.settle()
            states.append(self.model.head("clf").get_parameter("psi.weight").clone())
            self.model.head("de").get_parameter("g1.0.weight").data[0] = torch.nan
        return step(self, number, prepared)

    monkeypatch.setattr(Trainer, "launch", breaking)
    config = small_config("reduction.clf=pal_n", "loss.clf=ds", f"optim.clip={clip}")
    with pytest.raises(DivergedError):
        run(config, tmp_path / "run", QUIET)
    assert torch.equal(made[-1].model.head("clf").get_parameter("psi.weight"), states[0])
