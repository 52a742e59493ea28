"""Reader of the raw texts of the Extreme Classification Repository with its sparse label files."""

from __future__ import annotations

from dataclasses import dataclass

from xmclab.data.readers.text_matrix import TextMatrixReader


@dataclass
class RawText(TextMatrixReader):
    """Raw texts: `trn_X.txt`, `tst_X.txt` and `Y.txt`, a text per line, with `trn_X_Y.txt` and `tst_X_Y.txt`.

    The label files have a line `label:relevance label:relevance ...` per text, with or without a first line
    `rows columns`; `.npz` matrices work in their place.
    """

    train_texts = ("trn_X.txt",)
    test_texts = ("tst_X.txt",)
    label_texts = ("Y.txt",)
    train_labels = ("trn_X_Y.txt", "trn_X_Y.npz")
    test_labels = ("tst_X_Y.txt", "tst_X_Y.npz")
