"""Whole steps of known sizes: their time, what it is spent on, and how far it is from the roof."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xmclab.model.device import numerics
from xmclab.runs import sizes
from xmclab.runs.profile import OF_A_STEP, PLAN_WAIT, Profile
from xmclab_doctor.bench import roof, synthetic
from xmclab_doctor.bench.equality import TABLES, kernels
from xmclab_doctor.bench.peaks import wait
from xmclab_doctor.bench.roof import Speeds, Work
from xmclab_doctor.bench.synthetic import Lengths, Network

HELD = ("weights", "tables", "optimizer of weights", "optimizer of tables", "gradients of weights", "score block")
CHUNK = 256  # texts, where all at once do not fit
SPARE = 0.9  # of the free memory of a card
NO_KERNELS = ("Memcpy", "Memset", "Optimizer.")  # what the profiler lists for a card besides kernels
DEFAULT, COMPILED, FUSED, PLAIN = "default", "compiled", "kernels=triton", "without kernels"
TABLE_OF_ALL = (
    "reduction=ova",
    "loss.clf=bce",
    "head.de=none",
    "head.clf.table=momentum",
    "head.clf.table_dtype=bfloat16",
    "optim.clip=0",
)


@dataclass(frozen=True)
class Row:
    """A step."""

    name: str
    queries: int
    of_queries: Lengths
    pool: int  # 0: all labels
    of_labels: Lengths | None
    known: int  # labels of the set
    width: int  # of the heads
    overrides: tuple[str, ...] = ()

    def settings(self) -> list[str]:
        """The overrides that make a run take such steps."""
        longest = max(self.of_queries[1], self.of_labels[1] if self.of_labels else 0)
        chosen = [f"sampler.batch_size={self.queries}", f"encoder.max_length={longest}", f"head.clf.dim={self.width}"]
        if self.pool:
            chosen += [f"pool.cap={self.pool}", f"head.de.dim={self.width}"]
        else:
            chosen += TABLE_OF_ALL
        return [*chosen, *self.overrides]


@dataclass(frozen=True)
class Size:
    """What is measured, and with which network."""

    network: Network
    rows: tuple[Row, ...]
    steps: int
    product: int  # rows and columns of the products that peaks are measured with
    losses: tuple[str, ...] = ()  # that are compared; empty: all
    tables: tuple[str, ...] = TABLES  # whose updates are compared
    trained: int = 20  # steps whose losses are compared


TITLE, LONG = (13, 32), (128, 128)
FULL = Size(
    Network(),
    (
        Row("titles, 1098 and 3000", 1098, TITLE, 3000, TITLE, 100_000, 384),
        Row("titles, padded", 1098, TITLE, 3000, TITLE, 100_000, 384, ("encoder.packing=off",)),
        Row("131K, 576 long queries and 3000 titles", 576, LONG, 3000, TITLE, 100_000, 384),
        Row("576 and 3000, all long", 576, LONG, 3000, LONG, 20_000, 384, (f"encode.chunk={CHUNK}",)),
        Row("all of 1.3M labels, BCE", 1024, TITLE, 0, None, 1_305_265, 768),
    ),
    steps=20,
    product=8192,
)
SMALL = Size(
    Network(2, 64, 4, 500, 64),
    (
        Row("titles", 64, TITLE, 150, TITLE, 1000, 32),
        Row("titles, padded", 64, TITLE, 150, TITLE, 1000, 32, ("encoder.packing=off",)),
        Row("long queries", 32, (48, 48), 150, TITLE, 1000, 32),
        Row("all labels, BCE", 64, TITLE, 0, None, 20_000, 32),
    ),
    steps=3,
    product=1024,
)


@dataclass(frozen=True)
class Measured:
    """A row, or why there is none; times in ms, sizes in bytes."""

    name: str
    variant: str
    ms: float | None = None
    roof_ms: float | None = None  # with the measured peaks
    fraction: float | None = None  # of the roof
    shares: dict[str, float] | None = None  # of the time of a step
    launches: int | None = None  # kernels of a step; on a card only
    peak_bytes: int | None = None  # on a card only: a process keeps what earlier rows left
    predicted_bytes: int | None = None
    tokens: int | None = None  # that a step encodes, padding included
    skipped: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def rows(folder: Path, device: torch.device, half: bool, size: Size, speeds: Speeds) -> Iterator[Measured]:
    """All rows of a size, the first and the last one with and without what may make it faster."""
    network = folder / "network"
    size.network.save(network)
    for row in size.rows:
        yield measured(row, DEFAULT, network, device, half, size, speeds)
    if device.type == "cuda":
        first = replace(size.rows[0], overrides=("compile=true",))
        yield measured(first, COMPILED, network, device, half, size, speeds)
        if half:  # the kernels take nothing else
            last = replace(size.rows[-1], overrides=(*size.rows[-1].overrides, FUSED))
            yield measured(last, FUSED, network, device, half, size, speeds)
    else:
        with kernels(False):
            yield measured(size.rows[0], PLAIN, network, device, half, size, speeds)


def measured(
    row: Row, variant: str, network: Path, device: torch.device, half: bool, size: Size, speeds: Speeds
) -> Measured:
    """A row, unless memory or anything else does not allow it."""
    try:
        return _measured(row, variant, network, device, half, size, speeds)
    except Exception as error:  # whatever kernels and compilers raise must not end the other rows
        lines = str(error).strip().splitlines() or [""]
        return Measured(row.name, variant, skipped=f"{type(error).__name__}: {lines[0]}")
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(
    row: Row, variant: str, network: Path, device: torch.device, half: bool, size: Size, speeds: Speeds
) -> Measured:
    made = synthetic.data(4 * row.queries, row.known, row.of_queries, row.of_labels, size.network.words)
    trainer = synthetic.trainer(network, made, str(device), *row.settings())
    first = next(synthetic.batches(trainer, 1))
    predicted = predict(trainer, first, half)
    free = sizes.device_free(device)
    if free is not None and predicted > SPARE * free:
        if not any(word.startswith("encode.chunk") for word in row.overrides):
            del trainer, first
            chunked = replace(
                row, name=f"{row.name}, in chunks of {CHUNK}", overrides=(*row.overrides, f"encode.chunk={CHUNK}")
            )
            return _measured(chunked, variant, network, device, half, size, speeds)
        reason = f"{sizes.size(predicted)} is predicted, {sizes.size(free)} is free"
        return Measured(row.name, variant, predicted_bytes=predicted, skipped=reason)
    work = work_of(trainer, first, row, size.network)
    least = (work if half else work.in_single()).seconds(speeds)
    with numerics(trainer.device, trainer.settings.deterministic, trainer.settings.tf32):  # as in a run
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = timed(trainer, size.steps)
        peak = int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
        parts, kernels_of_a_step = shares(trainer, max(size.steps // 4, 1)), launches(trainer)
    return Measured(
        row.name,
        variant,
        ms=1e3 * seconds,
        roof_ms=1e3 * least,
        fraction=least / seconds,
        shares=parts,
        launches=kernels_of_a_step,
        peak_bytes=peak,
        predicted_bytes=predicted,
        tokens=sum(texts * length for texts, length in lengths(first)),
    )


def lengths(prepared: Any) -> list[tuple[int, int]]:
    """(texts, tokens of each) that a step encodes, padding included."""
    return [pair for chunk in (*prepared.queries, *prepared.labels) for pair in lengths_of(chunk)]


def lengths_of(chunk: Any) -> Iterable[tuple[int, int]]:
    found: Iterable[tuple[int, int]] = chunk.tokens["groups" if "groups" in chunk.tokens else "blocks"]
    return found


def work_of(trainer: Any, prepared: Any, row: Row, network: Network) -> Work:
    """What the roof counts of a step."""
    cost = network.cost(sum(x.numel() for x in trainer.model.encoder.parameters()))
    encoder = roof.encoding(cost, lengths(prepared)) + roof.optimizer(cost)
    if not row.pool:
        return encoder + roof.all_labels(len(prepared.batch.rows_Q), row.known, row.width)
    return encoder + roof.pool_heads(len(prepared.batch.rows_Q), len(prepared.batch.labels_P), row.width)


def predict(trainer: Any, prepared: Any, half: bool) -> int:
    """Bytes at the peak of a step: parts whose sizes are known, and what layers keep of the tokens of a chunk."""
    place: sizes.Place = "host" if trainer.device.type == "cpu" else "device"
    known = [each for each in sizes.memory_parts(trainer) if each.name in HELD and each.place == place]
    chunks = [*prepared.queries, *prepared.labels]
    tokens = [sum(texts * length for texts, length in lengths_of(chunk)) for chunk in chunks]
    # Sides that are a single chunk keep their graphs together; otherwise there is one chunk's at a time.
    together = sum(tokens) if max(len(prepared.queries), len(prepared.labels)) <= 1 else max(tokens)
    return sizes.peak(known, place) + int(trainer.model.encoder.graph_bytes(together, half))


def timed(trainer: Any, number: int) -> float:
    """Seconds of a step: the mean of several in a row, each prepared during the one before."""
    warm_up = 5 if trainer.device.type == "cuda" else 2  # kernels are compiled, and memory is taken
    started, training = 0.0, synthetic.Training(trainer)
    for step, prepared in enumerate(synthetic.batches(trainer, warm_up + number)):
        if step == warm_up:
            wait(trainer.device)
            started = time.perf_counter()
        training.step(step, prepared)
    training.finish()
    wait(trainer.device)
    return (time.perf_counter() - started) / number


def shares(trainer: Any, number: int) -> dict[str, float]:
    """Parts of the time of a step. Each waits for the device, so these steps are slower."""
    profile = Profile(trainer.device)
    trainer.part = profile.part
    try:
        for step, prepared in enumerate(synthetic.batches(trainer, number + 1)):
            if step == 0:  # nothing is prepared during the step before it
                profile.seconds = dict.fromkeys(profile.seconds, 0.0)
            with profile.part("step"):
                trainer.step(step, prepared)
    finally:
        trainer.part = nullcontext
    whole = profile.seconds["step"] + profile.seconds[PLAN_WAIT]
    found = {name: profile.seconds[name] / whole for name in OF_A_STEP}
    return found | {"other": 1.0 - sum(found.values())}


def launches(trainer: Any) -> int | None:
    """Kernels of a step; None on a CPU."""
    if trainer.device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    prepared = next(synthetic.batches(trainer, 1))
    wait(trainer.device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        trainer.step(0, prepared)
        wait(trainer.device)
    events = [each for each in found.events() or () if not getattr(each, "is_user_annotation", False)]
    return kernels_among([(str(each.device_type), each.name) for each in events])


def kernels_among(events: Sequence[tuple[str, str]]) -> int:
    """Of (device, name) of all events, those that are kernels."""
    return sum("CUDA" in device and not name.startswith(NO_KERNELS) for device, name in events)
