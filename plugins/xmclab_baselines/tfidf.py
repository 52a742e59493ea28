"""TF-IDF similarity of words as a ranking, directly or through the nearest training queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Baseline, Dataset, Ranking, option
from xmclab.text import Featuriser

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_CELLS = 1 << 23  # scores held at once


@dataclass
class TfidfLabels(Baseline):
    """Cosine of the TF-IDF vectors of the query and of the label text."""

    def rank(self, data: Dataset, k: int) -> Ranking:
        test_NF, train_NF, labels_LF = _features(data)
        labels_FL = labels_LF.T.tocsr()
        return _rank(lambda rows: (test_NF[rows] @ labels_FL).toarray(), data.test.filter_NL, k)


@dataclass
class TfidfNeighbours(Baseline):
    """Vote of the training queries nearest by TF-IDF cosine: each gives its labels its cosine."""

    neighbours: int = option(20, "training queries that vote", ge=1)

    def rank(self, data: Dataset, k: int) -> Ranking:
        test_NF, train_NF, _ = _features(data)
        train_FN = train_NF.T.tocsr()

        def votes(rows: slice) -> NDArray[np.float32]:
            near, cosine = top_k((test_NF[rows] @ train_FN).toarray(), self.neighbours)
            offsets = np.arange(len(near) + 1) * near.shape[1]
            return (sp.csr_array((cosine.ravel(), near.ravel(), offsets), shape=(len(near), len(data.train))) @ data.train.targets_NL).toarray()

        return _rank(votes, data.test.filter_NL, k)


def _features(data: Dataset):
    featuriser = Featuriser(words=True).fit([*data.train.texts, *data.label_texts])
    return tuple(featuriser.to_csr(featuriser.transform(texts)) for texts in (data.test.texts, data.train.texts, data.label_texts))


def _rank(scores_of: Callable[[slice], NDArray[np.float32]], filter_NL: sp.csr_array, k: int) -> Ranking:
    rows, labels = filter_NL.shape
    ids_NK = np.full((rows, k), -1, dtype=np.int64)
    scores_NK = np.full((rows, k), -np.inf, dtype=np.float32)
    step = max(BLOCK_CELLS // labels, 1)
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        scores = scores_of(block)
        filtered = filter_NL[block].tocoo()
        scores[filtered.coords] = 0
        ids, best = top_k(scores, k)
        found = best > 0
        ids_NK[block, : ids.shape[1]] = np.where(found, ids, -1)
        scores_NK[block, : ids.shape[1]] = np.where(found, best, -np.inf)
    return Ranking(ids_NK, scores_NK)


def top_k(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    k = min(k, scores.shape[1])
    keys = (scores.view(np.int32).astype(np.int64) << 32) | (np.iinfo(np.int32).max - np.arange(scores.shape[1]))
    best = np.sort(np.partition(keys, -k, axis=1)[:, -k:] , axis=1)[:, ::-1]
    return np.iinfo(np.int32).max - (best & 0xFFFFFFFF), (best >> 32).astype(np.int32).view(np.float32)
