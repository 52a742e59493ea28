"""A classifier against all labels: blocks of its table are read, and updated as soon as their gradient is known.

Neither the score matrix nor the gradient of the table ever exists as a whole. Dropout of a row is keyed by its label:
the same in every pass, and for blocks of any size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from xmclab.api import Head, Kernels
from xmclab.host.config import Config
from xmclab.model.device import Precision
from xmclab.model.dropout import keyed, text_keys
from xmclab.model.model import Model
from xmclab.model.tables import RowOptimizer, RowTable, read, widened
from xmclab.objectives.engine import Engine
from xmclab.objectives.fused import FusedEngine, unfused
from xmclab.objectives.objective import Objective
from xmclab.objectives.products import add_product_, multiply
from xmclab.objectives.scores import Scores
from xmclab.objectives.truth import Truth

logger = logging.getLogger("xmclab.training")

Update = Callable[[slice, Tensor], None]  # (rows, their gradient)


def streams(head: Head, objective: Objective, weighted: bool) -> bool:
    """Whether a head is trained against all labels in blocks, without a score matrix."""
    closed = objective.has_weighted_closed_form if weighted else objective.has_closed_form
    return isinstance(head.label_rows, RowTable) and objective.needs_all and closed


class TableScores(Scores):
    """The scores of queries and the rows of a head's table; `dq_QD` and `square` are known after the first backward.

    Args:
        q_QD: query vectors.
        seed_for: seed of torch's generator for a block, from its first label.
        block: labels per block; default: by size.
        key_seed: of the keys of dropout by label; None: it draws from torch's generator.
        low: dtype of the operands of products, whose sums stay as they are; None: that of the queries.
    """

    def __init__(
        self,
        head: Head,
        q_QD: Tensor,
        seed_for: Callable[[int], int],
        block: int | None = None,
        key_seed: int | None = None,
        low: torch.dtype | None = None,
    ) -> None:
        assert isinstance(head.label_rows, RowTable), "streams() checks this first"
        self.head, self.table, self.seed_for, self.block = head, head.label_rows, seed_for, block
        self.key_seed = key_seed
        self.table.settle()
        self.q_QD = self.like = widened(q_QD.detach())
        self.low_QD = self.q_QD if low is None else q_QD.detach().to(low)
        self.labels, self.bound = range(len(self.table.weight)), head.score_bound
        self.dq_QD = torch.zeros_like(self.q_QD)
        self.square = self.q_QD.new_zeros(())  # squared norm of the table's gradient
        self.update: Update | None = None
        self.factor: Tensor | None = None  # of the gradient that `update` gets
        self.repeated = False  # the pass only makes the updates

    def write(self, block: slice, scale: float, out_QB: Tensor) -> None:
        q_QD, z_BD = self.operands(block)
        multiply(q_QD, z_BD.T, out_QB, scale)

    def operands(self, block: slice) -> tuple[Tensor, Tensor]:
        """Rows to vectors, with the graph between them."""
        self.rows_BD = widened(read(self.table.weight.detach(), block)).requires_grad_()
        if self.head.training:
            torch.manual_seed(self.seed_for(block.start))
        with keyed(self._keys(block)):
            self.z_BD = self.head.of_rows(self.rows_BD)
        self.low_BD = self.z_BD.detach().to(self.low_QD.dtype)
        return self.low_QD, self.low_BD

    def _keys(self, block: slice) -> Tensor | None:
        if self.key_seed is None:
            return None
        return text_keys(self.key_seed, torch.arange(block.start, block.stop, device=self.q_QD.device))

    def backward(self, block: slice, g_QB: Tensor) -> None:
        """Add to the gradient of the queries; pass that of the rows to `update`."""
        g_QB = g_QB.to(self.low_QD.dtype)
        dz_BD = multiply(g_QB.T, self.low_QD, torch.empty_like(self.z_BD))
        gradient_BD = dz_BD if self.z_BD is self.rows_BD else torch.autograd.grad(self.z_BD, self.rows_BD, dz_BD)[0]
        if not self.repeated:
            add_product_(self.dq_QD, g_QB, self.low_BD)
            self.square += gradient_BD.flatten().dot(gradient_BD.flatten())
        if self.factor is not None:
            gradient_BD.mul_(self.factor)
        if self.update:
            self.update(block, gradient_BD)


def all_labels(
    head: Head,
    objective: Objective,
    q_QD: Tensor,
    truth: Truth,
    label_weight_L: Tensor | None,
    seed_for: Callable[[int], int],
    block: int | None = None,
    key_seed: int | None = None,
    low: torch.dtype | None = None,
    kernels: Kernels | None = None,
) -> tuple[Engine, TableScores]:
    """The first pass of a head over all labels, by these kernels if they serve."""
    scores = TableScores(head, q_QD, seed_for, block, key_seed, low)
    given = scores, truth, objective.directions, label_weight_L, objective.share
    fused = kernels and not left_to_torch(kernels, objective, scores.low_QD)
    engine = FusedEngine(kernels, *given) if kernels and fused else Engine(*given)
    engine.observe()
    return engine, scores


def left_to_torch(kernels: Kernels | None, objective: Objective, q_QD: Tensor) -> str:
    """Why kernels do not compute the passes of a head; empty: they do."""
    return unfused(objective.directions) or kernels.declines(q_QD) if kernels else "there are none"


def streaming(
    config: Config, model: Model, objectives: Mapping[str, Objective], weighted: bool, precision: Precision
) -> tuple[set[str], Callable[..., tuple[Engine, TableScores]]]:
    """The heads that are trained against all labels in blocks, and their `all_labels`, with the kernels of the config.

    Logs the heads for which the config asks for kernels in vain.
    """
    heads = {name for name, objective in objectives.items() if streams(model.head(name), objective, weighted)}
    kernels: Kernels | None = config.make("kernels")
    q_QD = torch.empty(0, 0, dtype=precision.dtype, device=precision.device)
    for name, objective in objectives.items() if kernels else ():
        why = left_to_torch(kernels, objective, q_QD) if name in heads else "it is not trained on blocks of all labels"
        if why:
            logger.info("kernels: torch computes the scores of head.%s: %s", name, why)
    return heads, partial(all_labels, low=precision.low, kernels=kernels)


class StreamedRows:
    """The updates of streamed tables in a step: immediate, or deferred until the norm of the whole gradient is known.

    Immediate updates save a pass, but non-finite values must be rejected beforehand, and clipping is by a norm that is
    known already: that of the step before.

    Args:
        clips: whether gradients are clipped.
        by_previous: as in the step before; the first one is deferred.
    """

    def __init__(self, optimizer: RowOptimizer, clips: bool, by_previous: bool = False) -> None:
        self.optimizer, self.clips, self.by_previous = optimizer, clips, by_previous
        self.previous: Tensor | None = None  # factor by which the step before was clipped
        self.steps: list[tuple[Engine, TableScores]] = []  # of the current step, a head each
        self.updated = False  # whether the current step has begun to update a table

    @property
    def at_once(self) -> bool:
        """Whether the updates of this step are immediate."""
        return not self.clips or (self.by_previous and self.previous is not None)

    def backward(self, engine: Engine, scores: TableScores, known: Sequence[Tensor] = ()) -> None:
        """Compute the values, the gradient of the queries, and the norm or the update of the table.

        Args:
            known: what else of the step is known; unless it is finite, nothing is updated.
        """
        if self.at_once and self._may_update(finite(engine, scores, known)):
            scores.update = partial(self.optimizer.update_block, scores.table)
            scores.factor = self.previous if self.by_previous else None
            self.updated = True
        engine.backward()
        self.steps.append((engine, scores))

    def _may_update(self, finite: Tensor) -> bool:
        """Whether to update; where the host must not wait, yes, and the update moves nothing unless it may."""
        if self.optimizer.moves is None:
            return finite.is_meta or bool(finite)
        self.optimizer.moves = self.optimizer.moves * finite
        return True

    def norms(self) -> list[Tensor]:
        """The gradient norm of each table."""
        return [scores.square.sqrt() for _, scores in self.steps]

    def finish(self, factor: Tensor | None) -> None:
        """Make the deferred updates, with gradients times `factor`."""
        for engine, scores in [] if self.at_once else self.steps:
            scores.update = partial(self.optimizer.update_block, scores.table)
            scores.factor, scores.repeated = factor, True
            engine.backward()
        self.forget()

    def forget(self) -> None:
        """Drop what the current step has collected."""
        self.steps.clear()
        self.updated = False


def finite(engine: Engine, scores: TableScores, others: Sequence[Tensor] = ()) -> Tensor:
    """Whether the query vectors, the values after the first pass and others are. Rows are, because every update was."""
    known = [*(parts[0] for parts in engine.found if parts), *others]
    return torch.stack([x.isfinite().all() for x in (scores.q_QD, *known)]).all()
