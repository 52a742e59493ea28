"""Queries and labels of the same text, and labels of the same text: whatever the encoder cannot tell apart."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from typing import Literal

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data.holdout import add_filter, own_labels, rows_with_entry

logger = logging.getLogger(__name__)


def filter_same_text(dataset: Dataset, choice: Literal["auto", "filter", "keep"], by_default: bool) -> Dataset:
    """The data set in which no query is trained against, or ranks, the label that has its text, unless that is true.

    Says how many queries there are, and for how many such a pair is true, where nobody chose to keep such pairs.

    Args:
        by_default: what `auto` means: whether to filter.
    """
    if choice == "keep":
        return dataset
    splits = dataset.train, dataset.test
    own = [own_labels(split, dataset.label_texts) for split in splits]
    of_all = f"of {sum(map(len, splits)):,} queries"
    if listed := sum(found.listed for found in own):
        trivial = "text search answers them trivially, so drop these labels unless they are real answers"
        logger.warning(
            "%s: %s",
            dataset.name,
            f"{listed:,} {of_all} list a label with their own text, which therefore stays: {trivial}",
        )
    if not (pairs := sum(found.others_NL.nnz for found in own)):
        return dataset
    if choice == "auto" and not by_default:
        queries = sum(rows_with_entry(found.others_NL) for found in own)
        what = "have the text of a label that no filter pair leaves out (data.same_text=filter does)"
        logger.warning("%s: %s", dataset.name, f"{queries:,} {of_all} {what}")
        return dataset
    queries = sum(found.queries for found in own)
    left_out, them = ("one such pair is", "it") if pairs == 1 else (f"{pairs:,} such pairs are", "them")
    effect = f"{left_out} left out of training, search and scores (data.same_text=keep keeps {them})"
    logger.info("%s: %s", dataset.name, f"{queries:,} {of_all} have the text of a label; {effect}")
    train, test = (add_filter(split, found.others_NL) for split, found in zip(splits, own, strict=True))
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
