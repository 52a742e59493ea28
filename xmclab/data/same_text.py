"""Queries and labels of the same text, and labels of the same text: whatever the encoder cannot tell apart."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Literal

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data.holdout import add_filter, own_labels

logger = logging.getLogger(__name__)


def filter_same_text(dataset: Dataset, choice: Literal["auto", "filter", "keep"], by_default: bool) -> Dataset:
    """The data set in which no query is trained against, or ranks, the label that has its text, unless that is true.

    Says how many queries there are, where nobody chose to keep such pairs.

    Args:
        by_default: what `auto` means: whether to filter.
    """
    if choice == "keep":
        return dataset
    splits = dataset.train, dataset.test
    pairs = [own_labels(split, dataset.label_texts) for split in splits]
    if not any(found.nnz for found in pairs):
        return dataset
    queries = sum(int(np.count_nonzero(np.diff(found.indptr))) for found in pairs)
    about = f"{dataset.name}: {queries:,} of {sum(map(len, splits)):,} queries have the text of a label"
    if choice == "auto" and not by_default:
        logger.warning("%s that no filter pair leaves out (data.same_text=filter does)", about)
        return dataset
    logger.info("%s, which is left out of their training, search and scores (data.same_text=keep keeps it)", about)
    train, test = (add_filter(split, found) for split, found in zip(splits, pairs, strict=True))
    return dataclasses.replace(dataset, train=train, test=test, fingerprint=_marked(dataset, "same text of a query"))


def _marked(dataset: Dataset, what: str) -> str:
    """The fingerprint of the data set after a change."""
    return hashlib.sha256(f"{dataset.fingerprint} {what}".encode()).hexdigest()


def spare_same_text(dataset: Dataset) -> Dataset:
    """The data set in which a label with the text of a query's positive is never a negative of this query in training.

    Labels keep their ids, and ranking and scoring do not change.
    """
    ids: dict[str, int] = {}
    text_L = np.array([ids.setdefault(text, len(ids)) for text in dataset.label_texts])
    ones = np.ones(len(text_L), dtype=np.float32)
    labels_LT = sp.csr_array((ones, (np.arange(len(text_L)), text_L)), shape=(len(text_L), len(ids)))
    true_NL = dataset.train.targets_NL.astype(np.bool_).astype(np.float32)
    alike_NL = sp.csr_array((true_NL @ labels_LT) @ labels_LT.T).astype(np.bool_)
    return dataclasses.replace(
        dataset,
        train=add_filter(dataset.train, sp.csr_array(alike_NL > true_NL.astype(np.bool_))),
        fingerprint=_marked(dataset, "same text"),
    )
