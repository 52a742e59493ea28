"""A vote of the nearest training queries, alone and added to the scores of the heads.

Formula:  vote_l = c_l^-tail sum_n w_n y_nl,  w = softmax of cos(q, q_n) / temperature over the nearest queries n
          score_l = heads_l + weight vote_l
Where:    n training queries, cos the mean of the heads' cosines, y_nl 1 if n has label l, c_l the queries that have it
Use when: queries resemble each other; the more labels a query has, the more its neighbours know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from xmclab.api import LabelSpace, option
from xmclab.evaluation.search import recall_rng
from xmclab.evaluation.searches.heads import Heads
from xmclab.plan.indexes.order import best
from xmclab.system.tensors import write_tensors

VOTE = "nn"
FILE = "neighbours.safetensors"
VOTES_AT_ONCE = 1 << 24  # queries times labels


@dataclass
class Neighbours(Heads):
    """The searches by heads, `nn`, a vote of the nearest training queries, and the sum of all."""

    reads_training_queries = True

    neighbours: int = option(50, "training queries that vote", ge=1)
    temperature: float = option(0.08, "temperature of the softmax over their cosines", gt=0)
    weight: float = option(1.0, "weight of the vote, next to the scores of the heads", ge=0)
    tail: float = option(0.05, "votes are divided by the label's number of training queries to this power", ge=0)

    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        single = super().names(heads)
        return (*single, VOTE, f"{single[-1]}+{VOTE}")

    def fit(self, queries: Mapping[str, Tensor], targets_NL: sp.csr_array) -> None:
        rows_N = np.flatnonzero(np.diff(targets_NL.indptr))  # a query without labels has no vote
        self._take(directions(queries)[torch.from_numpy(rows_N)], sp.csr_array(targets_NL[rows_N]))

    def _take(self, directions_ND: Tensor, targets_NL: sp.csr_array) -> None:
        self._directions_ND, self._targets_NL = directions_ND, targets_NL.astype(bool).astype(np.float32)
        count_L = np.bincount(targets_NL.indices, minlength=targets_NL.shape[1])
        self._targets_NL.data /= count_L[targets_NL.indices] ** self.tail  # of a vote for this label
        self.index.build(directions_ND)
        self._tuned = False

    def save(self, folder: Path) -> None:
        targets = self._targets_NL
        tensors = {
            "directions": self._directions_ND.cpu().contiguous(),
            "offsets": torch.from_numpy(targets.indptr.astype(np.int64)),
            "labels": torch.from_numpy(targets.indices.astype(np.int32)),
            "num_labels": torch.tensor(targets.shape[1]),
        }
        write_tensors(folder / FILE, tensors)

    def load(self, folder: Path, device: torch.device) -> None:
        tensors = load_file(folder / FILE)
        labels, offsets = tensors["labels"].numpy(), tensors["offsets"].numpy()
        shape = len(offsets) - 1, int(tensors["num_labels"])
        targets_NL = sp.csr_array((np.ones(len(labels), np.float32), labels, offsets), shape=shape)
        targets_NL.check_format(full_check=True)
        if tensors["directions"].ndim != 2 or len(tensors["directions"]) != shape[0]:
            raise ValueError(f"{FILE}: there must be a direction for each of {shape[0]} queries")
        self._take(tensors["directions"].to(device), targets_NL)

    def rank(self, name: str, queries: Mapping[str, Tensor], labels: LabelSpace, k: int) -> tuple[Tensor, Tensor]:
        *heads, last = name.split("+")
        if last != VOTE:
            return super().rank(name, queries, labels, k)
        votes_NL = self.votes(queries)
        ids, scores = [], []
        size = max(VOTES_AT_ONCE // max(votes_NL.shape[1], 1), 1)
        for start in range(0, votes_NL.shape[0], size):
            block = {head: q_ND[start : start + size] for head, q_ND in queries.items()}
            ids_BK, scores_BK = self._rank("+".join(heads), block, labels, votes_NL[start : start + size], k)
            ids.append(ids_BK)
            scores.append(scores_BK)
        return torch.cat(ids), torch.cat(scores)

    def votes(self, queries: Mapping[str, Tensor]) -> sp.csr_array:
        """[N, L] the votes for every label; those of a query add up to the number of its neighbours' labels."""
        q_ND = directions(queries)
        if not self._tuned:
            self.index.tune(q_ND, recall_rng())
            self._tuned = True
        near_NK, cosines_NK = self.index.search(q_ND, min(self.neighbours, len(self._directions_ND)))
        weight_NK = (cosines_NK / self.temperature).masked_fill(near_NK < 0, -torch.inf).softmax(dim=1)
        offsets = np.arange(0, near_NK.numel() + 1, near_NK.shape[1])
        entries = weight_NK.flatten().cpu().numpy(), near_NK.clamp(min=0).flatten().cpu().numpy(), offsets
        weights_NM = sp.csr_array(entries, shape=(len(q_ND), self._targets_NL.shape[0]))
        return sp.csr_array(weights_NM @ self._targets_NL)

    def _rank(
        self, heads: str, queries: Mapping[str, Tensor], labels: LabelSpace, votes_BL: sp.csr_array, k: int
    ) -> tuple[Tensor, Tensor]:
        """The best labels are among those of the heads and those with a vote, which is never negative."""
        device = next(iter(queries.values())).device
        vote_BL = torch.from_numpy(votes_BL.toarray()).to(device)
        if not heads:
            row_E, label_E = vote_BL.nonzero(as_tuple=True)
            return best(*side_by_side(row_E, label_E, vote_BL[row_E, label_E], len(vote_BL), least=k), k)
        ids_BK, scores_BK = labels.nearest(heads, queries, k)
        known_BK = (ids_BK >= 0) & (ids_BK < labels.num_labels)
        at = known_BK.nonzero(as_tuple=True)[0], ids_BK[known_BK]
        scores_BK = scores_BK.clone()
        scores_BK[known_BK] += self.weight * vote_BL[at]
        vote_BL[at] = 0
        row_E, label_E = vote_BL.nonzero(as_tuple=True)
        more_E = labels.scores(heads, queries, row_E, label_E) + self.weight * vote_BL[row_E, label_E]
        label_BM, more_BM = side_by_side(row_E, label_E, more_E, len(vote_BL))
        return best(torch.cat([ids_BK, label_BM], dim=1), torch.cat([scores_BK, more_BM], dim=1), k)


def side_by_side(row_E: Tensor, label_E: Tensor, score_E: Tensor, rows: int, least: int = 0) -> tuple[Tensor, Tensor]:
    """(label_BM, score_BM) of a list ordered by row, padded with -1 and -inf; at least so many columns."""
    count_B = row_E.bincount(minlength=rows)
    place_E = torch.arange(len(row_E), device=row_E.device) - (count_B.cumsum(0) - count_B)[row_E]
    shape = rows, max(int(count_B.max()) if rows else 0, least)
    label_BM, score_BM = label_E.new_full(shape, -1), score_E.new_full(shape, -torch.inf)
    label_BM[row_E, place_E], score_BM[row_E, place_E] = label_E, score_E
    return label_BM, score_BM


def directions(queries: Mapping[str, Tensor]) -> Tensor:
    """Unit vectors of queries whose inner product is the mean of the heads' cosines."""
    units = [F.normalize(q_ND, dim=1) for q_ND in queries.values()]
    return torch.cat(units, dim=1).div_(math.sqrt(len(units)))
