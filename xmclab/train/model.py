"""The model: a shared encoder and its heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from xmclab.api import Encoder, Head, Ragged, Side, Tokens
from xmclab.tables import RowTable


class Model(nn.Module):
    """An encoder and the heads on it, by name (`de`, `clf`).

    The encoder must be fitted; the heads are built here.
    """

    def __init__(self, encoder: Encoder, heads: Mapping[str, Head], num_labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_labels = num_labels
        for head in heads.values():
            head.build(encoder.width, num_labels)
        self.heads = nn.ModuleDict(dict(heads))

    def head(self, name: str) -> Head:
        head = self.heads[name]
        assert isinstance(head, Head)
        return head

    @property
    def head_names(self) -> tuple[str, ...]:
        return tuple(self.heads)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def reads_label_texts(self) -> bool:
        return any(self.head(name).labels_from == "text" for name in self.heads)

    def tables(self) -> list[RowTable]:
        """Every table of rows, of whatever part."""
        return [module for module in self.modules() if isinstance(module, RowTable)]

    def settle(self) -> None:
        """Bring all rows of all tables up to date."""
        for table in self.tables():
            table.settle()

    @torch.inference_mode()
    def encode(self, tokens: Ragged, side: Side, chunk: int) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """(rows, x_BD) of all texts, a chunk of similar lengths at a time; for use outside training."""
        order = np.argsort(np.diff(tokens.offsets), kind="stable")
        for start in range(0, len(order), chunk):
            rows = order[start : start + chunk]
            yield rows, self.encoder(to_device(self.encoder.collate(tokens.take(rows)), self.device), side)

    @torch.no_grad()
    def start_heads(self, query_tokens: Ragged, label_tokens: Ragged, targets_NL: sp.csr_array, chunk: int) -> None:
        """Let the heads that want to begin from the encoder's first picture of the data."""
        heads = [self.head(name) for name in self.heads if self.head(name).starts_from_texts]
        if not heads:
            return
        self.eval()
        x_ND = self._gather(query_tokens, "query", chunk)
        x_LD = self._gather(label_tokens, "label", chunk)
        for head in heads:
            head.start(x_ND, x_LD, targets_NL)

    def _gather(self, tokens: Ragged, side: Side, chunk: int) -> Tensor:
        x_ND = torch.empty(len(tokens), self.encoder.width, device=self.device)
        for rows, x_BD in self.encode(tokens, side, chunk):
            x_ND[torch.from_numpy(rows).to(self.device)] = x_BD.float()
        return x_ND

    @torch.inference_mode()
    def query_vectors(self, tokens: Ragged, chunk: int, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """q_ND of the named heads (default: all) as searched: dropout off, unit length."""
        return self._vectors(tokens, "query", chunk, names or self.head_names)

    @torch.inference_mode()
    def label_vectors(self, tokens: Ragged, chunk: int, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """z_LD of the named heads (default: all) as searched: dropout off, unit length."""
        names = names or self.head_names
        textual = [name for name in names if self.head(name).labels_from == "text"]
        vectors = self._vectors(tokens, "label", chunk, textual) if textual else {}
        self.eval()
        for name in names:
            if name not in vectors:
                labels_L = torch.arange(self.num_labels, device=self.device)
                vectors[name] = F.normalize(self.head(name).labels(None, labels_L).float(), dim=-1)
        return {name: vectors[name] for name in names}

    def _vectors(self, tokens: Ragged, side: Side, chunk: int, names: Sequence[str]) -> dict[str, Tensor]:
        self.eval()
        vectors: dict[str, Tensor] = {}
        for rows, x_BD in self.encode(tokens, side, chunk):
            where = torch.from_numpy(rows).to(self.device)
            for name in names:
                head = self.head(name)
                v_BD = head.queries(x_BD) if side == "query" else head.labels(x_BD, where)
                v_BD = F.normalize(v_BD.float(), dim=-1)
                if name not in vectors:
                    vectors[name] = v_BD.new_empty(len(tokens), v_BD.shape[1])
                vectors[name][where] = v_BD
        return vectors


def to_device(tokens: Tokens, device: torch.device) -> Tokens:
    """A chunk of tokens with its tensors on the device of the run."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in tokens.items()
    }
