"""Checkpoints of a run: copied to host memory between two steps, written in a thread, found again newest first.

checkpoints/step-000000120/   the state after 120 steps: dense-0.safetensors, and a file or more per table of rows
checkpoints/refresh-000005/   the view and the mined negatives of the refresh before epoch 5, once for many checkpoints;
                              after batches of the epoch, their number follows
checkpoints/best-000003/      the weights of the best epoch so far, with validation
checkpoints/.tmp-*            unfinished; swept
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xmclab.errors import Problem, Stopped, StorageError
from xmclab.host.schema import CheckpointSettings, rhythm
from xmclab.kernels.pages import in_large_pages
from xmclab.runs.best import BestEpoch
from xmclab.runs.shards import TEMPORARY, read_manifest, read_rows, read_tensors, write_folder
from xmclab.runs.store import RECORDS, command, damage_reported, whole
from xmclab.system import usage
from xmclab.system.files import storage_errors, synced
from xmclab.system.signals import Signals
from xmclab.training.loop import Guard, Position
from xmclab.training.state import (
    Refreshed,
    TrainingState,
    as_tensors,
    load_refreshed,
    load_state,
    refreshed,
    state_of,
)
from xmclab.training.trainer import Trainer

logger = logging.getLogger(__name__)

FOLDER, DENSE, ARRAYS, WEIGHTS = "checkpoints", "dense-0.safetensors", "arrays.safetensors", "weights.safetensors"
STEP, OURS = re.compile(r"step-(\d+)"), re.compile(r"step-|refresh-|best-|\.tmp-")
SHARE = 0.02  # of the time of a run, which the checkpoints at the ends of epochs may take
SECONDS_BETWEEN_LOOKS = 0.1
BYTES_PER_SECOND = 2e8  # of the first checkpoint, before one was timed


@dataclass(frozen=True)
class Held:
    """What belongs to a position besides the tensors of the model; none of it changes in place."""

    at: Position
    records: int  # bytes of the file of records
    refreshed: Refreshed | None
    best: Mapping[str, Any] | None  # numbers of the best epoch
    weights: Mapping[str, Tensor]  # of the best epoch


class Checkpoints(Guard):
    """Saves a run while it trains, and stops it where a signal asked for it; a context manager.

    Args:
        folder: the run folder.
        about: what a resumed run is compared with: config and data.
        keep_model: called when the model is final.
        at: where the run continues; the state of there is on disk, unless it is the start.
    """

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        best: BestEpoch | None,
        signals: Signals,
        about: Mapping[str, Any],
        keep_model: Callable[[], None],
        at: Position,
    ) -> None:
        self.run, self.root, self.trainer, self.best = folder, folder / FOLDER, trainer, best
        self.signals, self.about, self.keep_model, self.at = signals, about, keep_model, at
        settings: CheckpointSettings = trainer.settings.checkpoint
        (self.steps, self.seconds), self.keep = rhythm(settings.every), settings.keep
        self.on = bool(self.steps or self.seconds)
        self.saved = at if at.step else None  # the latest that is on disk, or on its way there
        self._held: Held | None = None
        self._chosen = False  # the model is that of the best epoch
        self._refreshed: Refreshed | None = None
        self._buffers: dict[str, Tensor] = {}
        self._intact: set[str] = set()  # folders that were written, or read in full, by this process
        self._last, self._cost = time.perf_counter(), 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="xmclab-checkpoint")
        self._job: Future[None] | None = None
        self._sweep()

    def _sweep(self) -> None:
        """Delete what a killed process left unfinished, and later checkpoints that could not be used.

        They belong to steps that are done again; once what they share is written again, they would seem intact.
        """
        later = [folder for folder in by_step(self.root) if step_of(folder) > self.at.step]
        for folder in (*later, *self.root.glob(f"{TEMPORARY}*")):
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the latest one; its failure is reported unless there is another error."""
        try:
            with contextlib.nullcontext() if kind is None else contextlib.suppress(StorageError):
                self._join()
        finally:
            self._thread.shutdown()

    # When

    def reached(self, at: Position) -> None:
        self.at = at

    def after_step(self, at: Position, known: Callable[[], None]) -> None:
        self._refuse_failure()
        stops = self.signals.asked is not None
        asked, self.signals.save = self.signals.save, False
        if stops or asked or self._due(at):
            known()
            if stops:
                self._stop(self._hold(at))
            self.save(self._hold(at))

    def _due(self, at: Position) -> bool:
        if self.steps:
            return at.step % self.steps == 0
        return bool(self.seconds) and self._since_last >= self.seconds

    def after_epoch(self, at: Position) -> None:
        self._held = self._hold(at)
        if self.seconds and self._since_last >= self._expected_cost() / SHARE:
            self.save(self._held)

    @contextlib.contextmanager
    def phase(self) -> Iterator[None]:
        """A signal ends the work inside at once; the state is then that of the last step."""
        if (self._held and self._held.at != self.at) or (not self._held and self.at.step and not self._chosen):
            self._held = self._hold(self.at)
        try:
            with self.signals.deferred(False):
                yield
        except Stopped as stop:
            if self._held is None:
                raise Stopped(stop.number, self._resume_hint) from None
            self._stop(self._held)

    def after_training(self) -> None:
        self.keep_model()
        self._buffers = {}
        if self.best:
            self._held, self._chosen = None, True  # the model has the weights of another epoch

    @property
    def _resume_hint(self) -> str:
        return f"resume with: {command('run --resume', whole(self.run), self.trainer.config)}"

    def _stop(self, held: Held) -> None:
        """Save, and end the run."""
        number = self.signals.asked
        assert number is not None
        if not self.on:
            raise Stopped(number, f"after step {held.at.step}; nothing is saved (checkpoint.every=0)")
        self.save(held)
        self._join()
        raise Stopped(number, f"saved after step {held.at.step}; {self._resume_hint}")

    @property
    def _since_last(self) -> float:
        return time.perf_counter() - self._last

    def _expected_cost(self) -> float:
        return self._cost or state_of(self.trainer).bytes / BYTES_PER_SECOND

    # What

    def _hold(self, at: Position) -> Held:
        view = self.trainer.view
        known = self._refreshed
        if view is None or known is None or (known.epoch, known.batch) != (view.epoch, view.batch):
            self._refreshed = refreshed(self.trainer)
        numbers, weights = self.best.state() if self.best else (None, {})
        records = self.run / RECORDS
        size = records.stat().st_size if records.is_file() else 0
        return Held(at, size, self._refreshed, numbers, weights)

    def save(self, held: Held) -> None:
        """Copy the state, and write it in the thread; waits for the one before."""
        if held.at == self.saved:
            return
        self._join()
        started = time.perf_counter()
        state = state_of(self.trainer)
        self.saved, self._last = held.at, started
        if self._copies_fit(state):
            copy = self._copied(state)
            self._job = self._thread.submit(self._write, held, copy, time.perf_counter() - started)
        else:
            self._write(held, state, 0.0)

    def _copies_fit(self, state: TrainingState) -> bool:
        """Whether memory has room for a copy; on a CPU training can wait for the write instead."""
        free = usage.free()
        return bool(self._buffers) or self.trainer.device.type != "cpu" or free is None or 2 * state.bytes <= free

    def save_here(self) -> None:
        """Save the state after the latest step, unless checkpoints are off, and wait until it is on disk."""
        if self.on:
            self.save(self._hold(self.at))
            self._join()

    def _copied(self, state: TrainingState) -> TrainingState:
        """The tensors in buffers of host memory, which are kept: new ones would take much longer."""

        def copied(name: str, tensor: Tensor) -> Tensor:
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                empty = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                buffer = self._buffers[name] = in_large_pages(empty)
            return buffer.copy_(tensor, non_blocking=True)

        dense = {name: copied(name, tensor) for name, tensor in state.dense.items()}
        tables = {
            name: {key: copied(f"{name}/{key}", tensor) for key, tensor in rows.items()}
            for name, rows in state.tables.items()
        }
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        return TrainingState(dense, tables, state.numbers)

    # In the thread

    def _write(self, held: Held, state: TrainingState, copying: float) -> None:
        started = time.perf_counter()
        name = f"step-{held.at.step:09d}"
        tables = {owner: {f"{owner}-0.safetensors": 0} for owner in state.tables}
        files = {f"{owner}-0.safetensors": rows for owner, rows in state.tables.items()}
        about = {
            **self.about,
            "position": dataclasses.asdict(held.at),
            "records": held.records,
            "state": state.numbers,
            "tables": {
                owner: {"rows": len(state.tables[owner]["weight"]), "files": parts} for owner, parts in tables.items()
            },
            "refreshed": held.refreshed.name if held.refreshed else None,
            "best": dict(held.best) if held.best else None,
        }
        with storage_errors(f"checkpoint {self.root / name}", self.run, state.bytes):
            self.root.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # no crash of the machine may leave fewer
                synced(self.run / RECORDS)
            if held.refreshed:
                arrays = as_tensors(held.refreshed.arrays)
                place = {"epoch": held.refreshed.epoch, "batch": held.refreshed.batch}
                self._write_once(about["refreshed"], ARRAYS, arrays, place)
            if held.best and held.weights:
                self._write_once(best_folder(held.best), WEIGHTS, held.weights, held.best)
            write_folder(self.root, name, {DENSE: state.dense, **files}, about)
            self._prune()
        self._cost = copying + time.perf_counter() - started

    def _write_once(self, name: str, file: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Write a folder that does not change, unless it is there and intact."""
        if name in self._intact:
            return
        try:
            read_manifest(self.root / name)
        except StorageError:
            write_folder(self.root, name, {file: tensors}, about)
        self._intact.add(name)

    def _prune(self) -> None:
        """Delete old checkpoints, and what only they refer to; the new one is read first."""
        newest, *others = by_step(self.root)
        used = references(read_manifest(newest, contents=False))
        for folder in others[: self.keep - 1]:
            with contextlib.suppress(StorageError):
                used |= references(read_manifest(folder, contents=False))
        kept = {newest.name, *(folder.name for folder in others[: self.keep - 1]), *used}
        for folder in self.root.iterdir():
            if OURS.match(folder.name) and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _join(self) -> None:
        """Wait for the thread; raises what it raised."""
        job, self._job = self._job, None
        if job is not None:
            while not job.done():  # a signal may be delivered to the thread, and must not wait for it
                wait([job], timeout=SECONDS_BETWEEN_LOOKS)
            try:
                job.result()
            except BaseException:
                self.saved = None
                raise

    def _refuse_failure(self) -> None:
        if self._job is not None and self._job.done():
            self._join()


def by_step(root: Path) -> list[Path]:
    """The folders of checkpoints, the latest first."""
    return sorted((path for path in root.glob("step-*") if STEP.fullmatch(path.name)), key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


def best_folder(best: Mapping[str, Any]) -> str:
    return f"best-{int(best['epoch']):06d}"


def references(manifest: Mapping[str, Any]) -> set[str]:
    """The other folders that a checkpoint needs."""
    names = {manifest["refreshed"]} if manifest["refreshed"] else set()
    return names | ({best_folder(manifest["best"])} if manifest["best"] else set())


@dataclass(frozen=True)
class Found:
    """A checkpoint whose files are intact."""

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def at(self) -> Position:
        return Position(**self.manifest["position"])

    def restore(self, trainer: Trainer, best: BestEpoch | None) -> None:
        """Give a new trainer the state of then, and the best epoch so far.

        Raises:
            StorageError: the tensors are not those of its model.
        """
        with damage_reported(self.folder):
            tables = {}
            for name, table in self.manifest["tables"].items():
                verified = {
                    file: int(table["files"][file]) for file in self.manifest["files"] if file in table["files"]
                }
                tables[name] = read_rows(self.folder, verified, int(table["rows"]))
            state = TrainingState(read_tensors(self.folder, DENSE), tables, self.manifest["state"])
            load_state(trainer, state)
            if name := self.manifest["refreshed"]:
                other = self.folder.parent / name
                arrays = {key: tensor.numpy() for key, tensor in read_tensors(other, ARRAYS).items()}
                place = read_manifest(other, contents=False)
                load_refreshed(trainer, Refreshed(int(place["epoch"]), arrays, int(place.get("batch", 0))))
            if best and (numbers := self.manifest["best"]):
                best.load(numbers, read_tensors(self.folder.parent / best_folder(numbers), WEIGHTS))


def newest(run: Path, strict: bool = False) -> Found | None:
    """The newest checkpoint of a run folder that is intact; None if there is none at all.

    Args:
        strict: do not fall back to an older one.

    Raises:
        StorageError: all of them are damaged; with `strict`, the newest is.
    """
    root = run / FOLDER
    problems: list[Problem] = []
    for folder in by_step(root):
        try:
            with damage_reported(folder):
                manifest = read_manifest(folder)
                for name in references(manifest):
                    read_manifest(root / name)
                found = Found(folder, manifest)
                _ = found.at
        except StorageError as error:
            if strict:
                raise
            for problem in error.problems:
                logger.warning("%s; trying the checkpoint before it", problem)
            problems += error.problems
        else:
            return found
    if problems:
        raise StorageError(*problems, Problem(str(run), "no checkpoint is intact", "start again in a new folder"))
    return None
