"""The input of a step, prepared in a thread while the step before it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch, Ragged, Side, Tokens
from xmclab.model.model import Model
from xmclab.objectives.truth import Truth
from xmclab.training.transfer import Shipment

Part = Callable[[str], contextlib.AbstractContextManager[object]]  # times a named part of the work
Item = TypeVar("Item")
Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Texts that are encoded together, and where their draws come from."""

    tokens: Tokens
    seed: int  # of torch's generator, for parts that draw from it
    key_B: Tensor | None = None  # of dropout, by text; None: it draws from torch's generator too
    length: int = 0  # tokens of all texts


@dataclass(frozen=True)
class Prepared:
    """A batch, and its tensors on the device of the run, or on their way there."""

    batch: Batch
    queries: list[Chunk]
    labels: list[Chunk]  # empty when no head reads label texts
    labels_P: Tensor
    truth: Truth
    label_weight_P: Tensor | None
    seed: int  # of torch's generator in the heads
    complete: Mapping[str, float] = field(default_factory=dict)  # by band: queries with all positives in the pool
    key_Q: Tensor | None = None  # of dropout, see `Chunk`
    key_P: Tensor | None = None
    update_seed: int = 0  # of torch's generator in the updates: rounding to bfloat16 draws
    chunk: int = 0  # texts encoded at once; 0: all
    fixed: tuple[Tensor, Tensor | None] | None = None  # vectors of both sides from a frozen encoder, instead of chunks
    shipment: Shipment | None = None  # to be received before the tensors are used


def ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Iterator[Result]:
    """`map`, with the next result computed in a thread while the current one is used.

    Args:
        waiting: context manager around waits for a result.
    """

    def awaited(future: Future[Result]) -> Result:
        with waiting():
            return future.result()

    with ThreadPoolExecutor(max_workers=1) as pool:
        pending: Future[Result] | None = None
        for item in items:
            following = pool.submit(function, item)
            if pending is not None:
                yield awaited(pending)
            pending = following
        if pending is not None:
            yield awaited(pending)


class EncodedTexts:
    """What a frozen encoder makes of all texts: computed once, when first used, and kept in host memory."""

    def __init__(self, model: Model, queries: Ragged, labels: Ragged | None, chunk: int) -> None:
        """
        Args:
            labels: None if they are not read.
        """
        self.model, self.chunk = model, chunk
        self.tokens: dict[Side, Ragged | None] = {"query": queries, "label": labels}
        self._known: dict[Side, Tensor] = {}

    def all(self, side: Side) -> Tensor:
        """x_ND of all queries, or of all labels."""
        if side not in self._known:
            tokens = self.tokens[side]
            assert tokens is not None, "no head reads the labels"
            self._known[side] = self.model.encode_all(tokens, side, self.chunk, torch.device("cpu"))
        return self._known[side]

    def compute(self) -> None:
        """Encode what was not encoded yet."""
        for side in (side for side, tokens in self.tokens.items() if tokens is not None):
            self.all(side)

    def take(self, rows_Q: NDArray[np.int64], labels_P: NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        """(x_QD, x_PD) of some of them, in host memory; no x_PD if labels are not read."""
        labels = None if self.tokens["label"] is None else self._some("label", labels_P)
        return self._some("query", rows_Q), labels

    def _some(self, side: Side, rows: NDArray[np.int64]) -> Tensor:
        return self.all(side)[torch.from_numpy(rows)]
