"""The mean of a text's word vectors, in a table of fixed size.

Formula:  x = mean_w E[hash(w) mod buckets]
Where:    w over the words of the text, E a trained table
Use when: there is no time for a vocabulary
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xmclab
from torch import Tensor, nn
from xmclab.api import Encoder, Ragged, Side, Tokens


@dataclass(eq=False)
class PartName(Encoder):
    """The mean of a text's word vectors, from a table indexed by hash."""

    dim: int = xmclab.option(128, "width of the vectors", ge=1)
    buckets: int = xmclab.option(1 << 14, "rows of the table", ge=1)
    lr: float = xmclab.option(5e-3, "learning rate", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def width(self) -> int:
        """D of the vectors."""
        return self.dim

    def fit(self, texts: Sequence[str]) -> None:
        """Nothing to learn from the texts: make the parameters."""
        self.words = nn.EmbeddingBag(self.buckets, self.dim, mode="mean")

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        """The buckets of each text's words, on the host."""
        words = [text.lower().split() for text in texts]
        ids = [zlib.crc32(w.encode()) % self.buckets for text in words for w in text]
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
        return Ragged(np.array(ids, np.int32), offsets)

    def collate(self, tokens: Ragged) -> Tokens:
        """A chunk of texts as the tensors that `forward` takes."""
        return {
            "id_T": torch.from_numpy(tokens.ids).long(),
            "offset_B": torch.from_numpy(tokens.offsets[:-1]),
        }

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        """x_BD; queries and labels are read alike."""
        x_BD: Tensor = self.words(tokens["id_T"], tokens["offset_B"])
        return x_BD

    def save_assets(self, folder: Path) -> None:
        """Nothing to save: `fit` makes only parameters."""

    def load_assets(self, folder: Path) -> None:
        """In place of `fit`."""
        self.fit([])
