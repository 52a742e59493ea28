"""TF-IDF similarity of words as a ranking: of the label texts, or through the nearest training queries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from xmclab.api import Baseline, Dataset, Ranking, option
from xmclab.data.texts import JoinedTexts
from xmclab.evaluation.scoring import DEPTH
from xmclab.model.encoders.features import Featuriser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

PRODUCTS = 1 << 23  # products in one block of queries: bounds the memory, not the result
LAST_ID = np.iinfo(np.int32).max


@dataclass
class TfidfLabels(Baseline):
    """Labels whose text has the largest TF-IDF cosine with the query."""

    def rank(self, data: Dataset, k: int) -> Ranking:
        queries_NF, labels_LF = features(data, data.label_texts)
        cosines = Similarities(queries_NF, labels_LF)
        return _rank(((block, cosines.of(block)) for block in cosines.blocks()), data.test.filter_NL, k)


@dataclass
class TfidfNeighbours(Baseline):
    """Vote of the nearest training queries by TF-IDF cosine: each adds its cosine to its labels."""

    neighbours: int = option(20, "training queries that vote", ge=1)

    def rank(self, data: Dataset, k: int) -> Ranking:
        cosines = Similarities(*features(data, data.train.texts))
        targets_ML = data.train.targets_NL.astype(np.bool_).astype(np.float32)

        def votes(block: slice) -> sp.csr_array:
            nearest_BK, cosines_BK = top_k(cosines.of(block), min(self.neighbours, targets_ML.shape[0]))
            voting_BK = nearest_BK >= 0
            offsets = np.concatenate([[0], np.cumsum(voting_BK.sum(axis=1))])
            given = cosines_BK[voting_BK], nearest_BK[voting_BK], offsets
            votes_BM = sp.csr_array(given, shape=(len(nearest_BK), targets_ML.shape[0]))
            votes_BL: sp.csr_array = votes_BM @ targets_ML
            return votes_BL

        return _rank(((block, votes(block)) for block in cosines.blocks()), data.test.filter_NL, k)


class Similarities:
    """Inner products of sparse rows with other sparse rows; zeros are not listed."""

    def __init__(self, queries_NF: sp.csr_array, others_MF: sp.csr_array) -> None:
        self.queries_NF, self.others_FM = queries_NF, sp.csr_array(others_MF.T)

    def of(self, block: slice) -> sp.csr_array:
        """[B, M] of some queries."""
        return self.queries_NF[block] @ self.others_FM

    def blocks(self) -> Iterator[slice]:
        """The queries in blocks of about this many products."""
        having_F = np.diff(self.others_FM.indptr)
        products = np.concatenate([[0], np.cumsum(having_F[self.queries_NF.indices], dtype=np.int64)])
        before_N = products[self.queries_NF.indptr]
        start = 0
        while start < self.queries_NF.shape[0]:
            stop = int(np.searchsorted(before_N, before_N[start] + PRODUCTS, side="right")) - 1
            stop = max(stop, start + 1)
            yield slice(start, stop)
            start = stop


def features(data: Dataset, others: Sequence[str]) -> tuple[sp.csr_array, sp.csr_array]:
    """TF-IDF rows of the test queries and of other texts; the words and their idf are those of all training texts."""
    featuriser = Featuriser(words=True, sublinear=True).fit(JoinedTexts(data.train.texts, data.label_texts))
    queries, rest = (featuriser.to_csr(featuriser.transform(texts)) for texts in (data.test.texts, others))
    return queries, rest


def _rank(blocks: Iterable[tuple[slice, sp.csr_array]], filter_NL: sp.csr_array, k: int) -> Ranking:
    """Rank the labels that score above 0 and are not filtered, from the scores [B, L] of blocks of queries."""
    rows, labels = filter_NL.shape
    k = min(k, max(labels, DEPTH))
    ids_NK = np.full((rows, k), -1, dtype=np.int64)
    scores_NK = np.full((rows, k), -np.inf, dtype=np.float32)
    for block, scores_BL in blocks:
        hidden_BL = scores_BL.multiply(filter_NL[block].astype(np.bool_))
        ids_NK[block], scores_NK[block] = top_k(sp.csr_array(scores_BL - hidden_BL), k)
    return Ranking(ids_NK, scores_NK)


def top_k(scores_BL: sp.csr_array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(ids_BK, scores_BK) of the k largest above 0 of each row, smaller id first among equals; -1 and -inf if fewer.

    A float32 that is not negative orders like its bits, so (bits, reversed id) in one integer breaks ties exactly.
    """
    keys = scores_BL.data.view(np.int32).astype(np.int64)
    keys <<= 32
    keys |= LAST_ID - scores_BL.indices.astype(np.int64)
    best_BK = np.zeros((scores_BL.shape[0], k), dtype=np.int64)
    for row, (start, end) in enumerate(pairwise(scores_BL.indptr.tolist())):
        some = keys[start:end]
        if len(some) > k:
            some = np.partition(some, len(some) - k)[len(some) - k :]
        best_BK[row, : len(some)] = np.sort(some)[::-1]
    found_BK = best_BK >> 32 > 0
    ids_BK = np.where(found_BK, LAST_ID - (best_BK & LAST_ID), -1)
    return ids_BK, np.where(found_BK, (best_BK >> 32).astype(np.int32).view(np.float32), -np.inf)
