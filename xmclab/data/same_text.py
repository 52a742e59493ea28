"""Labels of the same text: the encoder cannot tell them apart, so they must not be each other's negatives."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data.holdout import add_filter


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
        fingerprint=hashlib.sha256(f"{dataset.fingerprint} same text".encode()).hexdigest(),
    )
