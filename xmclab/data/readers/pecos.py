"""Reader of the layout of PECOS and X-Transformer."""

from __future__ import annotations

from dataclasses import dataclass

from xmclab.data.readers.text_matrix import TextMatrixReader


@dataclass
class Pecos(TextMatrixReader):
    """PECOS's layout: `X.trn.txt`, `X.tst.txt` and `output-items.txt` with `Y.trn.npz` and `Y.tst.npz`.

    X-Transformer's names for the same files work too: `train_raw_texts.txt`, `test_raw_texts.txt`, `label_map.txt`. So
    do label files `Y.trn.txt` and `Y.tst.txt` with the label indices of a text per line, separated by commas.
    """

    train_texts = ("X.trn.txt", "train_raw_texts.txt")
    test_texts = ("X.tst.txt", "test_raw_texts.txt")
    label_texts = ("output-items.txt", "label_map.txt")
    train_labels = ("Y.trn.npz", "Y.trn.txt")
    test_labels = ("Y.tst.npz", "Y.tst.txt")
