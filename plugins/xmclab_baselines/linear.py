"""A linear classifier for every label on TF-IDF features, as in DiSMEC (Babbar and Schölkopf, WSDM 2017).

Formula:  w_l, b_l = argmin 1/2 (|w|² + b²) + c · sum_n max(0, 1 - y_nl (w·x_n + b))²;  score = w_l·x + b_l
Where:    y_nl = 1 if l is a label of training query n, otherwise -1; a filter pair is left out of the sum.
          Weights closer to 0 than delta are dropped afterwards.

Liblinear's Newton method solves it for each label on its own, so threads change no number.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch

from xmclab.api import Baseline, Dataset, Ranking, option
from xmclab.data.sparse import no_pairs
from xmclab_baselines.extras import require
from xmclab_baselines.tfidf import LAST_ID, features

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 64  # labels that a thread trains at once
CELLS = 1 << 22  # scores held at once: bounds the memory, not the result


@dataclass
class OneVsAll(Baseline):
    """DiSMEC: a sparse linear classifier per label; about 5 minutes of a core for 18,000 labels and 19,000 queries."""

    trains = True

    c: float = option(1.0, "weight of the squared hinge loss relative to the regulariser", gt=0)
    delta: float = option(0.01, "drop weights closer to 0 than this", ge=0)
    tolerance: float = option(0.01, "relative tolerance of Newton's method", gt=0)

    def __post_init__(self) -> None:
        require("sklearn", "one_vs_all", "linear")

    def rank(self, data: Dataset, k: int) -> Ranking:
        queries_QF, train_NF = features(data, data.train.texts)
        weights_LF, bias_L = self.train(train_NF, data.train.targets_NL, data.train.filter_NL)
        return _rank(queries_QF, sp.csr_array(weights_LF.T), bias_L, data.test.filter_NL, k)

    def train(
        self, x_NF: sp.csr_array, targets_NL: sp.csr_array, filter_NL: sp.csr_array
    ) -> tuple[sp.csr_array, NDArray[np.float32]]:
        """(weights_LF, bias_L); the bias of a label without training queries is -inf."""
        import sklearn.svm  # noqa: F401  # before the limit, which holds for the libraries loaded by then
        from threadpoolctl import threadpool_limits

        rows_NF = _for_liblinear(x_NF)
        having, ignoring = (sp.csc_array(pairs_NL.astype(np.bool_)) for pairs_NL in (targets_NL, filter_NL))
        labels = targets_NL.shape[1]

        def block(start: int) -> tuple[sp.csr_array, list[float]]:
            found = [
                self._one(rows_NF, _rows(having, label), _rows(ignoring, label))
                for label in range(start, min(start + BLOCK, labels))
            ]
            return sp.csr_array(sp.vstack([weights_F for weights_F, _ in found])), [bias for _, bias in found]

        # Each label is small work for BLAS, whose own threads would only get in the way.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
            blocks = list(pool.map(block, range(0, labels, BLOCK)))
        bias_L = np.array([bias for _, some in blocks for bias in some], dtype=np.float32)
        return sp.csr_array(sp.vstack([weights_BF for weights_BF, _ in blocks], format="csr")), bias_L

    def _one(
        self, x_NF: sp.csr_matrix, positive: NDArray[np.int32], ignored: NDArray[np.int32]
    ) -> tuple[sp.csr_array, float]:
        """(weights [1, F], bias) of a label, from the rows that have it and those left out."""
        from sklearn.svm import LinearSVC

        target_N = np.zeros(x_NF.shape[0], dtype=np.int8)
        target_N[ignored] = -1
        target_N[positive] = 1
        if len(ignored):
            x_NF, target_N = x_NF[target_N >= 0], target_N[target_N >= 0]
        if not len(positive) or target_N.all() or not x_NF.nnz:  # liblinear wants both classes
            return no_pairs(1, x_NF.shape[1]), 1.0 if len(positive) else -np.inf
        model = LinearSVC(dual=False, C=self.c, tol=self.tolerance).fit(x_NF, target_N)
        weights_F = model.coef_[0].astype(np.float32)
        kept = np.flatnonzero(np.abs(weights_F) >= max(self.delta, np.finfo(np.float32).tiny))
        kept = kept.astype(np.int32)
        row = weights_F[kept], kept, np.array([0, len(kept)], dtype=np.int32)
        weights_1F: sp.csr_array = sp.csr_array(row, shape=(1, len(weights_F)))
        return weights_1F, float(model.intercept_[0])


def _for_liblinear(x_NF: sp.csr_array) -> sp.csr_matrix:
    """The rows in float64, with indices of 32 bits."""
    arrays = x_NF.data.astype(np.float64), x_NF.indices.astype(np.int32), x_NF.indptr.astype(np.int32)
    return sp.csr_matrix(arrays, shape=x_NF.shape)


def _rows(pairs_NL: sp.csc_array, label: int) -> NDArray[np.int32]:
    """The rows that have a label."""
    rows: NDArray[np.int32] = pairs_NL.indices[pairs_NL.indptr[label] : pairs_NL.indptr[label + 1]]
    return rows


def _rank(
    queries_QF: sp.csr_array, weights_FL: sp.csr_array, bias_L: NDArray[np.float32], filter_QL: sp.csr_array, k: int
) -> Ranking:
    """The k highest scores of each query among the labels that are not filtered."""
    rows, labels = filter_QL.shape
    ids_QK = np.full((rows, k), -1, dtype=np.int64)
    scores_QK = np.full((rows, k), -np.inf, dtype=np.float32)
    step, width = max(1, CELLS // labels), min(k, labels)
    for start in range(0, rows, step):
        block = slice(start, start + step)
        s_BL = (queries_QF[block] @ weights_FL).toarray() + bias_L
        s_BL[filter_QL[block].nonzero()] = -np.inf
        ids_QK[block, :width], scores_QK[block, :width] = top_k(s_BL, width)
    return Ranking(ids_QK, scores_QK)


def top_k(s_BL: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(ids_BK, scores_BK) of the k highest of each row, smaller id first among equals; the id of -inf is -1."""
    bits = (s_BL + np.float32(0)).view(np.int32)  # -0 becomes 0
    keys = np.where(bits < 0, bits ^ LAST_ID, bits).astype(np.int64)  # in the order of the scores
    keys <<= 32
    keys |= LAST_ID - np.arange(s_BL.shape[1], dtype=np.int64)
    best_BK = np.partition(keys, s_BL.shape[1] - k, axis=1)[:, s_BL.shape[1] - k :]
    best_BK = np.sort(best_BK, axis=1)[:, ::-1]
    ids_BK = LAST_ID - (best_BK & LAST_ID)
    scores_BK = np.take_along_axis(s_BL, ids_BK, axis=1)
    return np.where(np.isneginf(scores_BK), -1, ids_BK), scores_BK
