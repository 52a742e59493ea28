"""A weighted sum of the scores of two heads.

Formula:  s_l = (1 - share) <q, z_l> of the first head + share <q, z_l> of the second,
          plus the biases of label l, if the heads have some
Use when: one head knows more than the other, so that their plain sum falls short
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xmclab
from torch import Tensor
from xmclab.api import LabelSpace, Search


@dataclass
class PartName(Search):
    """Each head by itself and, if there are two, `weighted`: a weighted sum."""

    share: float = xmclab.option(0.7, "weight of the second head", ge=0, le=1)

    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        """The rankings that a run shows; the last one is used in predictions."""
        return (*heads, "weighted") if len(heads) > 1 else tuple(heads)

    def rank(
        self, name: str, queries: Mapping[str, Tensor], labels: LabelSpace, k: int
    ) -> tuple[Tensor, Tensor]:
        """(ids, scores) of the k best labels of every query."""
        if name != "weighted":
            return labels.nearest(name, queries, k)
        first, second = labels.heads
        weighted = {
            first: (1 - self.share) * queries[first],
            second: self.share * queries[second],
        }
        return labels.nearest(f"{first}+{second}", weighted, k)
