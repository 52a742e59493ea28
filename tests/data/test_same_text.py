"""Labels of the same text."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data.same_text import spare_same_text

LABELS = ["a", "b", "a", "c", "a", "b"]


def dataset() -> Dataset:
    rng = np.random.default_rng(0)

    def half(rows: int) -> Split:
        targets, filters = (sp.csr_array((rng.random((rows, 6)) < 0.3).astype(np.float32)) for _ in range(2))
        return Split([""] * rows, [""] * rows, targets, filters)

    return Dataset("d", half(40), half(5), LABELS, list("123456"), "f")


def test_labels_alike_are_added_to_the_training_filter_alone() -> None:
    before, after = dataset(), spare_same_text(dataset())
    true, expected = before.train.targets_NL.toarray() > 0, before.train.filter_NL.toarray() > 0
    for row in range(40):
        for positive in np.flatnonzero(true[row]):
            for label, text in enumerate(LABELS):
                if text == LABELS[positive] and not true[row, label]:
                    expected[row, label] = True
    np.testing.assert_array_equal(after.train.filter_NL.toarray() > 0, expected)
    np.testing.assert_array_equal(after.train.targets_NL.toarray(), before.train.targets_NL.toarray())
    np.testing.assert_array_equal(after.test.filter_NL.toarray(), before.test.filter_NL.toarray())
    assert after.train.filter_NL.has_sorted_indices
    assert after.label_texts == before.label_texts
    assert after.fingerprint != before.fingerprint
