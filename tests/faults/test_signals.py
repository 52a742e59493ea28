"""Signals: the run finishes its step, saves, says how to resume, and ends with the code of the signal.

3  SIGTERM and SIGHUP between steps, in a refresh, in an evaluation; a second one while it saves; SIGUSR1
4  Ctrl-C: the same with exit 130; one line and no traceback anywhere, handlers restored
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from xmclab.data import tokens
from xmclab.errors import Stopped
from xmclab.model.encoders.bag import Bag
from xmclab.runs import checkpoints, shards
from xmclab.runs.measure import Queries
from xmclab.runs.run import run
from xmclab.serve.predictor import Predictor
from xmclab.system.signals import Signals
from xmclab.training.trainer import Trainer

Make = Callable[[Sequence[str]], Any]
MINED = ["epochs=4", "sampler=cluster", "miner=ann", "refresh_every=1", "evaluate.every=2", "optim.decay=0.1"]


@pytest.fixture
def stopped(signalled: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stopped]:
    """What a run raises that gets a signal at some call of a function."""

    def stop(victim: Any, owner: Any, name: str, call: int, number: int) -> Stopped:
        before = signal.getsignal(number)
        with monkeypatch.context() as local, Signals() as signals:
            local.setattr(owner, name, signalled(number, getattr(owner, name), call))
            with pytest.raises(Stopped) as caught:
                run(victim.config, victim.folder, victim.quiet, resume=True, signals=signals)
        assert signal.getsignal(number) is before
        return caught.value

    return stop


# 3


@pytest.mark.parametrize(
    ("number", "owner", "name", "call", "saved"),
    [
        (signal.SIGTERM, Trainer, "launch", 3, 3),
        (signal.SIGINT, Trainer, "launch", 3, 3),
        (signal.SIGHUP, Trainer, "launch", 3, 3),
        (signal.SIGTERM, Trainer, "launch", 5, 5),
        (signal.SIGTERM, Trainer, "see", 2, 10),
        (signal.SIGTERM, Queries, "_rank", 1, 10),
        (signal.SIGTERM, Queries, "_rank", 2, 20),
    ],
    ids=[
        *("in a step", "Ctrl-C", "the terminal closes", "at the end of an epoch"),
        *("in the refresh after two epochs", "in an evaluation", "in the last evaluation"),
    ],
)
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_happened(
    mortal: Make, undisturbed: Make, stopped: Any, number: int, owner: Any, name: str, call: int, saved: int
) -> None:
    victim = mortal([*MINED, "checkpoint.every=1000"])
    stop = stopped(victim, owner, name, call, number)
    assert stop.exit_code == 128 + number
    assert str(stop) == (
        f"stopped by {signal.Signals(number).name}: saved after step {saved}; "
        f"resume with: xmclab run --resume {victim.folder}"
    )
    assert victim.ends() == undisturbed(MINED)
    assert victim.resumed == [saved]


@pytest.mark.parametrize(("call", "saved"), [(1, 3), (2, 6)])
def test_a_signal_in_a_refresh_within_an_epoch_saves_the_step_before_it(
    mortal: Make, undisturbed: Make, stopped: Any, call: int, saved: int
) -> None:
    overrides = [*MINED, "refresh_steps=3"]
    victim = mortal([*overrides, "checkpoint.every=1000"])
    stop = stopped(victim, Trainer, "see", call, signal.SIGTERM)
    assert f"saved after step {saved};" in str(stop)
    assert victim.ends() == undisturbed(overrides)
    assert victim.resumed == [saved]


def test_with_validation_the_best_epoch_so_far_is_saved_too(mortal: Make, undisturbed: Make, stopped: Any) -> None:
    overrides = ["epochs=4", "validate.share=0.2", "head.clf.table=adagrad"]
    victim = mortal([*overrides, "checkpoint.every=1000"])
    stopped(victim, Queries, "_rank", 3, signal.SIGTERM)
    assert len(list((victim.folder / "checkpoints").glob("best-*"))) == 1
    stopped(victim, Queries, "_rank", 3, signal.SIGTERM)  # the test queries, with other weights
    assert victim.ends() == undisturbed(overrides)


def test_without_checkpoints_a_signal_ends_the_run_and_says_that_nothing_is_saved(mortal: Make, stopped: Any) -> None:
    victim = mortal(["checkpoint.every=0"])
    stop = stopped(victim, Trainer, "launch", 3, signal.SIGTERM)
    assert str(stop) == "stopped by SIGTERM: after step 3; nothing is saved (checkpoint.every=0)"
    assert not (victim.folder / "checkpoints").exists()


def test_a_signal_before_training_ends_it_at_once(mortal: Make, stopped: Any) -> None:
    victim = mortal([])
    stop = stopped(victim, Bag, "fit", 1, signal.SIGTERM)
    assert str(stop) == "stopped by SIGTERM"
    assert not victim.folder.exists()


def test_a_request_to_save_is_met_and_training_goes_on(mortal: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = mortal(["checkpoint.every=1000"])
    saved: list[int] = []
    save = checkpoints.Checkpoints.save
    monkeypatch.setattr(
        checkpoints.Checkpoints, "save", lambda self, held: (saved.append(held.at.step), save(self, held))
    )
    step = Trainer.launch

    def asking(self: Trainer, number: int, prepared: Any) -> Any:
        if number == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return step(self, number, prepared)

    monkeypatch.setattr(Trainer, "launch", asking)
    with Signals() as signals:
        assert run(victim.config, victim.folder, victim.quiet, signals=signals).metrics
    assert saved == [4]


def test_a_second_signal_ends_at_once_and_costs_no_checkpoint(
    mortal: Make, undisturbed: Make, in_child: Any, signal_at: Any
) -> None:
    """It comes while the checkpoint that the first one asked for is being written."""
    victim = mortal(["checkpoint.every=4"])

    def work() -> None:
        signal_at(Trainer, "launch", 6, signal.SIGTERM)()
        write = shards.write_tensors

        def slow(path: Path, tensors: Any) -> None:
            if "step-000000006" in str(path):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            write(path, tensors)

        shards.write_tensors = slow
        with Signals() as signals:
            run(victim.config, victim.folder, victim.quiet, signals=signals)

    started = time.monotonic()
    assert in_child(work) == 128 + signal.SIGTERM
    assert time.monotonic() - started < 25
    found = checkpoints.newest(victim.folder)
    assert found
    assert found.at.step == 4
    assert victim.ends() == undisturbed([])


def test_processes_that_tokenise_leave_signals_to_the_main_one(in_child: Any) -> None:
    class Waits:
        def tokenise(self, texts: Sequence[str]) -> None:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(os.getpid(), number)

    context = tokens.multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    assert in_child(lambda: tokens._work(Waits(), ["a"], [(0, 1)], [], writer)) == 0  # type: ignore[arg-type]
    assert reader.recv() is None


# 4


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def test_ctrl_c_leaves_one_line_during_imports_as_in_a_run(tmp_path: Path) -> None:
    """Real processes, interrupted at several moments: while they import, read, train."""
    command = [sys.executable, "-m", "xmclab", "run", "recipe=unidec", "data=tiny", "epochs=2000", "--out"]
    processes = [
        (
            delay,
            subprocess.Popen(
                [*command, str(tmp_path / f"run{number}")], env=environment(), stderr=subprocess.PIPE, text=True
            ),
        )
        for number, delay in enumerate((0.5, 1.5, 4.0))
    ]
    started = time.monotonic()
    for delay, process in processes:
        time.sleep(max(started + delay - time.monotonic(), 0))
        process.send_signal(signal.SIGINT)
    for _, process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT), err  # shells show both as 130; Python may choose the latter
        assert "Traceback" not in err
        assert "stopped by SIGINT" in err.splitlines()[-1] or err.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_other_commands_clean_up_too(call: Any, small_run: Path, tmp_path: Path, number: int, signalled: Any) -> None:
    """No file appears that is not whole, and none is left over."""
    before = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "rank", signalled(number, Predictor.rank, 1))
        code, out, err = call("predict", small_run, "--text", "perl", "--out", tmp_path / "answers.txt")
    assert (code, out) == (128 + number, "")
    assert err.splitlines()[-1] == f"stopped by {signal.Signals(number).name}"
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(number) is before
