"""What a run holds on a GPU, computed from sizes, and the chunk that fits; tests/cuda checks it with a ledger."""

from __future__ import annotations

from collections.abc import Iterator

from xmclab.api import Ragged
from xmclab.objectives.engine import block_sizes
from xmclab.plan.indexes.exact import ELSEWHERE
from xmclab.runs import sizes
from xmclab.runs.sizes import FLOAT, LOWER_STEP, Part, Phase
from xmclab.system import usage
from xmclab.training.trainer import Trainer

USABLE = 0.9  # of a card's memory: the rest goes to the allocator, and to libraries
SCORE_COPIES = 2  # of a block: scores, exponentials
ROW_COPIES = 5  # of the rows of a block: values, gradient, what the update makes of them
GRAPHS = "activations"
DRAWN = 24  # bytes of a number whose dropout is drawn by keys, where there is no Triton


def parts_on_card(
    trainer: Trainer, validates: bool = False, chunk: int | None = None, half: bool | None = None
) -> list[Part]:
    """Everything that can be computed, as if the trainer were on a card.

    Args:
        chunk: texts encoded at once, 0: all; by default, the trainer's.
        half: whether products are in half precision; by default, as on a card that has it.
    """
    half = trainer.settings.precision != "float32" if half is None else half
    found = sizes.memory_parts(trainer, validates, "device")
    parts = [part for part in found if part.name not in ("score block", "gradients of weights")]
    gradients = sum(part.bytes for part in found if part.name == "gradients of weights")
    of_step = _step_parts(trainer, trainer.chunk if chunk is None else chunk, gradients, half)
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


def _step_parts(trainer: Trainer, chunk: int, gradients: int, half: bool) -> Iterator[Part]:
    """What a step holds besides weights, where it holds most: at the end of its forward pass, or right after."""
    encoder = trainer.model.encoder
    if half:
        tables = {id(table.weight) for table in trainer.model.tables()}
        matrices = (each for each in encoder.parameters() if each.ndim > 1 and each.requires_grad)
        cast = sum(each.numel() * 2 for each in matrices if id(each) not in tables)
        yield Part("weights in half precision", cast, "device", "training", lower="a smaller encoder")
    together, last = tokens_at_once(trainer, chunk)
    graph = encoder.graph_bytes(together, half)
    yield Part(GRAPHS, graph, "device", "training", lower=LOWER_STEP)
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


def fitting_chunk(trainer: Trainer, room: float, validates: bool = False, half: bool | None = None) -> int | None:
    """The most texts encoded at once that fit into this many bytes, a power of two; 0: all; None: not even one."""
    chunk = 1 << (max(sizes.step_sizes(trainer)).bit_length() - 1)
    if sizes.peak(parts_on_card(trainer, validates, 0, half), "device") <= room:
        return 0
    while chunk and sizes.peak(parts_on_card(trainer, validates, chunk, half), "device") > room:
        chunk //= 2
    return chunk or None


def fit_chunk(trainer: Trainer, validates: bool = False) -> str:
    """What `encode.chunk=auto` stands for: the largest chunk that fits, and graphs kept in the rest of the room.

    Returns:
        What was chosen; empty if all texts fit at once, as they do where nothing is known of the encoder or the memory.
    """
    free = sizes.device_free(trainer.device) if trainer.device.type == "cuda" else usage.free()
    if trainer.settings.encode.chunk != "auto" or trainer.fixed or free is None:
        return ""
    held = sum(part.bytes for part in sizes.model_parts(trainer.model) if part.held)
    room, half = USABLE * (free + held), trainer.precision.half
    chunk = fitting_chunk(trainer, room, validates, half)
    trainer.chunk = 1 if chunk is None else chunk
    if not trainer.chunk:
        return ""
    parts = [part for part in parts_on_card(trainer, validates, half=half) if part.name != GRAPHS]
    trainer.graph_room = max(room - sizes.peak(parts, "device"), 0.0)
    return f"encode.chunk=auto: {trainer.chunk:,} texts at once, {sizes.size(trainer.graph_room)} for their graphs"
