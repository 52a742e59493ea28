"""A new cut of all queries into training and test, with the pairs that would give the answer away filtered."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data.holdout import add_filter, key_of, rows_of, take
from xmclab_datatools.write import Contents, pooled


def resplit(dataset: Dataset, contents: Contents, share: float, seed: int) -> tuple[Dataset, Contents]:
    """The same queries in another split: equal titles stay together, the same seed gives the same split.

    Where queries are labels themselves, pairs are filtered as in the sets of the Extreme Classification Repository:
    a query with itself; and a test query A with B if B is a training query that has A as a label. Such pairs are not
    test truth either.
    """
    queries = pooled([dataset.train, dataset.test])
    keys = np.array([key_of(title, seed) for title in queries.texts], dtype=np.uint64)
    rows = rows_of(queries, keys, share, dataset.name, "a split needs at least two distinct query texts")
    train, test = (take(queries, some) for some in rows)
    train_NL, test_NL = (same_text(split.texts, dataset.label_texts) for split in (train, test))
    test = add_filter(add_filter(test, test_NL), reciprocal(train.targets_NL, train_NL, test_NL))
    known = test.filter_NL.astype(np.bool_)
    truth_NL = sp.csr_array(test.targets_NL - test.targets_NL.multiply(known))
    truth_NL.eliminate_zeros()
    truth_NL.sort_indices()
    test = dataclasses.replace(test, targets_NL=truth_NL)
    texts = [*contents.train, *contents.test]
    new_train, new_test = ([texts[row] for row in some] for some in rows)
    cut = dataclasses.replace(dataset, train=add_filter(train, train_NL), test=test)
    return cut, Contents(new_train, new_test, contents.labels)


def same_text(texts: Sequence[str], label_texts: Sequence[str]) -> sp.csr_array:
    """[N, L] whether the text of a query is the text of a label."""
    ids: dict[str, list[int]] = {}
    for label, text in enumerate(label_texts):
        ids.setdefault(text, []).append(label)
    found = [(row, label) for row, text in enumerate(texts) for label in ids.get(text, ())]
    rows, columns = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(texts), len(label_texts)))


def reciprocal(targets_NL: sp.csr_array, train_NL: sp.csr_array, test_ML: sp.csr_array) -> sp.csr_array:
    """[M, L] for a test query A: the training queries, as labels, that have A as a label.

    Args:
        targets_NL: the labels of the training queries.
        train_NL: which label a training query is.
        test_ML: which label a test query is.
    """
    has_LN = sp.csr_array(targets_NL.astype(np.bool_).astype(np.float32).T)
    return sp.csr_array((test_ML @ has_LN) @ train_NL)
