"""Reader of the layout that DEXML and its relatives use."""

from __future__ import annotations

from dataclasses import dataclass

from xmclab.data.readers.text_matrix import TextMatrixReader


@dataclass
class Dexml(TextMatrixReader):
    """DEXML's layout: `raw/trn_X.txt`, `raw/tst_X.txt` and `raw/Y.txt` with `Y.trn.npz` and `Y.tst.npz`.

    The sparse label files `trn_X_Y.txt` and `tst_X_Y.txt` work in place of the matrices.
    """

    train_texts = ("raw/trn_X.txt",)
    test_texts = ("raw/tst_X.txt",)
    label_texts = ("raw/Y.txt",)
    train_labels = ("Y.trn.npz", "trn_X_Y.txt", "trn_X_Y.npz")
    test_labels = ("Y.tst.npz", "tst_X_Y.txt", "tst_X_Y.npz")
