"""What a run will take, before anything long starts: memory by part, time by part, and disk.

Sizes are computed, and what encoders, steps and searches take on top is measured in a rehearsal: the run's own start,
a few of its steps, and samples of the rest. See `rehearsal.py`. Nothing is written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from xmclab.data import with_reader
from xmclab.data.tokens import OFF, Tokeniser
from xmclab.data.validation import Opened, open_with_validation
from xmclab.errors import DivergedError
from xmclab.host.config import Config
from xmclab.model.device import numerics, pick_device
from xmclab.runs import presets, rehearsal, sizes, store
from xmclab.runs.rehearsal import Measured, Peaks
from xmclab.runs.run import failures
from xmclab.runs.sizes import Part, Phase, Place
from xmclab.runs.step_memory import fit_chunk
from xmclab.system import usage
from xmclab.training.trainer import Trainer

RECORD = 640  # bytes of the record of a step in metrics.jsonl
SAMPLED = 1000  # labels whose lines in labels.jsonl are measured
WRITTEN = 500e6  # bytes that are written in a second
REST: dict[Phase, str] = {  # what is measured beyond the parts that can be computed
    "start": "reading and tokenising",
    "training": "activations",
    "refresh": "encoding and searching for mining",
    "evaluation": "encoding and searching",
    "baselines": "baselines",
}


@dataclass(frozen=True)
class Span:
    """Something that a run spends time on."""

    name: str
    seconds: float  # each time
    times: int = 1

    @property
    def total(self) -> float:
        return self.seconds * self.times


@dataclass(frozen=True)
class File:
    """A file or folder that a run leaves; of checkpoints, as many as are there at a time."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run will take."""

    recipe: str
    data: dict[str, Any]
    device: str
    epochs: int
    steps: int
    memory: tuple[Part, ...]
    free: dict[str, int | None]  # host, device, disk
    training: tuple[Span, ...]  # empty if memory does not suffice for a rehearsal
    others: tuple[Span, ...]
    disk: tuple[File, ...]
    folder: Path
    warnings: tuple[str, ...]
    texts_at_once: int  # that a step encodes

    def peak(self, place: Place = "host") -> int:
        """The most memory held at once."""
        return sizes.peak(self.memory, place)

    def counts(self, part: Part) -> bool:
        """Whether the part is held at that time."""
        return part.phase in ("always", sizes.largest_phase(self.memory, part.place))

    @property
    def train_seconds(self) -> float:
        return sum(span.total for span in self.training)

    @property
    def total_seconds(self) -> float:
        return self.train_seconds + sum(span.total for span in self.others)

    @property
    def disk_bytes(self) -> int:
        return sum(file.bytes for file in self.disk)

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        places: tuple[Place, ...] = ("host", "device")
        seconds = {
            "parts": [{"name": s.name, "seconds": s.seconds, "times": s.times} for s in (*self.training, *self.others)],
            "epoch": self.train_seconds / self.epochs,
            "train": self.train_seconds,
            "total": self.total_seconds,
        }
        return {
            "recipe": self.recipe,
            "data": self.data,
            "device": self.device,
            "epochs": self.epochs,
            "steps": self.steps,
            "memory": {
                "parts": [
                    {"name": p.name, "place": p.place, "phase": p.phase, "bytes": p.bytes, "at_peak": self.counts(p)}
                    for p in self.memory
                ],
                **{place: {"peak": self.peak(place), "free": self.free[place]} for place in places},
            },
            "seconds": seconds if self.training else None,
            "disk": {
                "parts": [dataclasses.asdict(file) for file in self.disk],
                "total": self.disk_bytes,
                "free": self.free["disk"],
                "folder": str(self.folder),
            },
            "warnings": list(self.warnings),
        }


def plan(config: Config, console: Console | None = None, folder: Path | None = None) -> Plan:
    """Rehearse the run of a config.

    Args:
        console: where progress goes; nowhere by default.
        folder: the run folder to come, for the disk that it is on; `runs/...` by default.

    Raises:
        MemoryLimitError: memory does not even suffice to start.
    """
    settings, folder = config.settings, folder or Path("runs")
    device = pick_device(settings.device)
    room = {"host": usage.free(), "device": sizes.device_free(device), "disk": sizes.disk_free(folder)}
    if room["host"] is not None:
        room["host"] += usage.resident()  # what this process holds, a run would hold as well
    exact = numerics(device, settings.deterministic, settings.tf32)
    with failures(settings.compile), _nothing_kept(), exact:
        peaks, started = Peaks(device), time.perf_counter()
        with peaks.of("start"):
            config = with_reader(config)
            opened = open_with_validation(config)
            presets.refuse_other_sizes(config, opened.whole)
            sizes.refuse_too_large(config, opened.training)
            tokeniser = Tokeniser(dataclasses.replace(settings.data, cache=OFF), console)
            trainer = Trainer(config, opened.training, tokeniser, prepares=False)
            fit_chunk(trainer, opened.validation is not None)
        prepare = time.perf_counter() - started
        computed = sizes.memory_parts(trainer, opened.validation is not None)
        new = sizes.needed_parts(computed)
        lacking = [sizes.missing(new, "host", usage.free()), sizes.missing(new, "device", sizes.device_free(device))]
        found = None if any(lacking) else _Rehearsal(config, trainer, opened, peaks)
        parts = _measured_parts(computed, found) if found else computed
        disk = files_of(trainer, found)
    needed: tuple[Place, ...] = ("host", "device")
    warnings = lacking if found is None else [_does_not_fit(parts, place, room[place]) for place in needed]
    total = sum(file.bytes for file in disk)
    data, queries = opened.whole, len(opened.training.train)
    return Plan(
        recipe=config.recipe,
        data={
            "name": data.name,
            "train": queries,
            "test": len(data.test),
            "labels": data.num_labels,
        },
        device=str(device),
        epochs=settings.epochs,
        steps=trainer.steps,
        memory=tuple(parts),
        free=room,
        training=tuple(found.training_spans()) if found else (),
        others=(Span("start", prepare), *found.other_spans(total)) if found else (),
        disk=tuple(disk),
        folder=folder,
        warnings=tuple(filter(None, [*warnings, sizes.missing_disk(total, room["disk"], folder)])),
        texts_at_once=sizes.texts_at_once(trainer),
    )


@contextlib.contextmanager
def _nothing_kept() -> Iterator[None]:
    """A step that diverges is reported as in a run, but leaves no record."""
    try:
        yield
    except DivergedError as error:
        error.details = None
        raise


class _Rehearsal:
    """Measures every part of a run, in its order."""

    def __init__(self, config: Config, trainer: Trainer, opened: Opened, peaks: Peaks) -> None:
        self.trainer, self.peaks, self.settings = trainer, peaks, config.settings
        self.refreshes = sizes.refreshes(trainer)
        with peaks.of("start"):
            self.prepare_seconds = rehearsal.prepare_miner(trainer)
        first = next(iter(trainer.refreshes.before), trainer.steps)
        self.first_refresh = first // trainer.refreshes.steps_per_epoch  # the epoch that it falls into
        batches, planning = rehearsal.timed(lambda: trainer.plan(0))
        with peaks.of("training"):
            step, self.warm_up = rehearsal.steps(trainer, batches, 0)
        self.epoch = self.later_epoch = planning + len(batches) * step
        self.base = usage.resident()
        view, self.refresh_seconds = None, 0.0
        if self.refreshes:
            seen = sizes.view_bytes(trainer)
            with peaks.of("refresh", without=seen if self.refreshes == 1 else 0):
                view, self.refresh_seconds = rehearsal.refresh(trainer, self.first_refresh)
            batches, planning = rehearsal.timed(lambda: trainer.plan(self.first_refresh))
            with peaks.of("training", without=seen):
                step, _ = rehearsal.steps(trainer, batches, trainer.steps // 2)
            self.later_epoch = planning + len(batches) * step
        held = 0 if view is None else sizes.view_bytes(trainer)
        trainer.model.settle()
        validation = opened.validation
        with peaks.of("evaluation", without=held):
            self.queries = len(opened.whole.test)
            self.evaluation = rehearsal.evaluation(config, trainer, opened.whole)
            self.validation: Measured | None = None
            if validation:
                self.validation_queries = len(validation.test)
                self.validation = rehearsal.evaluation(config, trainer, validation)
        self.result = sizes.result_bytes(trainer)
        with peaks.of("baselines", without=held):
            measured = opened.whole if self.settings.evaluate.test or not validation else validation
            self.baselines = rehearsal.baselines(config, measured)

    def training_spans(self) -> list[Span]:
        """What the seconds of training are made of."""
        first, epochs = self.first_refresh, self.settings.epochs
        spans = [Span("first steps", self.warm_up)]
        if first:
            spans.append(Span("epoch", self.epoch, first))
        if epochs > first:
            spans.append(Span("epoch after a refresh", self.later_epoch, epochs - first))
        if self.refreshes:
            spans.append(Span("refresh", self.refresh_seconds, self.refreshes))
        return spans

    def other_spans(self, written: int) -> list[Span]:
        """Everything else that a run does, besides its start."""
        settings, spans, tested = self.settings, [], 1
        if self.prepare_seconds:
            spans.append(Span("negatives before training", self.prepare_seconds))
        if self.validation:
            seconds = self.validation.seconds(self.validation_queries)
            again = 0 if settings.evaluate.test else 1
            spans.append(Span("validation", seconds, _times(settings.epochs, settings.validate.every) + again))
            tested = 1 - again
        else:
            tested = _times(settings.epochs, settings.evaluate.every)
        if tested:
            spans.append(Span("evaluation", self.evaluation.seconds(self.queries), tested))
        at_end = self.evaluation.at_end + written / WRITTEN
        return [*spans, Span("baselines", self.baselines), Span("results and saving", at_end)]


def _times(epochs: int, every: int) -> int:
    """After how many epochs something is done that is done every so many, and at the end."""
    return epochs // every + bool(epochs % every) if every else 1


def _measured_parts(computed: list[Part], found: _Rehearsal) -> list[Part]:
    """The parts of every phase up to what it was seen to hold, and what it held beyond them."""
    lasting = [part for part in computed if part.phase == "always"]
    here = [p for p in lasting if p.place == "host" and (p.held or p.name.startswith("optimizer"))]
    program = Part("program, libraries, vocabulary", max(found.base - sum(part.bytes for part in here), 0), held=True)
    parts = [program, *lasting]
    for phase, name in REST.items():
        extra = {"evaluation": found.evaluation.rankings, "baselines": found.result}.get(phase, 0)
        seen: dict[Place, int] = (
            {"host": found.peaks.host[phase] - found.base + extra} if phase in found.peaks.host else {}
        )
        if phase in found.peaks.on_device:
            seen["device"] = found.peaks.on_device[phase]
        for place, left in seen.items():
            for part in (p for p in computed if p.phase == phase and p.place == place):
                parts.append(dataclasses.replace(part, bytes=min(part.bytes, max(left, 0))))
                left -= part.bytes
            parts.append(Part(name, max(left, 0), place, phase, lower=_lower(phase)))
    return [part for part in parts if part.bytes]


def _lower(phase: Phase) -> str:
    words = {"training": sizes.LOWER_STEP, "baselines": "baseline=none", "start": "encoder.min_frequency"}
    return words.get(phase, "encode.search_chunk, or search=heads")


def _does_not_fit(parts: list[Part], place: Place, room: int | None) -> str:
    needed = sizes.peak(parts, place)
    if room is None or needed <= room:
        return ""
    where = "memory" if place == "host" else "device memory"
    lower = sizes.remedies(parts, place)
    return f"{where}: {sizes.size(needed)} is needed at the peak, {sizes.size(room)} is free; lower {lower}"


def files_of(trainer: Trainer, found: _Rehearsal | None = None) -> list[File]:
    """What the run folder will hold."""
    labels = trainer.data.num_labels
    some = range(0, labels, max(labels // SAMPLED, 1))
    names, texts = trainer.data.label_names, trainer.data.label_texts
    lines = [json.dumps({"name": names[row], "text": texts[row]}, ensure_ascii=False).encode() for row in some]
    files = [
        File(store.LABELS, round(sum(len(line) + 1 for line in lines) * labels / len(lines))),
        File("metrics.jsonl", trainer.steps * RECORD),
        File("checkpoints", sizes.checkpoints(trainer) * sizes.state_bytes(trainer)),
    ]
    if found:
        files.append(File(store.POINTS, found.evaluation.points))
    if trainer.settings.keep_model:
        weights = sizes.model_bytes(trainer.model)
        beside = sizes.disk_bytes(trainer) - weights - files[2].bytes
        files += [File(store.WEIGHTS, weights), File(f"{store.SEARCH}/", beside)]
        files.append(File(f"{store.ENCODER}/", _asset_bytes(trainer)))
    return [file for file in files if file.bytes]


def _asset_bytes(trainer: Trainer) -> int:
    """Bytes of the encoder's files, which are gone when they are counted."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        trainer.model.encoder.save_assets(Path(folder))
        return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
