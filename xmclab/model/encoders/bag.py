"""A weighted bag of words, word pairs and character n-grams: no download, trains in seconds on a CPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from xmclab.api import Encoder, Ragged, Side, Tokens, linear, log, option
from xmclab.model.dropout import current, drop_items
from xmclab.model.encoders.features import FeatureOptions, Featuriser
from xmclab.model.tables import RowTable, TableOptimizer
from xmclab.system.reading import load_arrays, read_json

FEATURES, IDF = "features.json", "idf.npy"
FEATURES_SITE = 1  # of the dropout of features


@dataclass(eq=False)
class Bag(Encoder, FeatureOptions):
    """TF-IDF weighted sum of feature vectors, then an optional residual layer.

    Formula:  b = sum_f w_f E_f,  x = b + U gelu(V b)  (x = b when hidden = 0)
    Where:    w_f TF-IDF weight of feature f in the text, E_f its trained vector; with towers=separate, labels have
              vectors of their own, with towers=residual vectors that are added to those of queries
    """

    dim: int = option(256, "width of the vectors", ge=1)
    hidden: int = option(0, "units of the residual layer; 0: none", ge=0)
    towers: Literal["shared", "separate", "residual"] = option(
        "shared", "vectors for both sides; a copy for labels; or vectors from 0 that labels add to the shared ones"
    )
    feature_dropout: float = option(
        0.0, "share of a text's features dropped in training", ge=0, lt=1, search=linear(0, 0.5)
    )
    lr: float = option(2e-3, "learning rate of the vectors and of the residual layer", gt=0, search=log(1e-3, 3e-2))
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
        state = read_json(folder / FEATURES, "records")
        self.featuriser = Featuriser.from_state(state, load_arrays(folder / IDF))
        self._create()

    def _create(self) -> None:
        self.embedding = RowTable(max(self.featuriser.width, 1), self.dim, lr=self.lr, optimizer=self.table)
        nn.init.normal_(self.embedding.weight, std=self.dim**-0.5)
        if self.towers != "shared":
            self.label_embedding = RowTable(len(self.embedding.weight), self.dim, lr=self.lr, optimizer=self.table)
            start = self.embedding.weight if self.towers == "separate" else torch.zeros_like(self.embedding.weight)
            self.label_embedding.weight.data.copy_(start)
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
        """The texts as a sparse matrix [B, features], by rows, and by columns of the features that occur (U of them).

        The columns serve the backward product, so that neither pass touches a feature that is not in the chunk.
        """
        assert tokens.weights is not None
        shape = len(tokens), len(self.embedding.weight)
        by_column = sp.csr_array((np.arange(len(tokens.ids)), tokens.ids, tokens.offsets), shape=shape).tocsc()
        features_U = np.flatnonzero(np.diff(by_column.indptr))
        arrays = {
            "feature_T": tokens.ids.astype(np.int32),
            "row_offset_B": tokens.offsets[:-1].astype(np.int32),
            "weight_T": tokens.weights,
            "features_U": features_U,
            "column_offset_U": by_column.indptr[features_U].astype(np.int32),
            "row_by_column_T": by_column.indices.astype(np.int32),
            "by_column_T": by_column.data,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        weight_T = self._weights(tokens)
        first, *others = (
            _SparseProduct.apply(table.weight, table, weight_T, tokens)  # type: ignore[no-untyped-call]
            for table in self._tables(side)
        )
        x_BD: Tensor = sum(others, start=first)
        return x_BD if self.residual is None else x_BD + self.residual(x_BD)

    def _weights(self, tokens: Tokens) -> Tensor:
        """Those of the features, after dropout by text and feature."""
        weight_T: Tensor = tokens["weight_T"]
        now = current()
        if not self.training or not self.feature_dropout or now is None:
            return F.dropout(weight_T, self.feature_dropout, self.training)
        lists = tokens["row_offset_B"], tokens["feature_T"]
        return drop_items(weight_T, now.key, *lists, now.site(FEATURES_SITE), self.feature_dropout)

    def _tables(self, side: Side) -> tuple[RowTable, ...]:
        """Those whose vectors are added up."""
        if side == "query" or self.towers == "shared":
            return (self.embedding,)
        return (self.label_embedding,) if self.towers == "separate" else (self.embedding, self.label_embedding)


def _options(features: FeatureOptions) -> dict[str, Any]:
    return {f.name: getattr(features, f.name) for f in fields(FeatureOptions)}


class _SparseProduct(torch.autograd.Function):
    """x_BD = A v for sparse A and the rows v = scale * table; the backward product is the same kernel on columns of A.

    Rows are read where they are; the table takes the gradient, that of v, of the features that occur.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, table: RowTable, weight_T: Tensor, tokens: Tokens) -> Tensor:
        weight_T = weight_T.to(weight.dtype)
        by_column = [tokens[name] for name in ("features_U", "column_offset_U", "row_by_column_T")]
        ctx.save_for_backward(*by_column, weight_T[tokens["by_column_T"]])
        ctx.table = table
        weight_T = weight_T if table.scale == 1.0 else weight_T * table.scale
        return F.embedding_bag(
            tokens["feature_T"], weight, tokens["row_offset_B"], mode="sum", per_sample_weights=weight_T
        )

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, g_BD: Tensor) -> tuple[None, None, None, None]:
        features_U, offset_U, row_T, weight_T = ctx.saved_tensors
        g_UD = F.embedding_bag(row_T, g_BD.contiguous(), offset_U, mode="sum", per_sample_weights=weight_T)
        ctx.table.add_gradient(features_U, g_UD, distinct=True)
        return None, None, None, None
