"""Encoders that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xmclab import hookimpl, option, part
from xmclab.api import Encoder, Ragged, Side, Tokens


@dataclass(eq=False)
class Words(Encoder):
    """What the others spoil: the mean of trained vectors of words."""

    dim: int = option(4, "width of the vectors", ge=1)
    lr: float = option(1e-2, "learning rate", gt=0)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def width(self) -> int:
        return self.dim

    def fit(self, texts: Sequence[str]) -> None:
        self.create(sorted({word for text in texts for word in text.split()}))

    def create(self, words: list[str]) -> None:
        self.words = words
        self.number = {word: number for number, word in enumerate(words, start=1)}
        self.embedding = nn.Embedding(len(words) + 1, self.dim)

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        lists = [[self.number.get(word, 0) for word in text.split()] for text in texts]
        return Ragged(np.array([i for ids in lists for i in ids], np.int32), np.cumsum([0, *map(len, lists)]))

    def collate(self, tokens: Ragged) -> Tokens:
        lengths = torch.from_numpy(np.diff(tokens.offsets))
        ids = torch.from_numpy(tokens.ids).long().split(lengths.tolist())
        return {"ids_BT": nn.utils.rnn.pad_sequence(list(ids), batch_first=True), "length_B": lengths}

    def mask(self, tokens: Tokens) -> Tensor:
        return torch.arange(tokens["ids_BT"].shape[1]) < tokens["length_B"].unsqueeze(1)

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        mask_BT1 = self.mask(tokens).unsqueeze(2)
        return (self.embedding(tokens["ids_BT"]) * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1).clamp(min=1)

    def save_assets(self, folder: Path) -> None:
        (folder / "words.json").write_text(json.dumps(self.words))

    def load_assets(self, folder: Path) -> None:
        self.create(json.loads((folder / "words.json").read_text()))


@dataclass
class Unhashable(Words):
    pass


@dataclass(eq=False)
class DefaultOutOfBounds(Words):
    dropout: float = option(1.0, "share of the words left out in training", lt=1)


@dataclass(eq=False)
class NoRate(Words):
    lr: float = 0.0


@dataclass(eq=False)
class OffsetsWithoutEnd(Words):
    def tokenise(self, texts: Sequence[str]) -> Ragged:
        tokens = super().tokenise(texts)
        return Ragged(tokens.ids, tokens.offsets[:-1])


@dataclass(eq=False)
class MeanOfNone(Words):
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        mask_BT1 = self.mask(tokens).unsqueeze(2)
        return (self.embedding(tokens["ids_BT"]) * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)


@dataclass(eq=False)
class WrongWidth(Words):
    @property
    def width(self) -> int:
        return self.dim + 1


@dataclass(eq=False)
class AlwaysDrops(Words):
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        return nn.functional.dropout(super().forward(tokens, side), 0.5)


@dataclass(eq=False)
class Centred(Words):
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        x_BD = super().forward(tokens, side)
        return x_BD - x_BD.mean(dim=0)


@dataclass(eq=False)
class CountsPadding(Words):
    def mask(self, tokens: Tokens) -> Tensor:
        return torch.ones_like(tokens["ids_BT"], dtype=torch.bool)


@dataclass(eq=False)
class UnusedLayer(Words):
    def create(self, words: list[str]) -> None:
        super().create(words)
        self.pooler = nn.Linear(self.dim, self.dim)


@dataclass(eq=False)
class Detached(Words):
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        return super().forward(tokens, side).detach()


@dataclass(eq=False)
class NoSay(UnusedLayer):
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        x_BD = super().forward(tokens, side)
        return x_BD + 0 * self.pooler(x_BD)


@dataclass(eq=False)
class ForgetsTheWords(Words):
    def save_assets(self, folder: Path) -> None:
        (folder / "words.json").write_text(json.dumps(self.words[::-1]))


@dataclass(eq=False)
class KeyOfNoJson(Words):
    def token_key(self) -> dict[str, Any]:
        return {"words": set(self.words)}


@dataclass(eq=False)
class NumbersAsTheyCome(Words):
    """Ids depend on which texts are tokenised together."""

    def token_key(self) -> dict[str, Any]:
        return {"words": self.words}

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        tokens = super().tokenise(texts)
        _, ids = np.unique(tokens.ids, return_inverse=True)
        return Ragged(ids.astype(np.int32), tokens.offsets)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__unhashable": Unhashable,
        "options__default": DefaultOutOfBounds,
        "fits__no_rate": NoRate,
        "tokens__offsets": OffsetsWithoutEnd,
        "shape__mean_of_none": MeanOfNone,
        "shape__width": WrongWidth,
        "repeatable__dropout": AlwaysDrops,
        "chunking__centred": Centred,
        "padding__counted": CountsPadding,
        "gradients__unused": UnusedLayer,
        "gradients__detached": Detached,
        "gradients__zeros": NoSay,
        "assets__words": ForgetsTheWords,
        "kept_tokens__key": KeyOfNoJson,
        "kept_tokens__together": NumbersAsTheyCome,
    }
    return [part("encoder", name, cls) for name, cls in classes.items()]
