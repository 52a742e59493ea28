"""Rank labels for queries with a trained model, by each of its searches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.api import Index, LabelSpace, Ranking, Search
from xmclab.evaluation.metrics import drop_filtered
from xmclab.keys import Keys
from xmclab.model.model import Vectors, with_constant
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.order import best

PADDED = 100  # results of a query that may be padding: as deep as metrics look
NEAREST = 10  # trained labels that stand in for a label without a classifier


class Space(LabelSpace):
    """The labels of a model, with an index for every combination of heads that is searched.

    Args:
        vectors: z_LD of a head as searched; called at most once for a head.
        index_of: the index of a combination of heads, built (from an export) or not.
    """

    def __init__(
        self,
        heads: Sequence[str],
        num_labels: int,
        vectors: Callable[[str], Tensor] | Vectors,
        index_of: Callable[[str], tuple[Index, bool]],
    ) -> None:
        self.heads, self.num_labels = tuple(heads), num_labels
        self._made, self._index_of = vectors, index_of
        self._vectors: dict[str, Tensor] = {}
        self.indexes: dict[str, Index] = {}
        self.added_AD: Tensor | None = None  # labels added later, as the dual encoder sees them
        self._shared: dict[str, tuple[Tensor, Tensor]] = {}  # results found ahead
        self._shared_for: tuple[Mapping[str, Tensor], int] = {}, 0  # queries and k of these

    def vectors(self, head: str) -> Tensor:
        """z_LD of a head."""
        if head not in self._vectors:
            self._vectors[head] = self._made[head] if isinstance(self._made, Vectors) else self._made(head)
        return self._vectors[head]

    def together(self, heads: str) -> Tensor:
        """z_LD of heads side by side, whose inner product is the sum of their scores."""
        names = heads.split("+")
        if isinstance(self._made, Vectors) and list(self._made) == names:
            return self._made.together
        if len(names) == 1:
            return self.vectors(heads)
        if heads not in self._vectors:
            parts = [self.vectors(name) for name in names]
            self._vectors[heads] = together = torch.cat(parts, dim=1)
            views = together.split([part.shape[1] for part in parts], dim=1)
            self._vectors.update(zip(names, views, strict=True))  # so that nothing is held twice
        return self._vectors[heads]

    def matching(self, heads: str, queries: Mapping[str, Tensor]) -> Tensor:
        """q_ND for `together`."""
        parts = [with_constant(queries[name], self.vectors(name)) for name in heads.split("+")]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def index(self, heads: str, q_ND: Tensor | None = None) -> Index:
        """The index over the labels of the model; the first queries may adapt it."""
        if heads not in self.indexes:
            index, built = self._index_of(heads)
            if not built:
                index.build(self.together(heads))
                if q_ND is not None:
                    index.tune(q_ND, recall_rng())
            self.indexes[heads] = index
        return self.indexes[heads]

    def nearest(self, heads: str, queries: Mapping[str, Tensor], k: int) -> tuple[Tensor, Tensor]:
        q_ND = self.matching(heads, queries)
        shared = queries is self._shared_for[0] and k == self._shared_for[1]
        found = self._shared.pop(heads, None) if shared else None
        ids_NK, scores_NK = found or self.index(heads, q_ND).search(q_ND, min(k, self.num_labels))
        if self.added_AD is None:
            return ids_NK, scores_NK
        index, q_ND = Exact(), with_constant(queries["de"], self.added_AD)
        index.build(self.added_AD)
        added_NK, added_scores_NK = index.search(q_ND, min(k, len(self.added_AD)))
        if heads != "de":
            added_scores_NK = added_scores_NK + self._guess(heads, queries)
        added_NK = torch.where(added_NK < 0, -1, added_NK + self.num_labels)
        return best(torch.cat([ids_NK, added_NK], dim=1), torch.cat([scores_NK, added_scores_NK], dim=1), k)

    @contextmanager
    def sharing(self, names: Sequence[str], queries: Mapping[str, Tensor], k: int) -> Iterator[None]:
        """If heads are to be searched one by one and together, do it in one pass, where the indexes can.

        `nearest` then has the results for these queries and this k.
        """
        searches = [*self.heads, "+".join(self.heads)]
        if len(self.heads) > 1 and set(searches) <= set(names):
            self._shared, self._shared_for = self._found_together(searches, queries, k), (queries, k)
        try:
            yield
        finally:
            self._shared, self._shared_for = {}, ({}, 0)

    def _found_together(
        self, searches: Sequence[str], queries: Mapping[str, Tensor], k: int
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The results of each head and of all together, the last of these searches; none if an index stands alone."""
        if not all(self.index(heads, self.matching(heads, queries)).shares_products for heads in searches):
            return {}
        widths, q_ND = [self.vectors(head).shape[1] for head in self.heads], self.matching(searches[-1], queries)
        found = self.index(searches[-1]).search_parts(q_ND, widths, min(k, self.num_labels))
        return dict(zip(searches, found, strict=True))

    def scores(self, heads: str, queries: Mapping[str, Tensor], row_E: Tensor, label_E: Tensor) -> Tensor:
        return scores_of_pairs(self.matching(heads, queries), self.together(heads), row_E, label_E)

    def _guess(self, heads: str, queries: Mapping[str, Tensor]) -> Tensor:
        """[N, 1] stands in for the other heads' score of an added label: the mean over the labels nearest by `de`."""
        nearest_NK, _ = self.index("de", q_ND := self.matching("de", queries)).search(
            q_ND, min(NEAREST, self.num_labels)
        )
        row_NK = torch.arange(len(nearest_NK), device=nearest_NK.device)[:, None].expand_as(nearest_NK)
        found_NK = nearest_NK >= 0
        others = "+".join(name for name in heads.split("+") if name != "de")
        scores_NK = self.scores(others, queries, row_NK.reshape(-1), nearest_NK.clamp(min=0).reshape(-1))
        mean_N = (scores_NK.view_as(nearest_NK) * found_NK).sum(dim=1) / found_NK.sum(dim=1).clamp(min=1)
        return mean_N[:, None]


def scores_of_pairs(q_ND: Tensor, z_LD: Tensor, row_E: Tensor, label_E: Tensor) -> Tensor:
    """[E] q_row . z_label of pairs in any order, without a copy of their vectors."""
    cell_U, place_E = (row_E * len(z_LD) + label_E).unique(return_inverse=True)
    offsets = F.pad((cell_U // len(z_LD)).bincount(minlength=len(q_ND)).cumsum(0), (1, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)  # torch calls its CSR tensors beta
        cells_NL = torch.sparse_csr_tensor(
            offsets, cell_U % len(z_LD), q_ND.new_zeros(len(cell_U)), (len(q_ND), len(z_LD)), check_invariants=False
        )
    scores_U: Tensor = torch.sparse.sampled_addmm(cells_NL, q_ND, z_LD.T, beta=0.0).values()
    return scores_U[place_E]


def rank_all(
    search: Search,
    names: Sequence[str],
    queries: Mapping[str, Tensor],
    labels: Space,
    filter_NL: sp.csr_array,
    k: int,
) -> dict[str, Ranking]:
    """The k best labels of every query by each of these rankings, as `rank` finds them."""
    with labels.sharing(names, queries, searched_depth(filter_NL, k)):
        return {name: rank(search, name, queries, labels, filter_NL, k) for name in names}


def rank(
    search: Search, name: str, queries: Mapping[str, Tensor], labels: LabelSpace, filter_NL: sp.csr_array, k: int
) -> Ranking:
    """The k best labels of every query that are not filtered for it; [N, k], but not much wider than the labels."""
    ids_NK, scores_NK = search.rank(name, queries, labels, searched_depth(filter_NL, k))
    k = min(k, max(filter_NL.shape[1], PADDED))
    return drop_filtered(Ranking(ids_NK.cpu().numpy(), scores_NK.cpu().numpy()), filter_NL, k)


def searched_depth(filter_NL: sp.csr_array, k: int) -> int:
    """The labels to search for a query so that k are left when those filtered for it are dropped."""
    widest = int(np.diff(filter_NL.indptr).max(initial=0))
    return min(min(k, max(filter_NL.shape[1], PADDED)) + widest, int(filter_NL.shape[1]))


def recall_rng() -> np.random.Generator:
    """Draws the queries on which an index measures its recall: the same ones in every evaluation."""
    return Keys(0).rng("recall")
