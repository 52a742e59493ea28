"""A new cut of all queries into training and test, with the pairs that would give the answer away filtered."""

from __future__ import annotations

import dataclasses

import numpy as np

from xmclab.api import Dataset
from xmclab.data.holdout import add_filter, filter_answers, key_of, rows_of, same_text, take
from xmclab_datatools.write import Contents, pooled


def resplit(dataset: Dataset, contents: Contents, share: float, seed: int) -> tuple[Dataset, Contents]:
    """The same queries in another split: equal titles stay together, the same seed gives the same split.

    Where queries are labels themselves, pairs are filtered: a training query with itself, and what `filter_answers`
    says of test queries.
    """
    queries = pooled([dataset.train, dataset.test])
    keys = np.array([key_of(title, seed) for title in queries.texts], dtype=np.uint64)
    rows = rows_of(queries, keys, share, dataset.name, "a split needs at least two distinct query texts")
    train, test = (take(queries, some) for some in rows)
    test = filter_answers(train, test, dataset.label_texts)
    train = add_filter(train, same_text(train.texts, dataset.label_texts))
    texts = [*contents.train, *contents.test]
    new_train, new_test = ([texts[row] for row in some] for some in rows)
    return dataclasses.replace(dataset, train=train, test=test), Contents(new_train, new_test, contents.labels)
