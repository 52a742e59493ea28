"""What a run holds in memory and writes to disk, computed from the sizes of its trainer; nothing is allocated."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import scipy.sparse as sp
import torch
from torch import Tensor

from xmclab.api import Dataset, Ragged, Split
from xmclab.data.texts import PackedTexts
from xmclab.errors import MemoryLimitError, Problem, StorageError
from xmclab.host.config import Config
from xmclab.host.schema import rhythm
from xmclab.model.device import pick_device
from xmclab.model.model import Model, named
from xmclab.model.tables import RowTable
from xmclab.objectives.engine import block_sizes
from xmclab.plan.indexes.auto import LISTS_FROM
from xmclab.plan.miners.ann import RESULTS_AT_ONCE
from xmclab.system import usage
from xmclab.training.trainer import Trainer

Place = Literal["host", "device"]  # on a CPU they are one, and everything is on the host
Phase = Literal["always", "start", "training", "refresh", "evaluation", "baselines"]
FLOAT, ID = 4, 8
COPY = "checkpoint copy"
UNITS = ("B", 0), ("KiB", 0), ("MiB", 1), ("GiB", 2), ("TiB", 2)  # with the digits that are shown

LOWER_TABLES = (
    "head.clf.table_dtype=bfloat16, head.clf.table=adagrad or sgd, encoder.table=adagrad or sgd, or a smaller dim"
)
LOWER_STEP = "encode.chunk (gradients stay exact), pool.cap or sampler.batch_size"
LOWER_VECTORS = "the dim of the heads"
LOWER_COPY = "checkpoint.every=0, or the sizes above"
LOWER_DISK = "keep_model=false, checkpoint.keep, or the same as for memory; or choose another disk by --out"


@dataclass(frozen=True)
class Part:
    """Something that a run holds in memory."""

    name: str
    bytes: int
    place: Place = "host"
    phase: Phase = "always"  # when it is held
    held: bool = False  # since the trainer was built
    lower: str = ""  # what to change for less of it


def peak(parts: Iterable[Part], place: Place) -> int:
    """The most that is held at once: what is always held, and the largest phase."""
    phases: dict[str, int] = {}
    for part in parts:
        if part.place == place:
            phases[part.phase] = phases.get(part.phase, 0) + part.bytes
    return phases.pop("always", 0) + max(phases.values(), default=0)


def largest_phase(parts: Iterable[Part], place: Place) -> str:
    """The phase of that peak; empty if nothing is held for a time only."""
    phases: dict[str, int] = {}
    for part in parts:
        if part.place == place and part.phase != "always":
            phases[part.phase] = phases.get(part.phase, 0) + part.bytes
    return max(phases, key=lambda phase: phases[phase], default="")


# Of a model


def nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def table_state_bytes(table: RowTable) -> int:
    """What the optimizer keeps for the rows of a table, in float32 at least; see `RowOptimizer`."""
    if not table.weight.requires_grad:
        return 0
    rows, width = table.weight.shape
    adam, plain = 2 * rows * width, rows * width
    numbers = {"adamw": adam, "dense_adamw": adam, "momentum": plain, "adagrad": rows, "sgd": 0}[table.optimizer]
    return numbers * max(table.weight.element_size(), FLOAT)


def tables_of(module: torch.nn.Module) -> list[RowTable]:
    return [each for each in module.modules() if isinstance(each, RowTable)]


def model_parts(module: torch.nn.Module, place: Place = "host", held: bool = True) -> list[Part]:
    """Weights and tables of a model or head, and the state of their optimizers."""
    tables = tables_of(module)
    rows = {id(table.weight) for table in tables}
    dense = [weight for weight in module.parameters() if id(weight) not in rows]
    trained = nbytes(weight for weight in dense if weight.requires_grad)
    table_bytes = nbytes(table.weight for table in tables)
    return [
        Part("weights", nbytes(dense) + nbytes(module.buffers()), place, held=held, lower="a smaller encoder"),
        Part("tables", table_bytes, place, held=held, lower=LOWER_TABLES),
        Part("optimizer of weights", 2 * trained, place, lower="a smaller encoder"),
        Part("optimizer of tables", sum(map(table_state_bytes, tables)), place, lower=LOWER_TABLES),
        Part("gradients of weights", trained, place, "training", lower="a smaller encoder"),
    ]


def model_bytes(model: Model) -> int:
    """Bytes of `model.safetensors`: all parameters and buffers."""
    return nbytes(model.state_dict().values())


def optimizer_bytes(model: Model) -> int:
    """What the optimizers keep once every parameter was updated."""
    return sum(part.bytes for part in model_parts(model) if part.name.startswith("optimizer"))


# Of a trainer


def view_width(trainer: Trainer) -> int:
    """Numbers of a vector in a view, a bias included."""
    return search_width(trainer, trainer.view_head)


def search_width(trainer: Trainer, name: str) -> int:
    head: Any = trainer.model.head(name)
    extra = getattr(head, "bias", "none") != "none" or bool(getattr(head, "popularity", 0))
    own = 0 if getattr(head, "project_in", "always") == "training" else getattr(head, "dim", 0)
    return int(own or trainer.model.encoder.width) + extra


def refreshes(trainer: Trainer) -> int:
    """How many refreshes fall into the run."""
    return len(trainer.refreshes.before)


def view_bytes(trainer: Trainer) -> int:
    """The vectors of all training queries and labels."""
    return (len(trainer.data.train) + trainer.data.num_labels) * view_width(trainer) * FLOAT


def mined_bytes(trainer: Trainer) -> int:
    """The lists of mined negatives."""
    return len(trainer.data.train) * (trainer.mining_depth * FLOAT + ID) if trainer.mines else 0


def listed_bytes(trainer: Trainer) -> int:
    """The lists of negatives that are made before training: those of a file, or as deep as an option says."""
    if not trainer.draws_negatives or trainer.mines:
        return 0
    listed_NL, queries = trainer.data.train.candidates_NL, len(trainer.data.train)
    deep = queries * min(getattr(trainer.miner, "depth", 0), trainer.data.num_labels)
    entries = deep if listed_NL is None else listed_NL.nnz
    return entries * FLOAT + (queries * ID if entries else 0)


def state_bytes(trainer: Trainer) -> int:
    """Everything that a checkpoint holds: the model, its optimizers, and what the latest refresh left."""
    seen = view_bytes(trainer) + mined_bytes(trainer) if refreshes(trainer) else 0
    return model_bytes(trainer.model) + optimizer_bytes(trainer.model) + seen


def checkpoints(trainer: Trainer) -> int:
    """The most checkpoints that are on disk at a time; 0 if none are written."""
    settings = trainer.settings.checkpoint
    return settings.keep + 1 if any(rhythm(settings.every)) else 0


def memory_parts(trainer: Trainer, validates: bool = False, where: Place | None = None) -> list[Part]:
    """Everything that can be computed; what encoders and searches need on top is left to measurements.

    Args:
        validates: the run keeps the weights of its best epoch.
        where: where the run computes; by default, on the device of the trainer.
    """
    where = where or ("device" if trainer.device.type != "cpu" else "host")
    parts = [
        *model_parts(trainer.model, where),
        Part("texts and targets", data_bytes(trainer), held=True),
        Part("tokens", sum(map(ragged_bytes, (trainer.query_tokens, trainer.label_tokens))), held=True),
        Part("listed negatives", listed_bytes(trainer), lower="miner.depth, or a shorter file"),
        Part("score block", score_bytes(trainer), where, "training", lower=LOWER_STEP),
        *frozen_parts(trainer),
        *refresh_parts(trainer, where),
        *evaluation_parts(trainer, where),
    ]
    if validates:
        parts.append(Part("weights of the best epoch", model_bytes(trainer.model), lower=LOWER_TABLES))
    if checkpoints(trainer):
        copied = model_bytes(trainer.model) + optimizer_bytes(trainer.model)
        parts.append(Part(COPY, copied, lower=LOWER_COPY))
    return [part for part in parts if part.bytes]


def frozen_parts(trainer: Trainer) -> Iterator[Part]:
    """The vectors of all texts that a frozen encoder makes once."""
    if trainer.fixed:
        texts = sum(len(tokens) for tokens in trainer.fixed.tokens.values() if tokens is not None)
        yield Part("encoded texts", texts * trainer.model.encoder.width * FLOAT, lower="a smaller encoder")


def refresh_parts(trainer: Trainer, where: Place) -> Iterator[Part]:
    times = refreshes(trainer)
    if not times:
        return
    view, lower = view_bytes(trainer), LOWER_VECTORS
    yield Part("view", view, lower=lower)
    yield Part("mined negatives", mined_bytes(trainer), lower="pool.eta or refresh_every")
    if times > 1:
        yield Part("vectors of a new view", view, phase="refresh", lower=lower)
    if where == "device":
        yield Part("vectors of a view", view, where, "refresh", lower=lower)
    if trainer.mines:
        sizes = len(trainer.data.train), trainer.data.num_labels, view_width(trainer)
        yield Part("index for mining", index_bytes(trainer.config, *sizes), phase="refresh", lower=lower)
        found = min(len(trainer.data.train) * trainer.mining_depth, RESULTS_AT_ONCE)
        yield Part("search results", found * (ID + FLOAT), where, "refresh", lower="pool.eta or refresh_every")


def evaluation_parts(trainer: Trainer, where: Place) -> Iterator[Part]:
    """Vectors of all heads, of test queries, labels and, if the search reads them, training queries."""
    data, names = trainer.data, trainer.model.head_names
    width = sum(search_width(trainer, name) for name in names)
    vectors = (len(data.test) + data.num_labels) * width * FLOAT + 2 * searched_bytes(trainer)
    yield Part("vectors of the evaluation", vectors, where, "evaluation", lower=LOWER_VECTORS)
    yield Part("result of the evaluation", result_bytes(trainer), where, "baselines", lower="search=heads")
    index = index_bytes(trainer.config, len(data.test), data.num_labels, width)
    yield Part("index of the evaluation", index, phase="evaluation", lower=LOWER_VECTORS)
    yield Part("rankings", ranking_bytes(trainer), phase="evaluation", lower="evaluate.depth")


def ranking_bytes(trainer: Trainer) -> int:
    """The rankings of all searches, which are kept until the end."""
    names = trainer.config.make("search").names(trainer.model.head_names)
    return len(names) * len(trainer.data.test) * trainer.settings.evaluate.depth * (ID + FLOAT)


def result_bytes(trainer: Trainer) -> int:
    """What an evaluation leaves: its rankings and its search."""
    return ranking_bytes(trainer) + searched_bytes(trainer)


def searched_bytes(trainer: Trainer) -> int:
    """The vectors of training queries that a search keeps, if it reads them."""
    if not trainer.config.make("search").reads_training_queries:
        return 0
    return len(trainer.rows_N) * FLOAT * sum(search_width(trainer, name) for name in trainer.model.head_names)


def index_bytes(config: Config, queries: int, labels: int, width: int) -> int:
    """The copy of the label vectors in an index of faiss; exact search has none."""
    lists = config.choice("index") == "auto" and min(queries, labels) >= LISTS_FROM
    return labels * (width * FLOAT + ID) if lists or config.choice("index") == "faiss" else 0


def score_bytes(trainer: Trainer) -> int:
    """The largest block of scores of a step."""
    queries, pool = step_sizes(trainer)
    cells = queries * pool
    closed = trainer.streaming or all(objective.has_closed_form for objective in trainer.objectives.values())
    kept, block = block_sizes(trainer.device.type)
    return FLOAT * (cells if cells <= kept or not closed else max(block, queries))


def step_sizes(trainer: Trainer) -> tuple[int, int]:
    """The most queries and labels of a step."""
    settings, labels = trainer.settings, trainer.data.num_labels
    queries = min(getattr(trainer.sampler, "batch_size", len(trainer.rows_N)), len(trainer.rows_N))
    cap = settings.pool.cap or labels
    pool = labels if trainer.all_labels else min(queries * (settings.pool.beta + settings.pool.eta), cap, labels)
    return queries, pool


def texts_at_once(trainer: Trainer) -> int:
    """The most texts that a step encodes at once; 0 if it encodes none."""
    if trainer.fixed:
        return 0
    queries, pool = step_sizes(trainer)
    texts = max(queries, pool if trainer.reads_labels else 0)
    return min(trainer.chunk or texts, texts)


def data_bytes(trainer: Trainer) -> int:
    data = trainer.data
    exclude_NL = csr_bytes(trainer.exclude_NL)
    texts = sum(map(texts_bytes, (data.label_texts, data.label_names)))
    return texts + exclude_NL + sum(map(split_bytes, (data.train, data.test)))


def split_bytes(split: Split) -> int:
    matrices = csr_bytes(split.targets_NL) + csr_bytes(split.filter_NL)
    matrices += 0 if split.candidates_NL is None else csr_bytes(split.candidates_NL)
    return matrices + texts_bytes(split.texts) + texts_bytes(split.names)


def csr_bytes(x_NL: sp.csr_array) -> int:
    return int(x_NL.data.nbytes + x_NL.indices.nbytes + x_NL.indptr.nbytes)


def ragged_bytes(tokens: Ragged) -> int:
    return tokens.ids.nbytes + tokens.offsets.nbytes + (0 if tokens.weights is None else tokens.weights.nbytes)


def texts_bytes(texts: Any) -> int:
    """Eight bytes each for texts in a file, otherwise about their letters and the head of a string."""
    if isinstance(texts, PackedTexts):
        return ID * len(texts)
    sample = texts[: min(len(texts), 1000)] if isinstance(texts, list) else []
    return round(len(texts) * (ID + 49 + sum(map(len, sample)) / len(sample))) if sample else 0


# What there is, and what is missing


def device_free(device: torch.device) -> int | None:
    """Free memory of a GPU, with what torch holds of it without using it."""
    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def disk_free(folder: Path) -> int | None:
    """Free bytes where the folder is, or will be."""
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()), None)
    return None if there is None else shutil.disk_usage(there).free


def disk_bytes(trainer: Trainer) -> int:
    """The weights in the run folder, what the search keeps beside them, and the checkpoints."""
    kept = model_bytes(trainer.model) + searched_bytes(trainer) if trainer.settings.keep_model else 0
    return kept + checkpoints(trainer) * state_bytes(trainer)


def shortages(trainer: Trainer, folder: Path, validates: bool = False) -> list[str]:
    """Warnings about memory and disk that a run cannot do with, by arithmetic alone; usually none.

    Nothing is said where the system does not tell what is free.
    """
    new = needed_parts(memory_parts(trainer, validates))
    found = [missing(new, "host", usage.free()), missing(new, "device", device_free(trainer.device))]
    found.append(missing_disk(disk_bytes(trainer), disk_free(folder), folder))
    return list(filter(None, found))


def needed_parts(parts: Iterable[Part]) -> list[Part]:
    """Those still to be allocated that a run cannot do without: checkpoints are copied only if there is room."""
    return [part for part in parts if not part.held and part.name != COPY]


def missing(parts: list[Part], place: Place, room: int | None) -> str:
    """A warning if these parts do not fit, with what to lower."""
    needed = peak(parts, place)
    if room is None or needed <= room:
        return ""
    where = "memory" if place == "host" else "device memory"
    return f"{where}: at least {size(needed)} more is needed, {size(room)} is free; lower {remedies(parts, place)}"


def remedies(parts: Iterable[Part], place: Place) -> str:
    """What to lower for the largest of the parts that make the peak."""
    parts = list(parts)
    phases = "always", largest_phase(parts, place)
    counted = [part for part in parts if part.place == place and part.phase in phases and part.lower]
    counted.sort(key=lambda part: -part.bytes)
    return "; ".join(dict.fromkeys(f"{part.lower} ({part.name})" for part in counted[:2]))


def missing_disk(needed: int, room: int | None, folder: Path) -> str:
    if room is None or needed <= room:
        return ""
    return f"disk: {size(needed)} is needed at {folder}, {size(room)} is free; lower {LOWER_DISK}"


def refuse_full_disk(trainer: Trainer, folder: Path) -> None:
    """Refuse to train where not even the model and one checkpoint can be saved.

    Raises:
        StorageError: with the bytes needed and free.
    """
    needed = (model_bytes(trainer.model) if trainer.settings.keep_model else 0) + min(
        checkpoints(trainer), 1
    ) * state_bytes(trainer)
    free = disk_free(folder)
    if free is not None and needed > free:
        what = f"no room for the model and a checkpoint: {needed:,} bytes needed, {free:,} bytes free"
        raise StorageError(Problem(f"--out {folder}", what, f"free some space, or lower {LOWER_DISK}"))


def refuse_too_large(config: Config, data: Dataset) -> None:
    """Refuse heads whose rows cannot exist here, before they are allocated.

    Raises:
        MemoryLimitError: with the estimate, and what to lower.
    """
    device = pick_device(config.settings.device)
    room = usage.free() if device.type == "cpu" else device_free(device)
    try:
        width = config.make("encoder").width
    except (AttributeError, TypeError):  # known after `fit`
        width = 0
    parts: list[Part] = []
    with torch.device("meta"):
        for name in config.heads:
            head = config.make(f"head.{name}")
            with named(f"head.{name}"):
                head.build(width or getattr(head, "dim", 0) or 1, data.num_labels)
            parts += model_parts(head, held=False)
    needed = peak(parts, "host")
    if room is not None and needed > room:
        what = f"the heads alone need {size(needed)} for {data.num_labels} labels, {size(room)} is free"
        raise MemoryLimitError(Problem("out of memory", what, f"lower {remedies(parts, 'host')}"))


def size(number: float) -> str:
    """Bytes for people: 1.5 GiB."""
    power = min(int(math.log2(max(number, 1)) / 10), len(UNITS) - 1)
    unit, digits = UNITS[power]
    return f"{number / 1024**power:.{digits}f} {unit}"
