"""What a run will hold on a card that is not here: computed from sizes, and checked against a ledger by tests/cuda."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from xmclab.api import Ragged
from xmclab.data import with_reader
from xmclab.data.tokens import OFF, Tokeniser
from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.host.config import Config
from xmclab.objectives.engine import block_sizes
from xmclab.plan.indexes.exact import ELSEWHERE
from xmclab.runs import presets, sizes
from xmclab.runs.plan import Plan, files_of
from xmclab.runs.sizes import FLOAT, LOWER_STEP, Part, Phase
from xmclab.system import usage
from xmclab.system.cards import CARDS, Card
from xmclab.system.console import Console
from xmclab.training.trainer import Trainer

GIB = 1 << 30
USABLE = 0.9  # of a card's memory: the rest goes to the allocator, and to libraries
SCORE_COPIES = 2  # of a block: scores, exponentials
ROW_COPIES = 5  # of the rows of a block: values, gradient, what the update makes of them
DRAWN = 24  # bytes of a number whose dropout is drawn by keys


def card_of(name: str) -> Card:
    """A known card.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in CARDS:
        raise ConfigError(Problem(f"--device {name}", "unknown card", did_you_mean(name, CARDS)))
    return CARDS[name]


def plan_for(config: Config, card: Card, console: Console | None = None, folder: Path | None = None) -> Plan:
    """Memory and disk of a run on a card; its time would have to be measured there.

    Args:
        console: where progress goes; nowhere by default.
        folder: the run folder to come, for the disk that it is on; `runs/...` by default.
    """
    folder = folder or Path("runs")
    config = with_reader(dataclasses.replace(config, settings=dataclasses.replace(config.settings, device="cpu")))
    opened = open_with_validation(config)
    presets.refuse_other_sizes(config, opened.whole)
    tokeniser = Tokeniser(dataclasses.replace(config.settings.data, cache=OFF), console)
    trainer = Trainer(config, opened.training, tokeniser, prepares=False)
    parts = parts_on_card(trainer, opened.validation is not None)
    disk = files_of(trainer)
    room = {"host": usage.free(), "device": round(card.memory_gib * GIB), "disk": sizes.disk_free(folder)}
    warnings = [
        verdict(trainer, parts, card),
        sizes.missing_disk(sum(file.bytes for file in disk), room["disk"], folder),
    ]
    data = opened.whole
    return Plan(
        recipe=config.recipe,
        data={
            "name": data.name,
            "train": len(opened.training.train),
            "test": len(data.test),
            "labels": data.num_labels,
        },
        device=card.name,
        epochs=config.settings.epochs,
        steps=trainer.steps,
        memory=tuple(parts),
        free=room,
        training=(),
        others=(),
        disk=tuple(disk),
        folder=folder,
        warnings=tuple(filter(None, warnings)),
        texts_at_once=sizes.texts_at_once(trainer),
    )


def parts_on_card(trainer: Trainer, validates: bool = False, chunk: int | None = None) -> list[Part]:
    """Everything that can be computed, as if the trainer were on a card.

    Args:
        chunk: texts encoded at once, 0: all; by default, the trainer's.
    """
    found = sizes.memory_parts(trainer, validates, "device")
    parts = [part for part in found if part.name not in ("score block", "gradients of weights")]
    gradients = sum(part.bytes for part in found if part.name == "gradients of weights")
    of_step = _step_parts(trainer, trainer.chunk if chunk is None else chunk, gradients)
    return [*parts, *(part for part in (*of_step, *_search_parts(trainer)) if part.bytes)]


def _search_parts(trainer: Trainer) -> Iterator[Part]:
    """Blocks of scores in searches."""
    index = trainer.config.make("index")
    queries = getattr(index, "query_block", 0) or ELSEWHERE[0]
    labels = getattr(index, "label_block", 0) or ELSEWHERE[1]
    searches: list[tuple[Phase, int]] = [("evaluation", len(trainer.data.test)), ("refresh", len(trainer.data.train))]
    for phase, number in searches:
        block = SCORE_COPIES * FLOAT * min(queries, number) * min(labels, trainer.data.num_labels)
        if phase == "evaluation" or (trainer.mines and sizes.refreshes(trainer)):
            yield Part("scores of a search", block, "device", phase, lower="index.query_block or index.label_block")


def _step_parts(trainer: Trainer, chunk: int, gradients: int) -> Iterator[Part]:
    """What a step holds besides weights, where it holds most: at the end of its forward pass, or right after."""
    encoder, half = trainer.model.encoder, trainer.settings.precision != "float32"
    if half:
        tables = {id(table.weight) for table in trainer.model.tables()}
        matrices = (each for each in encoder.parameters() if each.ndim > 1 and each.requires_grad)
        cast = sum(each.numel() * 2 for each in matrices if id(each) not in tables)
        yield Part("weights in half precision", cast, "device", "training", lower="a smaller encoder")
    together, last = tokens_at_once(trainer, chunk)
    graph = encoder.graph_bytes(together, half)
    yield Part("activations", graph, "device", "training", lower=LOWER_STEP)
    queries, pool = sizes.step_sizes(trainer)
    block = queries * pool
    kept, cells = block_sizes("cuda")
    if block > kept and _streams(trainer):
        block = max(cells, queries)
    widest = max((table.weight.shape[1] for table in trainer.model.tables()), default=0) if trainer.streaming else 0
    scores = FLOAT * (SCORE_COPIES * block + ROW_COPIES * widest * (block // queries))
    most = max(scores, gradients, DRAWN * encoder.width * last if graph else 0)
    yield Part("scores, draws of dropout or gradients", most, "device", "training", lower=LOWER_STEP)


def _streams(trainer: Trainer) -> bool:
    """Whether scores are computed in blocks."""
    return bool(trainer.streaming) or all(objective.has_closed_form for objective in trainer.objectives.values())


def tokens_at_once(trainer: Trainer, chunk: int) -> tuple[int, int]:
    """The tokens of the texts whose graphs are held together, and those of them that are encoded last."""
    if trainer.fixed:
        return 0, 0
    queries, pool = sizes.step_sizes(trainer)
    labels = pool if trainer.reads_labels else 0
    of_queries, of_labels = (
        round(min(texts, chunk or texts) * _length(tokens))
        for texts, tokens in ((queries, trainer.query_tokens), (labels, trainer.label_tokens))
    )
    last = of_labels or of_queries
    whole = not chunk or chunk >= queries  # the queries keep their graph while labels are encoded
    return (of_queries + of_labels if whole else max(of_queries, of_labels)), last


def _length(tokens: Ragged) -> float:
    """Mean tokens of a text."""
    return len(tokens.ids) / max(len(tokens), 1)


def fitting_chunk(trainer: Trainer, card: Card, validates: bool = False) -> int | None:
    """The most texts encoded at once that fit, a power of two; 0: all; None: not even one."""
    room, chunk = USABLE * card.memory_gib * GIB, 1 << (max(sizes.step_sizes(trainer)).bit_length() - 1)
    if sizes.peak(parts_on_card(trainer, validates, 0), "device") <= room:
        return 0
    while chunk and sizes.peak(parts_on_card(trainer, validates, chunk), "device") > room:
        chunk //= 2
    return chunk or None


def verdict(trainer: Trainer, parts: list[Part], card: Card) -> str:
    """A warning if the run does not fit on the card, with what does; else nothing."""
    needed, room = sizes.peak(parts, "device"), card.memory_gib * GIB
    if needed <= USABLE * room:
        return ""
    fitting = fitting_chunk(trainer, card)
    lower = (
        sizes.remedies(parts, "device") if fitting is None else f"encode.chunk={fitting} fits (gradients stay exact)"
    )
    what = f"{sizes.size(needed)} is needed at the peak, of {sizes.size(room)} about {USABLE:.0%} can be used"
    return f"{card.name}: {what}; " + (f"lower {lower}" if fitting is None else lower)
