"""Training and test queries from one set of queries: the same cut for the same seed, in any process and order."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Dataset, Split
from xmclab.data.texts import PackedTexts
from xmclab.errors import DataError, Problem

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]


def key_of(title: str, seed: int = 0) -> int:
    """A random number determined by the title."""
    digest = hashlib.blake2b(title.encode(), digest_size=8, key=seed.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big")


def drawn(keys: Keys, share: float) -> NDArray[np.bool_]:
    """Which queries are in the share: those with the smallest keys, so that equal titles stay together."""
    if not len(keys):
        return np.zeros(0, dtype=np.bool_)
    wanted = min(max(round(share * len(keys)), 1), len(keys))
    chosen: NDArray[np.bool_] = keys <= np.partition(keys, wanted - 1)[wanted - 1]
    return chosen


def rows_of(queries: Split, keys: Keys, share: float, where: str, hint: str) -> tuple[Rows, Rows]:
    """(training rows, test rows); `DataError` if the share cannot be held out."""
    test = drawn(keys, share)
    if not 0 < test.sum() < len(test):
        message = f"cannot hold out test queries from {len(test)} queries with {len(set(keys.tolist()))} distinct texts"
        raise DataError(Problem(where, message, hint))
    train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    if not queries.targets_NL[train_rows].nnz:
        raise DataError(Problem(where, "no query left for training has a label", hint))
    return train_rows, test_rows


def hold_out(dataset: Dataset, keys: Keys, share: float, hint: str) -> Dataset:
    """The data set with a share of its training queries as test queries; its own test queries are ignored."""
    train, test = (take(dataset.train, rows) for rows in rows_of(dataset.train, keys, share, dataset.name, hint))
    return dataclasses.replace(dataset, train=train, test=test)


def take(split: Split, rows: Rows) -> Split:
    """These queries, in this order."""
    return Split(
        texts=PackedTexts(split.texts[row] for row in rows),
        names=PackedTexts(split.names[row] for row in rows),
        targets_NL=sp.csr_array(split.targets_NL[rows]),
        filter_NL=sp.csr_array(split.filter_NL[rows]),
    )


def add_filter(split: Split, pairs_NL: sp.csr_array) -> Split:
    """The same queries with more filter pairs."""
    filter_NL = sp.csr_array(split.filter_NL.astype(np.bool_) + pairs_NL.astype(np.bool_)).astype(np.float32)
    filter_NL.sort_indices()
    return dataclasses.replace(split, filter_NL=filter_NL)
