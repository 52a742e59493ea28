"""TF-IDF similarity of words as a ranking: of the label texts, or through the nearest training queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Baseline, Dataset, Ranking, option
from xmclab.data.texts import JoinedTexts
from xmclab.text import Featuriser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BLOCK_CELLS = 1 << 23  # scores held at once: bounds the memory, not the result
LAST_ID = np.iinfo(np.int32).max


@dataclass
class TfidfLabels(Baseline):
    """Labels whose text has the largest TF-IDF cosine with the query."""

    def rank(self, data: Dataset, k: int) -> Ranking:
        queries_NF, labels_LF = _features(data, data.label_texts)
        labels_FL = sp.csr_array(labels_LF.T)
        return _rank(lambda block: (queries_NF[block] @ labels_FL).toarray(), data.test.filter_NL, k)


@dataclass
class TfidfNeighbours(Baseline):
    """Vote of the training queries that are nearest by TF-IDF cosine: each gives its cosine to its labels."""

    neighbours: int = option(20, "training queries that vote", ge=1)

    def rank(self, data: Dataset, k: int) -> Ranking:
        queries_NF, train_MF = _features(data, data.train.texts)
        train_FM = sp.csr_array(train_MF.T)
        targets_ML = data.train.targets_NL.astype(np.bool_).astype(np.float32)

        def votes(block: slice) -> NDArray[np.float32]:
            nearest, cosines = top_k((queries_NF[block] @ train_FM).toarray(), self.neighbours)
            offsets = np.arange(len(nearest) + 1) * nearest.shape[1]
            votes_NM = sp.csr_array((cosines.ravel(), nearest.ravel(), offsets), shape=(len(nearest), len(data.train)))
            scores_NL: NDArray[np.float32] = (votes_NM @ targets_ML).toarray()
            return scores_NL

        return _rank(votes, data.test.filter_NL, k)


def _features(data: Dataset, others: Sequence[str]) -> tuple[sp.csr_array, sp.csr_array]:
    """TF-IDF rows of the test queries and of other texts; the words and their idf are those of all training texts."""
    featuriser = Featuriser(words=True, sublinear=True).fit(JoinedTexts(data.train.texts, data.label_texts))
    queries, rest = (featuriser.to_csr(featuriser.transform(texts)) for texts in (data.test.texts, others))
    return queries, rest


def _rank(scores: Callable[[slice], NDArray[np.float32]], filter_NL: sp.csr_array, k: int) -> Ranking:
    """Rank the labels that score above 0 and are not filtered; `scores` gives the dense scores [rows, L] of a block."""
    rows, labels = filter_NL.shape
    ids_NK = np.full((rows, k), -1, dtype=np.int64)
    scores_NK = np.full((rows, k), -np.inf, dtype=np.float32)
    step = max(BLOCK_CELLS // max(labels, 1), 1)
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        scores_BL = scores(block)
        scores_BL[filter_NL[block].nonzero()] = 0
        ids, best = top_k(scores_BL, k)
        ids_NK[block, : ids.shape[1]] = np.where(best > 0, ids, -1)
        scores_NK[block, : ids.shape[1]] = np.where(best > 0, best, -np.inf)
    return Ranking(ids_NK, scores_NK)


def top_k(scores_BL: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(ids, scores) of the k largest of each row, smaller id first among equals; scores are not negative.

    A float32 that is not negative orders like its bits, so (bits, reversed id) in one integer breaks ties exactly.
    """
    k = min(k, scores_BL.shape[1])
    keys_BL = scores_BL.view(np.int32).astype(np.int64)
    keys_BL <<= 32
    keys_BL |= LAST_ID - np.arange(scores_BL.shape[1])
    keys_BL.partition(scores_BL.shape[1] - k, axis=1)
    best = np.sort(keys_BL[:, scores_BL.shape[1] - k :], axis=1)[:, ::-1]
    return LAST_ID - (best & LAST_ID), (best >> 32).astype(np.int32).view(np.float32)
