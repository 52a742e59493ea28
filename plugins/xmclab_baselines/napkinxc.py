"""napkinXC on TF-IDF features: probabilistic label trees, or a logistic classifier per label.

Jasinska-Kobus, Wydmuch, Dembczyński, Kuznetsov and Busa-Fekete, Probabilistic label trees for extreme multi-label
classification, 2020. The settings are the library's own. Its solver draws from C's `rand()`, which all threads share:
one thread and a seed make the result repeatable.
"""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp

from xmclab.api import Baseline, Dataset, Ranking, option
from xmclab.evaluation.metrics import drop_filtered
from xmclab_baselines.extras import require
from xmclab_baselines.tfidf import features

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 1 << 12  # queries predicted at once: bounds the memory, not the result


@dataclass
class NapkinXC(Baseline):
    """napkinXC: a probabilistic label tree (8 seconds for 18,000 labels and 19,000 queries), or one-vs-all."""

    trains = True

    model: Literal["plt", "ova"] = option("plt", "label tree, or a logistic classifier per label")
    seed: int = option(0, "random seed", ge=0)

    def __post_init__(self) -> None:
        require("napkinxc", "napkinxc", "napkinxc")

    def rank(self, data: Dataset, k: int) -> Ranking:
        queries_QF, train_NF = map(_for_napkinxc, features(data, data.train.texts))
        filter_QL = data.test.filter_NL
        deep = min(k + int(np.diff(filter_QL.indptr).max(initial=0)), data.num_labels)
        ids_QK = np.full((len(data.test), max(k, deep)), -1, dtype=np.int64)
        scores_QK = np.full(ids_QK.shape, -np.inf, dtype=np.float32)
        with tempfile.TemporaryDirectory() as folder:
            model = self._model(folder)
            ctypes.CDLL(None).srand(self.seed + 1)  # to C, 0 and 1 are the same
            model.fit(train_NF, _for_napkinxc(data.train.targets_NL))
            model.load()
            for start in range(0, len(data.test), CHUNK):
                block = slice(start, start + CHUNK)
                found = model.predict_proba(queries_QF[block], top_k=deep)
                _fill(ids_QK[block], scores_QK[block], found)
        return drop_filtered(Ranking(ids_QK, scores_QK), filter_QL, k)

    def _model(self, folder: str) -> Any:
        from napkinxc.models import BR, PLT

        return PLT(folder, seed=self.seed, threads=1) if self.model == "plt" else BR(folder, threads=1)


def _for_napkinxc(x_NF: sp.csr_array) -> sp.csr_matrix:
    """The rows with indices of 32 bits."""
    arrays = x_NF.data.astype(np.float32), x_NF.indices.astype(np.int32), x_NF.indptr.astype(np.int32)
    return sp.csr_matrix(arrays, shape=x_NF.shape)


def _fill(ids_BK: Any, scores_BK: Any, found: Sequence[Sequence[tuple[int, float]]]) -> None:
    """Write the (label, probability) lists of each query into arrays."""
    lengths_B = np.array([len(some) for some in found])
    given_BK = np.arange(ids_BK.shape[1]) < lengths_B[:, None]
    pairs = np.array(list(chain.from_iterable(found)), dtype=np.float64).reshape(-1, 2)
    ids_BK[given_BK], scores_BK[given_BK] = pairs[:, 0].astype(np.int64), pairs[:, 1]
