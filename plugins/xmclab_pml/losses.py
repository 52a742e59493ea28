"""A part for each loss of pytorch-metric-learning that takes pairs, made on demand.

Their loss runs on our scores, which take the place of its distances, and returns values of pairs, triplets or anchors;
these become values of pairs, and the reduction weighs them (their reducers are not used):

    a pair        its value; of a multi-class loss, the mean of an anchor's negative pairs is added to its positives
    a triplet     the mean over the triplets of a positive is the value of that positive
    an anchor     is the value of each of its positives, so that their mean is the anchor's
    the batch     is the value of each positive
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from xmclab.api import BinaryLoss, Loss, MultiClassLoss, option
from xmclab.errors import MemoryLimitError, PluginError, Problem
from xmclab_pml import LAWS_NOT_KEPT, LOSSES

try:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.miners import TripletMarginMiner

    from xmclab_pml.options import UNIT, Angle, allowed_distances, make_miner, make_theirs, option_fields, parameters
    from xmclab_pml.pairs import BYTES_PER_TRIPLET, MINERS, Pairs, Table
except ModuleNotFoundError as error:
    if error.name != "pytorch_metric_learning":
        raise
    hint = "pip install 'xmclab[pml]'"
    raise PluginError(Problem("plugin pml", "pytorch-metric-learning is not installed", hint)) from error

Found = Mapping[str, Mapping[str, Any]]  # what their loss returns: values, their indices and their kind

log = logging.getLogger("xmclab.losses")
GIB = 2**30
WORTH_SAYING = 1 / 16  # of the memory limit: above this, warn
BYTES_PER_PAIRING = 48  # of a positive pair with a negative pair
PAIRINGS_OF_A_CALL = 2**15  # more anchors at a time waste pairings, fewer take more calls


@dataclass
class Bridge(Loss):
    """A loss of theirs on scores."""

    theirs: ClassVar[type]
    angles: ClassVar[bool] = False  # whether it requires scores to be cosines

    temperature: float = option(1.0, "divides the scores; 1 leaves the head's cosines as they are", gt=0)
    miner: str | None = option(None, "selects pairs of the batch, such as 'MultiSimilarityMiner(epsilon=0.2)'")
    memory_limit: float = option(2.0, "GiB that triplets and the like may take; more is refused", gt=0)

    def __post_init__(self) -> None:
        self._theirs = make_theirs(self.theirs, self, Angle() if self.angles else None)
        self._miner = make_miner(self.miner, MINERS) if self.miner else None
        self._warned = False

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        table = Table.of(s_QP, y_QP)
        if self._miner is not None:
            if isinstance(self._miner, TripletMarginMiner):
                self._announce(table.mining_bytes, f"its miner lists {table.num_triplets:,} triplets")
            table = table.mine(self._miner, self.temperature)
        # Keeps the graph even if there is nothing to sum.
        return self.values(table, y_QP) + 0 * table.s_QP

    def values(self, table: Table, y_QP: Tensor) -> Tensor:
        """l_QP from what their loss returns."""
        l_QP = torch.zeros_like(table.s_QP)
        for found in self.ask(table).values():
            if not isinstance(found["losses"], Tensor):
                continue  # their zero
            value_X, where = found["losses"].flatten(), found["indices"]
            of = found["reduction_type"]
            if of == "pos_pair":
                l_QP = l_QP.index_put(tuple(where), value_X, accumulate=True)
            elif of == "neg_pair":
                l_QP = l_QP + _mean(value_X, where[:1], l_QP[:, 0]).unsqueeze(1)
            elif of == "triplet":
                l_QP = l_QP + _mean(value_X, where[:2], l_QP)
            elif of == "element":
                l_QP = l_QP + torch.zeros_like(l_QP[:, 0]).index_put((where,), value_X).unsqueeze(1)
            else:
                l_QP = l_QP + value_X
        return l_QP

    def ask(self, table: Table) -> Found:
        """Their values for the pairs of a table."""
        found: Found = self._theirs.loss_method(self._theirs.distance(table.s_QP), table.pairs)
        return found

    def _announce(self, needed: int, what: str) -> None:
        """Warn if much memory will be needed, and refuse if it is too much."""
        message = f"{what}: {needed / GIB:.2g} GiB"
        where = f"loss pml.{self.theirs.__name__}"
        if needed > self.memory_limit * GIB:
            hint = "lower sampler.batch_size or pool.cap, mine fewer with miner=, or raise memory_limit"
            if "triplets_per_anchor" in parameters(self.theirs):
                hint = f"draw some with triplets_per_anchor=, {hint}"
            raise MemoryLimitError(
                Problem(where, f"{message} exceeds its memory_limit of {self.memory_limit:g} GiB", hint)
            )
        if needed > WORTH_SAYING * self.memory_limit * GIB and not self._warned:
            log.warning("%s: %s", where, message)
            self._warned = True


def _mean(value_X: Tensor, where: tuple[Tensor, ...], like: Tensor) -> Tensor:
    """The means of the values at each place, 0 where there is none."""
    total = torch.zeros_like(like).index_put(where, value_X, accumulate=True)
    count = torch.zeros_like(like).index_put(where, torch.ones_like(value_X), accumulate=True)
    return total / count.clamp(min=1)


@dataclass
class OfAnchors(Bridge, MultiClassLoss):
    """A loss that takes the matrix, or pairs one by one."""


@dataclass
class OfCells(Bridge, BinaryLoss):
    """A loss with a value for each positive and each negative; between them, for a target between 1 and 0."""

    def values(self, table: Table, y_QP: Tensor) -> Tensor:
        if table.mined is None:
            table = Table(table.s_QP, table.positive_QP, (table.positive_QP | table.negative_QP) & (y_QP < 1))
        l_QP = torch.zeros_like(table.s_QP)
        for found in self.ask(table).values():
            if isinstance(found["losses"], Tensor):
                where = tuple(found["indices"])
                share_X = y_QP[where] if found["reduction_type"] == "pos_pair" else 1 - y_QP[where]
                l_QP = l_QP.index_put(where, share_X * found["losses"], accumulate=True)
        return l_QP


@dataclass
class OfPairings(Bridge, MultiClassLoss):
    """A loss that compares each positive pair with each negative pair, a few anchors at a time."""

    def ask(self, table: Table) -> Found:
        a1, p, a2, n = table.pairs
        met_E = table.negatives_Q[a1] > 0
        a1, p = a1[met_E], p[met_E]
        anchors = len(table.s_QP)
        per_anchor = max(len(a1) * len(a2) / anchors**2, 1)
        size = min(max(int((PAIRINGS_OF_A_CALL / per_anchor) ** 0.5), 1), anchors)
        counts = (torch.bincount(a1, minlength=anchors), table.negatives_Q)
        positives, negatives = (_in_blocks(count_Q, size) for count_Q in counts)
        pairings = sum(map(operator.mul, positives, negatives))
        self._announce(BYTES_PER_PAIRING * pairings, f"{pairings:,} pairings of a positive and a negative")
        # Split once: a slice per block would each have a gradient of the size of the whole matrix.
        blocks = zip(
            range(0, anchors, size),
            table.s_QP.split(size),
            *(x.split(count) for x, count in ((a1, positives), (p, positives), (a2, negatives), (n, negatives))),
            strict=True,
        )
        value_E = [
            self._of_block(s_BP, (a1_E - start, p_E, a2_N - start, n_N))
            for start, s_BP, a1_E, p_E, a2_N, n_N in blocks
            if len(a1_E)
        ]
        losses_E = torch.cat(value_E) if value_E else 0
        return {"loss": {"losses": losses_E, "indices": (a1, p), "reduction_type": "pos_pair"}}

    def _of_block(self, s_BP: Tensor, pairs: Pairs) -> Tensor:
        """Their values of the positive pairs of a few anchors."""
        a1, p, a2, n = pairs
        # One numbering of anchors and candidates, as if all were embeddings of one batch.
        shift = len(s_BP)
        mat_BX = pad(self._theirs.distance(s_BP), (shift, 0))
        value_E: Tensor = self._theirs.loss_method(mat_BX, (a1, p + shift, a2, n + shift))["loss"]["losses"].flatten()
        return value_E


def _in_blocks(count_Q: Tensor, size: int) -> list[int]:
    """The sums of consecutive blocks of counts."""
    blocks: list[int] = pad(count_Q, (0, -len(count_Q) % size)).view(-1, size).sum(dim=1).tolist()
    return blocks


@dataclass
class OfAngles(OfPairings):
    """The same with scores as cosines of angles."""

    angles = True


@dataclass
class OfTriplets(Bridge, MultiClassLoss):
    """A loss of a positive and a negative of an anchor."""

    triplets_per_anchor: ClassVar[Any]

    def __post_init__(self) -> None:
        if self.triplets_per_anchor != "all" and self.triplets_per_anchor < 1:
            raise ValueError(f"triplets_per_anchor={self.triplets_per_anchor} is less than 1")
        super().__post_init__()

    def ask(self, table: Table) -> Found:
        per_anchor = self.triplets_per_anchor
        drawn = per_anchor != "all" and table.mined is None
        count = per_anchor * len(table.s_QP) if drawn else table.num_triplets
        self._announce(BYTES_PER_TRIPLET * count, f"{count:,} triplets")
        triplets = table.drawn_triplets(per_anchor) if drawn else table.triplets
        found: Found = self._theirs.compute_loss(table.s_QP, None, triplets, table.s_QP, None)
        return found


@dataclass
class OfHistograms(Bridge, MultiClassLoss):
    """A loss of the distributions of positive and negative scores: the chance that a negative is above a positive.

    Their densities are put together here, as the library would find the pairs in a list of all triplets.
    """

    angles = True

    def ask(self, table: Table) -> Found:
        a1, p, a2, n = table.pairs
        met_E = table.negatives_Q[a1] > 0
        met_N = torch.bincount(a1, minlength=len(table.s_QP))[a2] > 0
        s_QP = self._theirs.distance(table.s_QP)
        value: Tensor | int = 0
        if met_N.any():
            positive_H = self._theirs.compute_density(s_QP[a1[met_E], p[met_E]])
            negative_H = self._theirs.compute_density(s_QP[a2[met_N], n[met_N]])
            value = (negative_H * positive_H.cumsum(dim=0)).sum()
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


@dataclass
class OfNeighbours(Bridge, MultiClassLoss):
    """A loss of the share of the positives in a softmax over all candidates."""

    def ask(self, table: Table) -> Found:
        present_QP = table.positive_QP | table.negative_QP
        usable_QP = present_QP | ~present_QP.any(dim=1, keepdim=True)
        s_QP = table.s_QP.masked_fill(~usable_QP, -torch.inf)
        anchors_Q, candidates_QP = table.labels
        found: Found = self._theirs.nca_computation(s_QP, None, anchors_Q, candidates_QP, table.mined)
        return found


@dataclass
class OfPlane(Bridge, MultiClassLoss):
    """A loss of the cosines of pairs that computes them from vectors: it gets vectors of a plane that have them."""

    angles = True

    def ask(self, table: Table) -> Found:
        a1, p, a2, n = table.pairs
        cosine_X = torch.cat([table.s_QP[a1, p], table.s_QP[a2, n]]).clamp(-UNIT, UNIT)
        vectors_X2 = torch.stack([cosine_X, (1 - cosine_X.square()).sqrt()], dim=1)
        axis_12 = vectors_X2.new_tensor([[1.0, 0.0]])
        number_X = torch.arange(1, len(cosine_X) + 1, device=a1.device)
        pairs = [x for side in number_X.split([len(a1), len(a2)]) for x in (torch.zeros_like(side), side)]
        found: Found = self._theirs.compute_loss(torch.cat([axis_12, vectors_X2]), None, tuple(pairs), None, None)
        return found


BRIDGES: dict[str, type[Bridge]] = {
    "ContrastiveLoss": OfCells,
    "HistogramLoss": OfHistograms,
    "LiftedStructureLoss": OfPairings,
    "MarginLoss": OfTriplets,
    "NCALoss": OfNeighbours,
    "NTXentLoss": OfPairings,
    "ThresholdConsistentMarginLoss": OfPlane,
    "TripletMarginLoss": OfTriplets,
    "TupletMarginLoss": OfAngles,
}


@cache
def __getattr__(name: str) -> type[Bridge]:
    """The part of one of their losses, with an option for each argument of its signature."""
    if name not in LOSSES:
        raise AttributeError(name)
    theirs, bridge = getattr(losses, name), BRIDGES.get(name, OfAnchors)
    fields = option_fields(theirs, [] if bridge.angles else allowed_distances(theirs))
    if own := parameters(theirs).get("temperature"):
        fields.append(("temperature", float, option(own.default, "divides the scores, regardless of the head's", gt=0)))
    namespace = {"theirs": theirs, "__module__": __name__, "__doc__": f"{name} of pytorch-metric-learning."}
    namespace["laws_not_kept"] = LAWS_NOT_KEPT.get(name, {})
    return make_dataclass(name, fields, bases=(bridge,), namespace=namespace)
