"""The pairs and triplets of a score matrix, as pytorch-metric-learning lists them; its miners over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pytorch_metric_learning import miners
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

Pairs = tuple[Tensor, Tensor, Tensor, Tensor]  # anchors and positives, anchors and negatives
Triplets = tuple[Tensor, Tensor, Tensor]  # anchors, positives, negatives

MINERS: dict[str, type] = {
    name: getattr(miners, name)
    for name in (
        "BatchEasyHardMiner",
        "BatchHardMiner",
        "HDCMiner",
        "MultiSimilarityMiner",
        "PairMarginMiner",
        "TripletMarginMiner",
        "UniformHistogramMiner",
    )
}
BYTES_PER_TRIPLET = 80  # its indices, its values and what their gradient needs
LARGEST_CUBE = torch.iinfo(torch.int32).max  # up to here they list triplets from a cube of bytes


@dataclass(frozen=True)
class Table:
    """Scores with what is known about them. Absent candidates have score 0 and are neither positive nor negative."""

    s_QP: Tensor
    positive_QP: Tensor
    negative_QP: Tensor
    mined: Pairs | Triplets | None = None  # what a miner chose of the pairs; None: all of them

    @staticmethod
    def of(s_QP: Tensor, y_QP: Tensor) -> Table:
        present_QP = ~s_QP.isneginf()
        return Table(s_QP.masked_fill(~present_QP, 0), present_QP & (y_QP > 0), present_QP & (y_QP <= 0))

    @cached_property
    def pairs(self) -> Pairs:
        """All pairs or the mined ones, anchors ascending."""
        if self.mined is None:
            return *_where(self.positive_QP), *_where(self.negative_QP)
        a1, p, a2, n = lmu.convert_to_pairs(self.mined, None)
        first, second = a1.argsort(stable=True), a2.argsort(stable=True)
        return a1[first], p[first], a2[second], n[second]

    @cached_property
    def negatives_Q(self) -> Tensor:
        """How many pairs with a negative each anchor has."""
        return torch.bincount(self.pairs[2], minlength=len(self.s_QP))

    @property
    def num_triplets(self) -> int:
        if self.mined is not None and len(self.mined) == 3:
            return len(self.mined[0])
        return int(self.negatives_Q[self.pairs[0]].sum())

    @property
    def triplets(self) -> Triplets:
        """Each pair of an anchor and a positive with each of the anchor's negatives."""
        if self.mined is not None and len(self.mined) == 3:
            return self.mined
        a1, p, _, n = self.pairs
        first_Q = self.negatives_Q.cumsum(0) - self.negatives_Q
        count_E = self.negatives_Q[a1]
        pair_T = torch.repeat_interleave(count_E)
        start_E = first_Q[a1] - (count_E.cumsum(0) - count_E)
        return a1[pair_T], p[pair_T], n[start_E[pair_T] + torch.arange(len(pair_T), device=n.device)]

    def drawn_triplets(self, per_anchor: int) -> Triplets:
        """This many triplets of each anchor, drawn with replacement from torch's global generator."""
        rows = (self.positive_QP.any(dim=1) & self.negative_QP.any(dim=1)).nonzero().squeeze(1)
        if not len(rows):
            return rows, rows, rows
        masks = self.positive_QP[rows].float(), self.negative_QP[rows].float()
        p, n = (torch.multinomial(mask, per_anchor, replacement=True).flatten() for mask in masks)
        return rows.repeat_interleave(per_anchor), p, n

    @property
    def labels(self) -> tuple[Tensor, Any]:
        """Class labels of anchors and candidates that give these pairs, for code of theirs that compares labels."""
        ones_Q = torch.ones(len(self.s_QP), dtype=torch.long, device=self.s_QP.device)
        return ones_Q, _SeenByAnchor(self.positive_QP)

    def mine(self, miner: Any, temperature: float) -> Table:
        """What a miner of theirs chooses by the undivided scores; pairs with absent candidates are removed."""
        lowest_QP = (self.s_QP.detach() * temperature).masked_fill(~(self.positive_QP | self.negative_QP), -1)
        with torch.no_grad():
            chosen = miner.mine(lowest_QP, self.labels[0], None, self.labels[1])
        *_, a, n = chosen if len(chosen) == 4 else (chosen[0], chosen[2])
        keep = self.negative_QP[a, n]
        untouched = chosen[:2] if len(chosen) == 4 else ()
        return replace(self, mined=(*untouched, *(x[keep] for x in chosen[len(untouched) :])))

    @property
    def mining_bytes(self) -> int:
        """The memory of a miner that starts from all triplets."""
        anchors, candidates = self.s_QP.shape
        cube = anchors * candidates**2
        return (cube if cube < LARGEST_CUBE else 0) + BYTES_PER_TRIPLET * self.num_triplets


@dataclass(frozen=True)
class _SeenByAnchor:
    """The labels of candidates where a candidate may be of the class of one anchor and not of another."""

    positive_QP: Tensor

    def unsqueeze(self, _: int) -> Tensor:
        return self.positive_QP


def _where(mask_QP: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = mask_QP.nonzero(as_tuple=True)
    return rows, columns
