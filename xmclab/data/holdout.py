"""Training and test queries from one set of queries: the same cut for the same seed, in any process and order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Dataset, Split
from xmclab.errors import DataError, Problem


def hold_out(dataset: Dataset, share: float, seed: int = 0) -> Dataset:
    """The data set with a share of its training queries as test queries; its own test queries are not looked at."""
    test = drawn(dataset.train.texts, share, seed)
    if not 0 < test.sum() < len(test):
        message = f"no test queries can be held out of {len(test)} queries of {len(set(dataset.train.texts))} texts"
        raise DataError(Problem(dataset.name, message, "add a test table"))
    train = take(dataset.train, np.flatnonzero(~test))
    if not train.targets_NL.nnz:
        raise DataError(Problem(dataset.name, "no query has a label beside those held out", "add a test table"))
    return dataclasses.replace(dataset, train=train, test=take(dataset.train, np.flatnonzero(test)))


def drawn(texts: Sequence[str], share: float, seed: int) -> NDArray[np.bool_]:
    """Which texts are in the share: those of the smallest hashes, so that equal texts stay together."""
    key = seed.to_bytes(16, "big", signed=True)
    hashes = b"".join(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in texts)
    keys = np.frombuffer(hashes, dtype=">u8")
    if not len(keys):
        return np.zeros(0, dtype=np.bool_)
    wanted = min(max(round(share * len(keys)), 1), len(keys))
    chosen: NDArray[np.bool_] = keys <= np.partition(keys, wanted - 1)[wanted - 1]
    return chosen


def take(split: Split, rows: NDArray[np.int64]) -> Split:
    """These queries, in this order."""
    return Split(
        texts=[split.texts[row] for row in rows],
        names=[split.names[row] for row in rows],
        targets_NL=sp.csr_array(split.targets_NL[rows]),
        filter_NL=sp.csr_array(split.filter_NL[rows]),
    )
