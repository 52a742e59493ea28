"""The attacks. Each returns how many faults it caused, how many were survived, and what went wrong otherwise."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from victims import NAMES, PHASES, Marks, Process, numbers, records, start

from xmclab.runs.checkpoints import by_step

EARLY = ("starting", "reading data", "opening the folder", "restoring")
MIDDLE = ("training", "training", "refresh", "evaluation", "validation", "copying", "writing")
LATE = ("saving the model", "closing evaluation", "baselines", "results", "tidying")
GROUPS = {
    "before the first step": EARLY,
    "training": ("training",),
    "refresh": ("refresh",),
    "evaluation": ("evaluation", "validation"),
    "saving": ("copying", "writing"),
    "after training": LATE,
}
ONCE = (*EARLY, *LATE, "refresh")  # or seldom, in one process
FOLDERS = 8  # that an attack may use for the faults it is to cause
KILLS_PER_FOLDER = 8
IMPORTS = 3.0  # seconds, of a fresh process


@dataclass
class Outcome:
    """What became of an attack."""

    attack: str
    subject: str
    faults: int = 0
    survived: int = 0
    hits: Counter[str] = field(default_factory=Counter)  # by phase
    replayed: int = 0  # steps that were done again
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def judge(self, faults: int, problems: list[str]) -> None:
        self.faults += faults
        self.survived += 0 if problems else faults
        self.problems += [f"{self.attack}, {self.subject}: {problem}" for problem in problems]


@dataclass(frozen=True)
class Job:
    """A run to attack, and how it goes undisturbed."""

    subject: str
    words: list[str]  # of the command line
    root: Path
    seed: int
    expected: dict[str, Any]
    longest: dict[str, float]  # seconds by phase, of the phases it has
    seconds: float

    @property
    def steps(self) -> int:
        return len(self.expected["losses"])

    def start(self, folder: Path, *words: str, name: str = "log", **options: Any) -> Process:
        log = self.root / f"{name}-{folder.name}.txt"
        return start(["run", *self.words, *words, "--out", str(folder), "--resume", "auto"], log, **options)

    def folder(self) -> contextlib.AbstractContextManager[Path]:
        return removed(self.root / f"run-{time.monotonic_ns()}")

    def changed(self, folder: Path) -> list[str]:
        """What is not as in the undisturbed run."""
        try:
            found = numbers(folder)
        except (OSError, ValueError, KeyError) as error:
            return [f"the folder cannot be read: {error!r}"]
        found = json.loads(json.dumps(found))
        different = [name for name, value in self.expected.items() if found[name] != value]
        names = sorted(set(found[NAMES]) ^ set(self.expected[NAMES]))
        return [f"{name} changed{f' by {names}' if name == NAMES else ''}" for name in different]

    def ends(self, folder: Path, *words: str) -> tuple[list[str], Process]:
        """Let a run go on to its end; what is wrong with it."""
        process = self.start(folder, *words)
        code = process.wait()
        if code:
            return [f"exit {code}: {process.said}"], process
        left = ["checkpoints were left"] if (folder / "checkpoints").exists() else []
        return [*left, *self.changed(folder)], process


@contextlib.contextmanager
def removed(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# kill -9


def kills(job: Job, wanted: int, fresh: bool = False) -> Outcome:
    """Kill runs at random moments until they were killed that often; each folder then goes on to its end."""
    rng = random.Random(job.seed)
    outcome = Outcome("kill -9 of a fresh process" if fresh else "kill -9", job.subject)
    for _ in range(FOLDERS):
        with job.folder() as folder:
            killed = steps = 0
            for aim in aims(job, rng, fresh)[: wanted - outcome.faults]:
                process = job.start(folder, f"checkpoint.every={rng.choice((1, 2, 4))}", fresh=fresh)
                reached(process, job, folder, aim, rng, IMPORTS if fresh else 0.0)
                process.send(signal.SIGKILL)
                steps += process.marks.steps
                if process.code != -signal.SIGKILL:  # it ended first
                    break
                killed += 1
                outcome.hits[seen(folder) if fresh else process.marks.phase] += 1
            problems, process = job.ends(folder)
            outcome.judge(killed, problems)
            outcome.replayed += 0 if fresh else steps + process.marks.steps - job.steps
        if outcome.faults >= wanted:
            break
    return outcome


def aims(job: Job, rng: random.Random, fresh: bool) -> list[str]:
    """The phases to kill it in; an empty one is any moment."""
    if fresh:
        return [""] * KILLS_PER_FOLDER
    middle = [phase for phase in MIDDLE if phase in job.longest]
    found = [rng.choice(EARLY), *(rng.choice(middle) for _ in range(KILLS_PER_FOLDER - 5))]
    rng.shuffle(found)
    return [rng.choice(("", "opening the folder")), *found, *sorted(rng.sample(LATE, 3), key=PHASES.index)]


def reached(process: Process, job: Job, folder: Path, phase: str, rng: random.Random, imports: float = 0.0) -> None:
    """Wait for a random moment of a phase (of the whole run, if it is empty), or until the process ends.

    Args:
        imports: seconds that the run takes longer.
    """
    marks, times = process.marks, rng.randint(1, 2 if phase in GROUPS["evaluation"] else 4)
    conditions: dict[str, Callable[[], bool]] = {
        "": lambda: True,
        "starting": lambda: True,
        "training": lambda: marks.steps >= times,
        "results": lambda: (folder / "points.npz").exists(),
    }
    process.until(conditions.get(phase, lambda: marks.entered(phase) >= (1 if phase in ONCE else times)))
    longest = job.seconds + imports if not phase else job.longest.get(phase, 0.0)
    length = {"starting": 0.3, "training": 0.05, "results": 0.01, "tidying": 0.02}.get(phase, longest)
    process.until(lambda: False, rng.uniform(0, length))


def seen(folder: Path) -> str:
    """The phase of a process that is not watched, as its folder shows."""
    if (folder / "result.json").exists():
        return "tidying"
    if (folder / "model.safetensors").exists():
        return "closing evaluation"
    if any((folder / "checkpoints").glob(".tmp-*")):
        return "writing"
    return "training" if any(record["event"] == "step" for record in records(folder)) else "reading data"


# Signals


def signals(job: Job, number: int, wanted: int) -> Outcome:
    """Ask runs to end in every phase, some of them twice, and let them go on to their end."""
    rng = random.Random(job.seed)
    outcome = Outcome(signal.Signals(number).name, job.subject)
    middle = [phase for phase in MIDDLE if phase in job.longest and phase not in GROUPS["saving"]]
    for attempt in range(wanted):
        with job.folder() as folder:
            process = job.start(folder, "checkpoint.every=1000")
            late = attempt == wanted - 1
            reached(process, job, folder, "closing evaluation" if late else rng.choice(middle), rng)
            phase, twice = process.marks.phase, attempt % 3 == 2
            process.send(number)
            if twice:
                process.until(lambda: False, rng.uniform(0, 0.03))
                process.send(number)
            code, steps = process.wait(), process.marks.steps
            late_end = process.marks.entered("saving the model") > 0  # the model may be that of another epoch
            if code == 0:  # it had ended
                continue
            problems = [] if code == 128 + number else [f"exit {code}: {process.said}"]
            ended, process = job.ends(folder)
            replayed = steps + process.marks.steps - job.steps
            if replayed and not twice and not late_end:
                ended.append(f"{replayed} steps were lost in {phase}")
            outcome.replayed += replayed
            outcome.hits[phase] += 1
            outcome.judge(1, problems + ended)
    return outcome


def saves(job: Job, wanted: int) -> Outcome:
    """Ask runs for a checkpoint, kill them once they have it, and let them go on from there."""
    rng = random.Random(job.seed)
    outcome = Outcome("SIGUSR1, then kill -9", job.subject)
    for _ in range(wanted):
        with job.folder() as folder:
            process = job.start(folder, "checkpoint.every=1000")
            reached(process, job, folder, "training", rng)
            process.send(signal.SIGUSR1)
            found = process.until(lambda: bool(by_step(folder / "checkpoints")), 20)
            process.send(signal.SIGKILL)
            outcome.hits[process.marks.phase] += 1
            steps = process.marks.steps
            problems, process = job.ends(folder)
            resumed = [record["step"] for record in records(folder) if record["event"] == "resume"]
            problems += [] if found and resumed else ["nothing was saved"]
            outcome.replayed += steps + process.marks.steps - job.steps
            outcome.judge(1, problems)
    return outcome


# Full disks


def disks(job: Job, wanted: int) -> Outcome:
    """Let runs fill a small file system (or reach a limit on the size of files), free some space, and go on."""
    rng = random.Random(job.seed)
    disk = job.root / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    real = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    outcome = Outcome("a full disk" if real else "a limit on the size of files", job.subject)
    try:
        size = _size(job, disk)
        for _ in range(2 * wanted):
            with removed(disk / "run") as folder:
                room = round(size * rng.uniform(0.02, 4.0))
                process, message = (_full if real else _limited)(job, folder, room)
                if process.code == 0:  # the room was enough
                    outcome.problems += [
                        f"{problem}, though exit 0, in {room} bytes" for problem in job.changed(folder)
                    ]
                    continue
                early = "no room for the model and a checkpoint" in process.text  # known before training
                refused = process.code == 7 and (early or message in process.text)
                problems = [] if refused else [f"exit {process.code}: {process.said}"]
                outcome.hits[process.marks.phase] += 1
                outcome.judge(1, problems + job.ends(folder)[0])
            if outcome.faults == wanted:
                break
    finally:
        if real:
            subprocess.run(["umount", str(disk)], check=True)
    return outcome


def _size(job: Job, disk: Path) -> int:
    """The bytes of a finished run."""
    with removed(disk / "run") as folder:
        job.ends(folder)
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _full(job: Job, folder: Path, room: int) -> tuple[Process, str]:
    """A run on a disk with this room until it ends; the room is made larger then."""
    ballast = folder.parent / "ballast"
    with ballast.open("wb") as stream:
        stream.write(bytes(max(shutil.disk_usage(folder.parent).free - room, 0)))
    process = job.start(folder, "checkpoint.every=2")
    process.wait()
    ballast.unlink()
    return process, "No space left on device"


def _limited(job: Job, folder: Path, room: int) -> tuple[Process, str]:
    process = job.start(folder, "checkpoint.every=2", largest=room // 8)
    process.wait()
    return process, "File too large"


# Damaged files


def damage(job: Job, wanted: int, of_checkpoints: bool) -> Outcome:
    """Change a file of a run that was killed: in its newest checkpoint, or beside the checkpoints."""
    rng = random.Random(job.seed)
    outcome = Outcome("damage to the newest checkpoint" if of_checkpoints else "damage to a run folder", job.subject)
    with job.folder() as killed:
        process = job.start(killed, "checkpoint.every=3")
        process.until(lambda: len(by_step(killed / "checkpoints")) == 2)
        process.until(lambda: process.marks.phase == "training")
        process.send(signal.SIGKILL)
        for number in range(wanted):
            with removed(killed.with_name(f"damaged-{time.monotonic_ns()}")) as folder:
                shutil.copytree(killed, folder)
                root = by_step(folder / "checkpoints")[0] if of_checkpoints else folder
                files = sorted(root.iterdir() if of_checkpoints else _described(folder))
                file = files[number % len(files)]
                how = spoil(file, rng)
                problems, process = job.ends(folder, "checkpoint.every=3")
                if not of_checkpoints:
                    named = process.code == 7 and file.name in process.text
                    problems = [] if named else [f"not refused: exit {process.code}, {process.said}"]
                outcome.judge(1, [f"{file.name} {how}: {problem}" for problem in problems])
    return outcome


def _described(folder: Path) -> list[Path]:
    return [folder / name for name in json.loads((folder / "manifest.json").read_text())["files"]]


def spoil(file: Path, rng: random.Random) -> str:
    """Flip a bit, cut the end off, or delete; says what."""
    how, content = rng.choice(("bit", "bit", "cut", "deleted")), bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
        return how
    at = rng.randrange(len(content))
    if how == "bit":
        content[at] ^= 1 << rng.randrange(8)
    file.write_bytes(content[:at] if how == "cut" else content)
    return f"{how} at {at}"


# Two processes


def pairs(job: Job, wanted: int) -> Outcome:
    """Start two processes in one folder: one trains, the other is refused, or gets the result of the first."""
    rng = random.Random(job.seed)
    outcome = Outcome("two processes in one folder", job.subject)
    for _ in range(wanted):
        with job.folder() as folder:
            first = job.start(folder, "checkpoint.every=2", name="first")
            first.until(lambda: False, rng.choice((0.0, rng.uniform(0, job.seconds))))
            second = job.start(folder, "checkpoint.every=2", name="second")
            codes = second.wait(), first.wait()
            problems = job.changed(folder)
            trained = [process for process in (first, second) if process.marks.steps]
            refused = [process for process in (first, second) if process.code == 7]
            problems += [] if set(codes) <= {0, 7} and 0 in codes else [f"exit {codes}: {first.said} {second.said}"]
            problems += [] if len(trained) == 1 else [f"{len(trained)} processes trained"]
            problems += [f"not refused for it: {each.said}" for each in refused if "in use by" not in each.text]
            outcome.judge(1, problems)
    return outcome


def undisturbed(job: Job) -> tuple[dict[str, Any], dict[str, float], float]:
    """The numbers of a run, with and without checkpoints; the seconds of its phases; its own."""
    marks = Marks()
    with job.folder() as folder, job.folder() as saving:
        process = job.start(folder, "checkpoint.every=0")
        if code := process.wait():
            raise RuntimeError(f"{job.subject}: exit {code}: {process.text}")
        expected = json.loads(json.dumps(numbers(folder)))
        started = time.perf_counter()
        process = job.start(saving, "checkpoint.every=2")
        process.wait()
        seconds, marks = time.perf_counter() - started, process.marks
        if json.loads(json.dumps(numbers(saving))) != expected:
            raise RuntimeError(f"{job.subject}: checkpoints change the numbers")
    return expected, {phase: marks.longest(phase) for phase in PHASES if marks.entered(phase)}, seconds
