"""A weighted bag of words, word pairs and character n-grams: no download, trains in seconds on a CPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import Encoder, Ragged, Side, Tokens, option
from xmclab.tables import RowTable, TableOptimizer
from xmclab.text import FeatureOptions, Featuriser

FEATURES, IDF = "features.json", "idf.npy"


@dataclass(eq=False)
class Bag(Encoder, FeatureOptions):
    """TF-IDF weighted sum of feature vectors, then an optional residual layer.

    Formula:  b = sum_f w_f E_f,  x = b + U gelu(V b)  (x = b when hidden = 0)
    Where:    w_f TF-IDF weight of feature f in the text, E_f its trained vector
    """

    dim: int = option(256, "width of the vectors", ge=1)
    hidden: int = option(0, "units of the residual layer; 0: none", ge=0)
    feature_dropout: float = option(0.0, "share of a text's features left out in training", ge=0, lt=1)
    lr: float = option(2e-3, "learning rate of the vectors and of the residual layer", gt=0)
    table: TableOptimizer = option("adamw", "how the vectors of the features in a batch are updated")

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def width(self) -> int:
        return self.dim

    def fit(self, texts: Sequence[str]) -> None:
        self.featuriser = Featuriser(**_options(self))
        self.featuriser.fit(texts)
        self._create()

    def save_assets(self, folder: Path) -> None:
        state, idf = self.featuriser.state()
        (folder / FEATURES).write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
        np.save(folder / IDF, idf, allow_pickle=False)

    def load_assets(self, folder: Path) -> None:
        state = json.loads((folder / FEATURES).read_text(encoding="utf-8"))
        self.featuriser = Featuriser.from_state(state, np.load(folder / IDF, allow_pickle=False))
        self._create()

    def _create(self) -> None:
        self.embedding = RowTable(max(self.featuriser.width, 1), self.dim, lr=self.lr, optimizer=self.table)
        nn.init.normal_(self.embedding.weight, std=self.dim**-0.5)
        self.residual: nn.Module | None = None
        if self.hidden:
            last = nn.Linear(self.hidden, self.dim)
            nn.init.zeros_(last.weight)  # starts as the plain bag
            nn.init.zeros_(last.bias)
            self.residual = nn.Sequential(nn.Linear(self.dim, self.hidden), nn.GELU(), last)

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        return self.featuriser.transform(texts)

    def fit_key(self) -> dict[str, Any]:
        return _options(self)

    def token_key(self) -> dict[str, Any]:
        learned = hashlib.sha256("\n".join(self.featuriser.vocabulary).encode())
        learned.update(self.featuriser.idf.tobytes())
        return {**_options(self.featuriser), "vocabulary": learned.hexdigest()}

    def collate(self, tokens: Ragged) -> Tokens:
        """The texts as a sparse matrix [B, U] over the chunk's own features, by rows and by columns.

        Its columns serve the backward product, so that neither pass touches a feature that is not in the chunk.
        """
        features_U, column_T = np.unique(tokens.ids, return_inverse=True)
        row_T = np.repeat(np.arange(len(tokens)), np.diff(tokens.offsets))
        by_column_T = np.argsort(column_T, kind="stable")
        count_U = np.bincount(column_T, minlength=len(features_U))
        assert tokens.weights is not None
        arrays = {
            "features_U": features_U.astype(np.int64),
            "column_T": column_T.astype(np.int32),
            "row_offset_B": tokens.offsets[:-1].astype(np.int32),
            "weight_T": tokens.weights,
            "by_column_T": by_column_T,
            "row_by_column_T": row_T[by_column_T].astype(np.int32),
            "column_offset_U": (np.cumsum(count_U) - count_U).astype(np.int32),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        weight_T = F.dropout(tokens["weight_T"], self.feature_dropout, self.training)
        vectors_UD = self.embedding(tokens["features_U"])
        x_BD: Tensor = _SparseProduct.apply(vectors_UD, weight_T, tokens)  # type: ignore[no-untyped-call]
        return x_BD if self.residual is None else x_BD + self.residual(x_BD)


def _options(features: FeatureOptions) -> dict[str, Any]:
    return {f.name: getattr(features, f.name) for f in fields(FeatureOptions)}


class _SparseProduct(torch.autograd.Function):
    """x_BD = A_BU v_UD for sparse A; the backward product is the same kernel on the columns of A."""

    @staticmethod
    def forward(ctx: Any, v_UD: Tensor, weight_T: Tensor, tokens: Tokens) -> Tensor:
        ctx.save_for_backward(tokens["row_by_column_T"], tokens["column_offset_U"], weight_T[tokens["by_column_T"]])
        return F.embedding_bag(
            tokens["column_T"], v_UD, tokens["row_offset_B"], mode="sum", per_sample_weights=weight_T.to(v_UD.dtype)
        )

    @staticmethod
    def backward(ctx: Any, g_BD: Tensor) -> tuple[Tensor, None, None]:
        row_T, offset_U, weight_T = ctx.saved_tensors
        weight_T = weight_T.to(g_BD.dtype)
        g_UD = F.embedding_bag(row_T, g_BD.contiguous(), offset_U, mode="sum", per_sample_weights=weight_T)
        return g_UD, None, None
