"""What tests of faults share: folders that they may spoil, processes that die, and what their runs leave.

They import `small_sets`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.runs.checkpoints import Checkpoints
from xmclab.runs.run import run
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor

sys.path.append(str(Path(__file__).parent))

QUIET = Console(quiet=True)
SECONDS = 120  # that a child may take


@dataclass(frozen=True)
class Numbers:
    """The numbers of a run that a fault must not change."""

    losses: list[tuple[int, float, float]]  # (step, loss, gradient norm), as recorded
    terms: list[dict[str, float]]
    measured: list[Any]  # (epoch, split, metrics) of evaluations
    result: Any
    weights: bytes


def numbers(folder: Path) -> Numbers:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["event"] == "step"]
    evaluations = [record for record in records if record["event"] == "eval"]
    result = json.loads((folder / "result.json").read_text())
    return Numbers(
        [(step["step"], step["loss"], step["gradient_norm"]) for step in steps],
        [step["terms"] for step in steps],
        [(record["epoch"], record["split"], record["metrics"]) for record in evaluations],
        [result["metrics"], result["baselines"], result.get("validation")],
        (folder / "model.safetensors").read_bytes(),
    )


def in_child(work: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> int:
    """Do the work in a forked process, and something else meanwhile; its exit code, negative for a signal."""

    def body() -> None:
        os._exit(0 if work() is not False else 1)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    try:
        meanwhile()
    except BaseException:
        process.kill()
        raise
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the child hangs")
    assert process.exitcode is not None
    return process.exitcode


def signalled(number: int, function: Callable[..., Any], call: int) -> Callable[..., Any]:
    """The function, sending its process a signal before this call of it, counted from 1."""
    calls = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    return counted


def signal_at(owner: Any, name: str, call: int, number: int = signal.SIGKILL) -> Callable[[], None]:
    """Arrange for a signal at this call of a function; for use in a child."""

    def arrange() -> None:
        setattr(owner, name, signalled(number, getattr(owner, name), call))

    return arrange


@pytest.fixture(name="signal_at")
def signal_at_fixture() -> Callable[..., Callable[[], None]]:
    return signal_at


@pytest.fixture(name="signalled")
def signalled_fixture() -> Callable[..., Callable[..., Any]]:
    return signalled


@pytest.fixture(name="in_child")
def in_child_fixture() -> Callable[..., int]:
    return in_child


@contextlib.contextmanager
def waiting_for_checkpoints() -> Iterator[None]:
    """Let training wait until a checkpoint is written, so that tests know where it is."""
    save = Checkpoints.save

    def save_and_wait(self: Checkpoints, held: Any) -> None:
        save(self, held)
        self._join()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_wait)
        yield


@pytest.fixture(name="waiting_for_checkpoints")
def waiting_for_checkpoints_fixture() -> Iterator[None]:
    with waiting_for_checkpoints():
        yield


@dataclass(frozen=True)
class Mortal:
    """A run in a folder that is killed, and resumed."""

    config: Config
    folder: Path
    quiet: Console = QUIET

    def dies(self, arrange: Callable[[], None]) -> None:
        """Run until killed."""

        def work() -> None:
            arrange()
            with waiting_for_checkpoints():
                run(self.config, self.folder, QUIET, resume=True)

        assert in_child(work) == -signal.SIGKILL, "it was not killed"

    def ends(self) -> Numbers:
        """Run to the end, in this process."""
        run(self.config, self.folder, QUIET, resume=True)
        return numbers(self.folder)

    @property
    def resumed(self) -> list[int]:
        """The steps from which it was resumed."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [record["step"] for line in lines if (record := json.loads(line))["event"] == "resume"]


@pytest.fixture
def mortal(tmp_path: Path, small_config: Callable[..., Config]) -> Callable[[Sequence[str]], Mortal]:
    """Overrides to a run that has not begun."""
    return lambda overrides: Mortal(small_config(*overrides), tmp_path / "run")


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, small_config: Callable[..., Config]
) -> Callable[[Sequence[str]], Numbers]:
    """The numbers of a run without checkpoints that nothing happened to."""
    known: dict[tuple[str, ...], Numbers] = {}

    def made(overrides: Sequence[str]) -> Numbers:
        key = tuple(overrides)
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            run(small_config(*key, "checkpoint.every=0"), folder, QUIET)
            assert not (folder / "checkpoints").exists()
            known[key] = numbers(folder)
        return known[key]

    return made


@pytest.fixture
def exported(small_run: Path, tmp_path: Path) -> Path:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    return tmp_path / "export"


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    """Without the manifest, whose checksums would otherwise be all that is tested."""
    shutil.copytree(small_run, tmp_path / "copy", ignore=shutil.ignore_patterns("manifest.json"))
    return tmp_path / "copy"
