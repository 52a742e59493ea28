"""The scores of the heads, one by one and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from xmclab.api import LabelSpace, Search


@dataclass
class Heads(Search):
    """`de` and `clf`, the score of each head, and `de+clf`, their sum."""

    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        return (*heads, "+".join(heads)) if len(heads) > 1 else tuple(heads)

    def rank(self, name: str, queries: Mapping[str, Tensor], labels: LabelSpace, k: int) -> tuple[Tensor, Tensor]:
        return labels.nearest(name, queries, k)
