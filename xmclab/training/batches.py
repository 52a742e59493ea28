"""The input of a step, prepared in a thread while the step before it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from torch import Tensor

from xmclab.api import Batch, Tokens
from xmclab.objectives.truth import Truth

Part = Callable[[str], contextlib.AbstractContextManager[object]]  # times a named part of the work
Item = TypeVar("Item")
Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Texts that are encoded together, and where their draws come from."""

    tokens: Tokens
    seed: int  # of torch's generator, for parts that draw from it
    key_B: Tensor | None = None  # of dropout, by text; None: it draws from torch's generator too


@dataclass(frozen=True)
class Prepared:
    """A batch, and its tensors on the device of the run."""

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
