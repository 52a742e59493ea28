"""What checkpoints cost a run while it trains: `results.md` and `results.json` next to this file.

The same training, again and again in one process: without checkpoints, with the default rhythm, and with many more
checkpoints than anybody needs. The alternatives take turns, and only their ratios within a round are compared: those of
CPU time (of all threads) tell more than those of seconds where other programs run too. A round of training is shorter
than the default ten minutes; what a checkpoint costs then follows from the frequent ones.

python benchmarks/checkpoint/cost.py [--rounds N] [--epochs N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import torch

from xmclab.data.validation import open_with_validation
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.checkpoints import Checkpoints, Held
from xmclab.system.signals import Signals
from xmclab.training.loop import Position, fit
from xmclab.training.state import TrainingState, state_of
from xmclab.training.trainer import Trainer

HERE = Path(__file__).parent
THREADS = 2
GOAL = 0.02  # of the time of training, at the default
DEFAULT_SECONDS = 600.0
OFF, DEFAULT, OFTEN = "off", "10m", "often"


class Watched(Checkpoints):
    """Checkpoints that time themselves and the steps beside them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stalls: list[float] = []  # seconds in which training waits, for a copy or the checkpoint before
        self.copies: list[float] = []
        self.writes: list[float] = []
        self.steps_beside: list[float] = []  # seconds of steps while the thread writes
        self.steps_alone: list[float] = []
        self.looks: list[float] = []  # seconds between steps in which nothing is saved
        self._ended = time.perf_counter()

    def after_step(self, at: Position) -> None:
        seconds = time.perf_counter() - self._ended
        (self.steps_beside if self._job is not None and not self._job.done() else self.steps_alone).append(seconds)
        saved, started = len(self.stalls), time.perf_counter()
        super().after_step(at)
        self._ended = time.perf_counter()
        if len(self.stalls) == saved:
            self.looks.append(self._ended - started)

    def save(self, held: Held) -> None:
        started = time.perf_counter()
        super().save(held)
        self.stalls.append(time.perf_counter() - started)

    def _copied(self, state: TrainingState) -> TrainingState:
        started = time.perf_counter()
        copied = super()._copied(state)
        self.copies.append(time.perf_counter() - started)
        return copied

    def _write(self, held: Held, state: TrainingState, copying: float) -> None:
        started = time.perf_counter()
        super()._write(held, state, copying)
        self.writes.append(time.perf_counter() - started)


@dataclass(frozen=True)
class Subject:
    """A training to measure."""

    name: str
    words: tuple[str, ...]
    epochs: int
    often: int  # steps between frequent checkpoints


def subjects(root: Path, epochs: int) -> list[Subject]:
    """The embedded data with its recipe; many labels, in tables that are large for the work of a step."""
    data = root / "synthetic"
    sizes = ("--train", "40000", "--test", "100", "--labels", "200000")
    subprocess.run([sys.executable, "-m", "xmclab", "synthetic", str(data), *sizes], check=True, capture_output=True)
    widths = ("encoder.dim=64", "head.de.dim=64", "head.clf.dim=64")
    return [
        Subject("`recipe=unidec data=debian`", ("recipe=unidec", "refresh_every=1"), epochs, 6),
        Subject("200,000 labels × 64", ("recipe=unidec", f"data={data}", *widths), 2, 6),
    ]


def train(trainer: Trainer, every: str, epochs: int, folder: Path) -> tuple[float, float, Watched]:
    """Seconds of training, without evaluation, until the last checkpoint is on disk; of CPU time too."""
    checkpoint = replace(trainer.settings.checkpoint, every=every)
    trainer.settings = replace(trainer.settings, checkpoint=checkpoint, epochs=epochs)
    trainer.view = None
    folder.mkdir()
    started, used = time.perf_counter(), time.process_time()
    with Watched(folder, trainer, None, Signals(), {}, lambda: None, Position()) as checkpoints:
        fit(trainer, lambda record: None, dict, guard=checkpoints)
    return time.perf_counter() - started, time.process_time() - used, checkpoints


def measure(subject: Subject, root: Path, rounds: int) -> dict[str, Any]:
    """All numbers of a subject, as JSON values."""
    torch.set_num_threads(THREADS)
    config = resolve([*subject.words, f"epochs={subject.epochs}"], default_registry())
    trainer = Trainer(config, open_with_validation(config).training)
    rhythms = {OFF: "0", DEFAULT: "10m", OFTEN: str(subject.often)}
    times: dict[str, list[float]] = {name: [] for name in rhythms}
    cpu: dict[str, list[float]] = {name: [] for name in rhythms}
    watched: dict[str, list[Watched]] = {name: [] for name in rhythms}
    with tempfile.TemporaryDirectory(dir=root) as folder:
        train(trainer, "0", 1, Path(folder) / "warm-up")
        for number in range(rounds):
            names = list(rhythms)
            for name in names[number % 3 :] + names[: number % 3]:
                seconds, used, checkpoints = train(
                    trainer, rhythms[name], subject.epochs, Path(folder) / f"{name}{number}"
                )
                times[name].append(seconds)
                cpu[name].append(used)
                watched[name].append(checkpoints)
                print(
                    f"{subject.name}, {name}: {seconds:.1f} s, CPU {used:.1f} s, {len(checkpoints.writes)} saved",
                    flush=True,
                )
    frequent = watched[OFTEN]
    state = state_of(trainer)
    written = sum(len(each.writes) for each in frequent) / rounds
    extra = [often - off for often, off in zip(times[OFTEN], times[OFF], strict=True)]
    return {
        "subject": subject.name,
        "steps": trainer.steps,
        "bytes": state.bytes,
        "seconds": times,
        "CPU seconds": cpu,
        "ratios": {name: ratios(times[name], times[OFF]) for name in (DEFAULT, OFTEN)},
        "ratios of CPU": {name: ratios(cpu[name], cpu[OFF]) for name in (DEFAULT, OFTEN)},
        "same again": ratios(times[OFF][1:], times[OFF][:-1]),
        "same again, CPU": ratios(cpu[OFF][1:], cpu[OFF][:-1]),
        "looks": {name: middle([s for each in watched[name] for s in each.looks]) for name in rhythms},
        "saved": {name: [len(each.writes) for each in watched[name]] for name in rhythms},
        "first copy": statistics.median(each.copies[0] for each in frequent),
        "later copies": middle([seconds for each in frequent for seconds in each.copies[1:]]),
        "stalls": middle([seconds for each in frequent for seconds in each.stalls]),
        "writes": middle([seconds for each in frequent for seconds in each.writes]),
        "step alone": middle([seconds for each in watched[OFF] for seconds in each.steps_alone[1:]]),
        "step beside": middle([seconds for each in frequent for seconds in each.steps_beside]),
        "steps beside": sum(len(each.steps_beside) for each in frequent),
        "seconds per checkpoint": statistics.median(extra) / written,
    }


def middle(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def ratios(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """The median of the ratios within rounds, and the smallest and largest."""
    found = [time / other for time, other in zip(times, others, strict=True)]
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}


def spread(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def report(found: list[dict[str, Any]]) -> str:
    """The tables as Markdown."""
    rounds = len(found[0]["seconds"][OFF])
    lines = [
        "# Cost of checkpoints",
        "",
        f"Training without evaluation, {rounds} interleaved rounds on {THREADS} threads; ratios are within a round,",
        "with the smallest and the largest in brackets. *Off, again*: rounds without checkpoints beside the rounds",
        "before them, which is the noise. Made by `make bench-checkpoint`.",
        "",
        "| training | steps | | off, again | default / off | often / off |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for one in found:
        for what, same, key in (
            ("seconds", "same again", "ratios"),
            ("CPU seconds", "same again, CPU", "ratios of CPU"),
        ):
            off = f"{what}, off: {statistics.median(one[what][OFF]):.1f}"
            cells = [
                one["subject"],
                one["steps"],
                off,
                spread(one[same]),
                *(spread(each) for each in one[key].values()),
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        saved = {name: "/".join(map(str, times)) for name, times in one["saved"].items()}
        looks = f"{1e6 * one['looks'][OFF]:.0f} µs and {1e6 * one['looks'][DEFAULT]:.0f} µs"
        lines.append(f"| {one['subject']} | | saved | | {saved[DEFAULT]} | {saved[OFTEN]} |")
        lines.append(f"| {one['subject']} | | between steps, off and default | | {looks} | |")
    lines += [
        "",
        "One checkpoint, from the frequent ones. *Costs*: what they add to training, over their number, with steps",
        "that are slower while the thread writes; as a share of ten minutes, it bounds the cost of the default",
        f"(goal: {GOAL:.0%}).",
        "",
        "| training | MiB | first copy | later | write in the thread | step | while writing | costs | of 10 minutes |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        share = one["seconds per checkpoint"] / DEFAULT_SECONDS
        cells = [
            one["subject"],
            f"{one['bytes'] / 2**20:.0f}",
            *(f"{1e3 * one[key]:.0f} ms" for key in ("first copy", "later copies", "writes", "step alone")),
            f"{one['step beside'] / one['step alone']:.2f} times",
            f"{one['seconds per checkpoint']:.2f} s",
            f"{share:.2%}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="of the training on the embedded data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xmclab-checkpoint-") as root:
        chosen = subjects(Path(root), options.epochs)
        found = [measure(subject, Path(root), options.rounds) for subject in chosen]
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(report(found), encoding="utf-8")
    print(report(found))


if __name__ == "__main__":
    main()
