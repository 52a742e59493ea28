"""How good a ranking is: P, PSP, nDCG, PSnDCG, R and PSR at any cut-off k.

Formula (h_ij = 1 where the j-th label of row i is true, w_l inverse propensity, P_i the true labels of row i,
d_j = 1 / log2(j + 1), D_ik = the sum of the first min(k, |P_i|) of the d_j; sums run over j <= k):

    P@k       mean_i  sum_j h_ij / k
    nDCG@k    mean_i  sum_j h_ij d_j / D_ik
    R@k       mean_i  sum_j h_ij / |P_i|
    PSP@k     sum_i   sum_j h_ij w_ij                 over the same for the best possible ranking
    PSnDCG@k  sum_i   sum_j h_ij w_ij d_j / D_ik      likewise
    PSR@k     sum_i   sum_j h_ij w_ij / |P_i|         likewise

A row without true labels counts 0. Propensities: Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions for
Recommendation, Tagging, Ranking & Other Missing Label Applications", KDD 2016.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

HEAD_ABOVE, TAIL_UP_TO = 100, 10  # training queries of a label
CHUNK = 16_384  # rows measured at once: bounds the memory, not the result


# Propensities


def propensity_parameters(name: str) -> tuple[float, float]:
    """(A, B) of the propensity model that the literature uses for the data set of this name."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if "amazon" in plain:
        return 0.6, 2.6
    if re.search(r"wiki(pedia|titles)(large)?500k", plain):
        return 0.5, 0.4
    return 0.55, 1.5


def inverse_propensity(targets_train_NL: sp.csr_array, a: float, b: float) -> Floats:
    """w_L = 1 + C (f_l + B)^-A with C = (ln N - 1)(B + 1)^A, for f_l of N training queries having label l.

    C is 0 where the model makes no sense: below 3 training queries it would be negative.
    """
    rows = targets_train_NL.shape[0]
    scale = max(np.log(max(rows, 1)) - 1, 0.0) * (b + 1) ** a
    return np.asarray(1 + scale * (label_frequencies(targets_train_NL) + b) ** -a, dtype=np.float64)


def label_frequencies(targets_NL: sp.csr_array) -> Ids:
    """f_L: the number of queries that have each label."""
    _, columns = _pairs(targets_NL)
    return np.bincount(columns, minlength=targets_NL.shape[1])


# Rankings


def ranking_from_scores(scores_NL: sp.csr_array, k: int) -> Ranking:
    """The k best of the stored scores of each row: higher score first, then smaller label id; -1 pads."""
    scores = sp.csr_array(scores_NL)
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    order = np.lexsort((scores.indices, -scores.data, rows))
    place = np.arange(len(rows)) - np.repeat(scores.indptr[:-1], np.diff(scores.indptr))
    kept = place < k
    ids_NK = np.full((scores.shape[0], k), -1, dtype=np.int64)
    scores_NK = np.full((scores.shape[0], k), -np.inf, dtype=np.float32)
    ids_NK[rows[kept], place[kept]] = scores.indices[order][kept]
    scores_NK[rows[kept], place[kept]] = scores.data[order][kept]
    return Ranking(ids_NK, scores_NK)


def drop_filtered(ranking: Ranking, filter_NL: sp.csr_array, k: int) -> Ranking:
    """The first k labels of each row that are no filter pair, -1 padded.

    The result is complete when the ranking is at least `k + the largest number of filter pairs of a row` deep.
    """
    rows, depth = ranking.ids_NK.shape
    ids_NK = np.full((rows, k), -1, dtype=np.int64)
    scores_NK = np.full((rows, k), -np.inf, dtype=np.float32)
    for chunk in _chunks(rows):
        ids = ranking.ids_NK[chunk]
        keep = (ids >= 0) & ~_contains(filter_NL[chunk], ids)
        first = np.argsort(~keep, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(keep, first, axis=1)
        ids_NK[chunk, :depth] = np.where(kept, np.take_along_axis(ids, first, axis=1), -1)
        scores_NK[chunk, :depth] = np.where(kept, np.take_along_axis(ranking.scores_NK[chunk], first, axis=1), -np.inf)
    return Ranking(ids_NK, scores_NK)


# Metrics


def evaluate(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    ks: Sequence[int] = (1, 3, 5),
    recall_ks: Sequence[int] = (10, 100),
) -> dict[str, float]:
    """All metrics in percent: `P@k`, `PSP@k`, `nDCG@k`, `PSnDCG@k` for `ks`, `R@k` and `PSR@k` for `recall_ks`.

    A cut-off that the ranking is not deep enough for is left out, unless the ranking has room for every label.
    """
    everything = LabelGroups(("all",), np.zeros(truth_NL.shape[1], dtype=np.int64))
    return contributions(ranking, truth_NL, inv_propensity_L, everything, ks, recall_ks)["all"]


@dataclass(frozen=True)
class LabelGroups:
    """A partition of the labels."""

    names: tuple[str, ...]  # [G]
    group_L: Ids  # position of each label's group in `names`


def frequency_bands(targets_train_NL: sp.csr_array) -> LabelGroups:
    """Head labels (more than 100 training queries), torso (11 to 100) and tail (up to 10, unseen ones included)."""
    frequency_L = label_frequencies(targets_train_NL)
    group_L = np.where(frequency_L > HEAD_ABOVE, 0, np.where(frequency_L > TAIL_UP_TO, 1, 2))
    return LabelGroups(("head", "torso", "tail"), group_L)


def frequency_deciles(targets_train_NL: sp.csr_array) -> LabelGroups:
    """Ten groups of labels in order of frequency, most frequent first, with a tenth of all training pairs each.

    Equal numbers of pairs rather than of labels: most labels are so rare that a tenth of them says little.
    """
    frequency_L = label_frequencies(targets_train_NL)
    order = np.argsort(-frequency_L, kind="stable")
    pairs_before = np.cumsum(frequency_L[order]) - frequency_L[order]
    group_L = np.empty(len(order), dtype=np.int64)
    group_L[order] = np.minimum(10 * pairs_before // max(frequency_L.sum(), 1), 9)
    return LabelGroups(tuple(f"decile {number}" for number in range(1, 11)), group_L)


def contributions(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    inv_propensity_L: Floats,
    groups: LabelGroups,
    ks: Sequence[int] = (1, 3, 5),
    recall_ks: Sequence[int] = (10, 100),
) -> dict[str, dict[str, float]]:
    """What the labels of each group bring to every metric of `evaluate`, by group name: the parts sum to the whole."""
    rows, labels = truth_NL.shape
    depth = ranking.ids_NK.shape[1]
    ks, recall_ks = ([k for k in some if k <= depth or depth >= labels] for some in (ks, recall_ks))
    cutoffs = sorted({*ks, *recall_ks})
    if not cutoffs or not rows:
        return {name: {} for name in groups.names}

    best = _Gains(rows, cutoffs)
    parts = [_Gains(rows, cutoffs) for _ in groups.names]
    for chunk in _chunks(rows):
        ids = ranking.ids_NK[chunk, : cutoffs[-1]]
        truth = truth_NL[chunk]
        positives, weights_of_best = _best_weights(truth, inv_propensity_L, cutoffs[-1])
        best.put(chunk, positives, weights_of_best > 0, weights_of_best)
        hits = _contains(truth, ids)
        weights = inv_propensity_L[np.where(hits, ids, 0)]
        group = groups.group_L[np.where(hits, ids, 0)]
        for number, part in enumerate(parts):
            mine = hits & (group == number)
            part.put(chunk, positives, mine, np.where(mine, weights, 0.0))
    return {name: part.metrics(best, ks, recall_ks) for name, part in zip(groups.names, parts, strict=True)}


class _Gains:
    """Sums over the first k places of every row, k in `cutoffs`: from these come all metrics.

    Kept by row until the end, so that the chunk size does not touch a single bit of the result.
    """

    def __init__(self, rows: int, cutoffs: Sequence[int]) -> None:
        self.cutoffs = list(cutoffs)
        self.rows = rows
        self.sums = {kind: np.zeros((rows, len(self.cutoffs))) for kind in ("P", "nDCG", "R", "PSP", "PSnDCG", "PSR")}

    def put(self, chunk: slice, positives: Ids, hits: NDArray[np.bool_], weights: Floats) -> None:
        """Enter the rows of a chunk: which places hit, and the weight of each hit (0 elsewhere)."""
        width = self.cutoffs[-1]
        discount = 1 / np.log2(np.arange(width) + 2)
        ideal_of = np.concatenate([[0.0], np.cumsum(discount)])
        ideal = ideal_of[np.minimum(positives[:, None], self.cutoffs)]
        ideal, positives = np.maximum(ideal, 1.0), np.maximum(positives, 1)  # rows without truth have no hits: 0 / 1
        for prefix, gains in (("", hits.astype(np.float64)), ("PS", weights)):
            found, discounted = self._cut(gains), self._cut(gains * discount[: gains.shape[1]])
            self.sums[f"{prefix}P"][chunk] = found
            self.sums[f"{prefix}R"][chunk] = found / positives[:, None]
            self.sums[f"{prefix}nDCG"][chunk] = discounted / ideal

    def _cut(self, gains: Floats) -> Floats:
        """Running sums at the cut-offs; beyond the last place there is nothing more to gain."""
        running = np.cumsum(gains, axis=1)
        return running[:, np.minimum(self.cutoffs, gains.shape[1]) - 1]

    def metrics(self, best: _Gains, ks: Sequence[int], recall_ks: Sequence[int]) -> dict[str, float]:
        """Percentages by name, `best` being what the best possible ranking gains."""
        values: dict[str, float] = {}
        for kinds, wanted in ((("P", "PSP", "nDCG", "PSnDCG"), ks), (("R", "PSR"), recall_ks)):
            for kind in kinds:
                total, possible = self.sums[kind].sum(axis=0), best.sums[kind].sum(axis=0)
                for k in wanted:
                    column = self.cutoffs.index(k)
                    scale = {"P": self.rows * k, "nDCG": self.rows, "R": self.rows}.get(kind, possible[column])
                    values[f"{kind}@{k}"] = 100 * float(total[column] / scale) if scale else 0.0
        return values


# Sparse helpers


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, rows)) for start in range(0, rows, CHUNK))


def _pairs(matrix: Any) -> tuple[Ids, Ids]:
    """(row, column) of the entries that are not 0, by row."""
    matrix = sp.csr_array(matrix)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    filled = matrix.data != 0
    return rows[filled], matrix.indices[filled].astype(np.int64)


def _contains(matrix: Any, ids_NK: Ids) -> NDArray[np.bool_]:
    """Whether each (row, id) is an entry of the sparse matrix; pads never are."""
    rows, columns = _pairs(matrix)
    labels = matrix.shape[1]
    keys = np.sort(rows * labels + columns)
    wanted = np.arange(len(ids_NK))[:, None] * labels + ids_NK
    if not len(keys):
        return np.zeros(ids_NK.shape, dtype=np.bool_)
    found = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
    return np.asarray(found & (ids_NK >= 0) & (ids_NK < labels))


def _best_weights(truth: Any, weights_L: Floats, width: int) -> tuple[Ids, Floats]:
    """([N] number of true labels, [N, width] their largest weights in descending order, 0 where there are fewer)."""
    rows, columns = _pairs(truth)
    positives = np.bincount(rows, minlength=truth.shape[0])
    order = np.lexsort((-weights_L[columns], rows))
    place = np.arange(len(rows)) - np.repeat(np.cumsum(positives) - positives, positives)
    kept = place < width
    best = np.zeros((truth.shape[0], width))
    best[rows[kept], place[kept]] = weights_L[columns[order]][kept]
    return positives, best
