"""The model: a shared encoder and its heads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from xmclab.api import Encoder, Head, Ragged, Side
from xmclab.errors import ConfigError
from xmclab.model.device import FULL, Precision, to_device
from xmclab.model.dropout import key_dropouts
from xmclab.model.tables import RowTable


class Model(nn.Module):
    """An encoder and the heads on it, by name (`de`, `clf`).

    The encoder must be fitted; the heads are built here, and every nn.Dropout becomes a `KeyedDropout`.

    Args:
        precision: of encoding outside training.
    """

    def __init__(
        self, encoder: Encoder, heads: Mapping[str, Head], num_labels: int, precision: Precision = FULL
    ) -> None:
        super().__init__()
        self.precision = precision
        self.encoder = encoder
        self.num_labels = num_labels
        for name, head in heads.items():
            with named(f"head.{name}"):
                head.build(encoder.width, num_labels)
        self.heads = nn.ModuleDict(dict(heads))
        key_dropouts(self)

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

    def encoder_report(self) -> dict[str, Any]:
        """What the encoder reports, at the precision of the model."""
        with self.precision.without_gradients():
            return self.encoder.report()

    @property
    def reads_label_texts(self) -> bool:
        return any(self.head(name).labels_from == "text" for name in self.heads)

    def tables(self) -> list[RowTable]:
        """Every table of rows, of any part."""
        return [module for module in self.modules() if isinstance(module, RowTable)]

    def settle(self) -> None:
        """Bring all rows of all tables up to date."""
        for table in self.tables():
            table.settle()

    def encode(self, tokens: Ragged, side: Side, chunk: int) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """(rows, x_BD) of all texts, a chunk of similar lengths at a time; for use in `precision.without_gradients`."""
        order = np.argsort(np.diff(tokens.offsets), kind="stable")
        for start in range(0, len(order), chunk):
            rows = order[start : start + chunk]
            yield rows, self.encoder(to_device(self.encoder.collate(tokens.take(rows)), self.device), side)

    @torch.no_grad()
    def encode_all(self, tokens: Ragged, side: Side, chunk: int, device: torch.device) -> Tensor:
        """x_ND of all texts in float32, with dropout off."""
        self.eval()
        x_ND = torch.empty(len(tokens), self.encoder.width, device=device)
        with self.precision.without_gradients():
            for rows, x_BD in self.encode(tokens, side, chunk):
                x_ND[torch.from_numpy(rows).to(device)] = x_BD.to(device, torch.float32)
        return x_ND

    @torch.no_grad()
    def start_heads(
        self,
        encoded: Callable[[Side], Tensor],
        targets_NL: sp.csr_array,
        known: Sequence[str] = (),
        real_NL: sp.csr_array | None = None,
    ) -> None:
        """Let heads initialise themselves from the data.

        Args:
            encoded: gives x_ND of all training queries, or of all labels.
            known: heads that need not, as their weights are loaded.
            real_NL: targets by which labels are counted; None: the same.
        """
        heads = [self.head(name) for name in self.heads if name not in known]
        for head in heads:
            head.count(targets_NL if real_NL is None else real_NL)
        if waiting := [head for head in heads if head.starts_from_texts]:
            x_ND, x_LD = encoded("query"), encoded("label")
            for head in waiting:
                head.start(x_ND, x_LD, targets_NL)

    def query_vectors(self, tokens: Ragged, chunk: int, names: Sequence[str] | None = None) -> Vectors:
        """q_ND of the named heads (default: all) as searched, in float32, with dropout off."""
        names = names or self.head_names
        return self._vectors(self.encode(tokens, "query", chunk), len(tokens), "query", names)

    def label_vectors(
        self, tokens: Ragged, chunk: int, names: Sequence[str] | None = None, new: bool = False
    ) -> Vectors:
        """z_LD of the named heads (default: all) as searched, in float32, with dropout off.

        Args:
            tokens: of all training labels; with `new`, of labels that only heads that read texts know.
        """
        names = names or self.head_names
        if any(self.head(name).labels_from == "text" for name in names):
            first = self.num_labels if new else 0
            return self._vectors(self.encode(tokens, "label", chunk), len(tokens), "label", names, first)
        every = np.arange(self.num_labels)
        unread = ((every[start : start + chunk], None) for start in range(0, len(every), chunk))
        return self._vectors(unread, len(every), "label", names)

    def _vectors(
        self,
        chunks: Iterable[tuple[NDArray[np.int64], Tensor | None]],
        num: int,
        side: Side,
        names: Sequence[str],
        first: int = 0,
    ) -> Vectors:
        self.eval()
        vectors = Vectors()
        with self.precision.without_gradients():
            for rows, x_BD in chunks:
                where = torch.from_numpy(rows).to(self.device)
                found = [self._of_head(self.head(name), side, x_BD, where + first) for name in names]
                if not vectors:
                    vectors = Vectors.empty(names, num, found)
                for name, v_BD in zip(names, found, strict=True):
                    vectors[name][where] = v_BD
        return vectors

    @staticmethod
    def _of_head(head: Head, side: Side, x_BD: Tensor | None, where: Tensor) -> Tensor:
        if side == "query":
            assert x_BD is not None
            return head.search_queries(x_BD)
        return head.search_labels(x_BD, where)


@contextlib.contextmanager
def named(slot: str) -> Iterator[None]:
    """Put the slot of a part in front of the options that it complains about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*(replace(problem, where=f"{slot}.{problem.where}") for problem in error.problems)) from None


class Vectors(dict[str, Tensor]):
    """The vectors of texts by head: columns of one tensor, so that all heads are side by side without a copy.

    Empty if there are no texts.
    """

    together: Tensor

    @classmethod
    def empty(cls, names: Sequence[str], num: int, like: Sequence[Tensor]) -> Vectors:
        """For `num` texts, and heads whose vectors are like these, in at least float32."""
        widths = [v_BD.shape[1] for v_BD in like]
        dtype = torch.promote_types(like[0].dtype, torch.float32)
        together = like[0].new_empty(num, sum(widths), dtype=dtype)
        vectors = cls(zip(names, together.split(widths, dim=1), strict=True))
        vectors.together = together
        return vectors


def with_constant(q_ND: Tensor, z_LD: Tensor) -> Tensor:
    """The query vectors, with a 1 at the end if the label vectors have a bias there."""
    return F.pad(q_ND, (0, 1), value=1.0) if z_LD.shape[1] > q_ND.shape[1] else q_ND
