"""The text of every label as one more training query, with the label itself as its target.

Formula:  N + L training queries; query N + l has the text of label l and the targets y_l = e_l
Use when: labels and queries are texts of the same kind, such as titles of products; rare labels gain most.
Paper:    Jain et al., "Renee: End-to-end training of extreme classification models", MLSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Split, Transform
from xmclab.data.sparse import canonical, no_pairs
from xmclab.data.texts import JoinedTexts


@dataclass
class LabelsAsQueries(Transform):
    """The labels as extra training queries, each with itself as its target."""

    def apply(self, data: Dataset) -> Dataset:
        labels = np.arange(data.num_labels, dtype=np.int32)
        ones = np.ones(data.num_labels, np.float32)
        own_LL = sp.csr_array((ones, (labels, labels)), shape=(data.num_labels, data.num_labels))
        return with_label_queries(data, own_LL)


def with_label_queries(data: Dataset, targets_LL: sp.csr_array) -> Dataset:
    """The data set with the labels as further training queries, after the others.

    Files of negatives list none for them, and they have no filter pairs: those of a query with the text of a label
    exclude that label, here the first target.
    """
    train, labels = data.train, data.num_labels
    nothing_LL, listed_NL = no_pairs(labels, labels), train.candidates_NL
    joined = Split(
        texts=JoinedTexts(train.texts, data.label_texts),
        names=JoinedTexts(train.names, data.label_names),
        targets_NL=_stacked(train.targets_NL, targets_LL),
        filter_NL=_stacked(train.filter_NL, nothing_LL),
        candidates_NL=None if listed_NL is None else _stacked(listed_NL, nothing_LL),
    )
    return replace(data, train=joined)


def _stacked(above_NL: sp.csr_array, below_LL: sp.csr_array) -> sp.csr_array:
    return canonical(sp.csr_array(sp.vstack([above_NL, below_LL.astype(above_NL.dtype)], format="csr")))
