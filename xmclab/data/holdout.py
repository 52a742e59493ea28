"""Training and held-out queries from one set of queries: the same cut for the same seed, in any process and order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Dataset, Split
from xmclab.data.sparse import narrow
from xmclab.data.texts import PackedTexts, hashes
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


def rows_of(
    queries: Split, keys: Keys, share: float, where: str, hint: str, purpose: str = "test"
) -> tuple[Rows, Rows]:
    """(training rows, rows held out for the purpose); `DataError` if the share cannot be held out."""
    held = drawn(keys, share)
    if not 0 < held.sum() < len(held):
        there = f"{len(held)} queries with {len(set(keys.tolist()))} distinct texts"
        raise DataError(Problem(where, f"cannot hold out {purpose} queries from {there}", hint))
    train_rows, held_rows = np.flatnonzero(~held), np.flatnonzero(held)
    if not queries.targets_NL[train_rows].nnz:
        raise DataError(Problem(where, "no query left for training has a label", hint))
    return train_rows, held_rows


def hold_out(dataset: Dataset, keys: Keys, share: float, hint: str) -> Dataset:
    """The data set with a share of its training queries as test queries; its own test queries are ignored."""
    train, test = (take(dataset.train, rows) for rows in rows_of(dataset.train, keys, share, dataset.name, hint))
    return dataclasses.replace(dataset, train=train, test=test, held_out=True)


def take(split: Split, rows: Rows) -> Split:
    """These queries, in this order."""
    return Split(
        texts=PackedTexts(split.texts[row] for row in rows),
        names=PackedTexts(split.names[row] for row in rows),
        targets_NL=sp.csr_array(split.targets_NL[rows]),
        filter_NL=sp.csr_array(split.filter_NL[rows]),
        candidates_NL=None if split.candidates_NL is None else sp.csr_array(split.candidates_NL[rows]),
    )


def add_filter(split: Split, pairs_NL: sp.csr_array) -> Split:
    """The same queries with more filter pairs."""
    filter_NL = sp.csr_array(split.filter_NL.astype(np.bool_) + pairs_NL.astype(np.bool_)).astype(np.float32)
    filter_NL.sort_indices()
    return dataclasses.replace(split, filter_NL=filter_NL)


def filter_answers(train: Split, held: Split, label_texts: Sequence[str]) -> Split:
    """Held-out queries with what gives the answer away filtered, if queries are labels themselves.

    As in the sets of the Extreme Classification Repository: a query with itself, and a held-out query A with B if B is
    a training query that has A as a label. Such pairs are not truth either.
    """
    train_NL, held_NL = (same_text(split.texts, label_texts) for split in (train, held))
    held = add_filter(add_filter(held, held_NL), reciprocal(train.targets_NL, train_NL, held_NL))
    known = held.filter_NL.astype(np.bool_)
    truth_NL = sp.csr_array(held.targets_NL - held.targets_NL.multiply(known))
    truth_NL.eliminate_zeros()
    truth_NL.sort_indices()
    return dataclasses.replace(held, targets_NL=truth_NL)


def same_text(texts: Sequence[str], label_texts: Sequence[str]) -> sp.csr_array:
    """[N, L] whether the text of a query is the text of a label, by 64-bit hash."""
    text_N, text_L = hashes(texts), hashes(label_texts)
    order_L = np.argsort(text_L, kind="stable")
    first_N, end_N = (np.searchsorted(text_L[order_L], text_N, side) for side in ("left", "right"))
    offsets = np.concatenate([[0], np.cumsum(end_N - first_N)])
    place_E = np.arange(offsets[-1]) + np.repeat(first_N - offsets[:-1], end_N - first_N)
    shape = len(text_N), len(text_L)
    return narrow(np.ones(len(place_E), np.float32), order_L[place_E], offsets, shape)


@dataclasses.dataclass(frozen=True)
class OwnLabels:
    """The labels that have the text of a query."""

    queries: int  # that have such labels
    listed: int  # queries for which one of these labels is true, and not filtered
    filtered: int  # pairs
    others_NL: sp.csr_array  # pairs that are neither true nor filtered


def own_labels(queries: Split, label_texts: Sequence[str]) -> OwnLabels:
    """Which labels have the text of a query, and what the data says about these pairs."""
    same_NL = same_text(queries.texts, label_texts).astype(np.bool_)
    true_NL, filter_NL = queries.targets_NL.astype(np.bool_), queries.filter_NL.astype(np.bool_)
    return OwnLabels(
        rows_with_entry(same_NL),
        rows_with_entry(sp.csr_array(same_NL.multiply(true_NL) > filter_NL)),
        int(same_NL.multiply(filter_NL).nnz),
        sp.csr_array(same_NL > true_NL + filter_NL),
    )


def rows_with_entry(pairs_NL: sp.csr_array) -> int:
    return int(np.count_nonzero(np.diff(pairs_NL.indptr)))


def reciprocal(targets_NL: sp.csr_array, train_NL: sp.csr_array, held_ML: sp.csr_array) -> sp.csr_array:
    """[M, L] for a held-out query A: the training queries, as labels, that have A as a label.

    Args:
        targets_NL: the labels of the training queries.
        train_NL: which label a training query is.
        held_ML: which label a held-out query is.
    """
    has_LN = sp.csr_array(targets_NL.astype(np.bool_).astype(np.float32).T)
    return sp.csr_array((held_ML @ has_LN) @ train_NL)
