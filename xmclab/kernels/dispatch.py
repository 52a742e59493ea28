"""Loops compiled by numba, where it is installed; each has a numpy or torch version that gives the same numbers.

Samples and metrics are the same bit for bit, others within rounding where torch has its own exponentials (`scores`).
Modules of compiled loops are imported at their first use, never at start-up.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., object])
Item = TypeVar("Item")
Result = TypeVar("Result")

WORTH_LOADING = 100_000  # entries: with fewer, numpy is done before numba is imported
_by_torch = ContextVar("by_torch", default=False)


def accelerated(entries: int) -> bool:
    """Whether compiled loops should work on this many entries."""
    return entries >= WORTH_LOADING and numba_works()


@cache
def numba_works() -> bool:
    """Whether numba can be imported: it may be missing, or refuse this version of numpy."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def numba_is_loaded() -> bool:
    """Whether numba is available without waiting: for loops that beat numpy's at any size."""
    return "numba" in sys.modules and numba_works()


def jit(function: Function) -> Function:
    """Compile at the first call, without the GIL; cache the code on disk where possible."""
    return jit_with()(function)


def jit_with(**options: Any) -> Callable[[Function], Function]:
    """`jit` with numba's options."""

    def compiled(function: Function) -> Function:
        njit = importlib.import_module("numba").njit
        result: Function
        try:
            result = njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:  # no folder for the cache
            result = njit(nogil=True, **options)(function)
        return result

    return compiled


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`map`, in as many threads as torch uses: for compiled loops, which release the GIL."""
    threads = min(importlib.import_module("torch").get_num_threads(), len(items))
    shares = [items[len(items) * n // threads : len(items) * (n + 1) // threads] for n in range(threads)]
    # The caller takes a share itself: one thread less to wake.
    others = [_pool(threads - 1).submit(lambda share: list(map(work, share)), share) for share in shares[1:]]
    return [*map(work, shares[0]), *(result for other in others for result in other.result())]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="xmclab-loops")


def accelerated_by(loops: str, when: Callable[..., bool]) -> Callable[[Function], Function]:
    """Let the function of the same name in `xmclab.kernels.<loops>` replace the decorated one, which defines it.

    Args:
        when: called with the arguments; whether these are for the compiled version. Asked only where numba works.
    """

    def decorate(plain: Function) -> Function:
        @wraps(plain)
        def dispatched(*arguments: Any, **named: Any) -> object:
            if when(*arguments, **named) and numba_works():
                return getattr(_loops(loops), plain.__name__)(*arguments, **named)
            return plain(*arguments, **named)

        return dispatched  # type: ignore[return-value]

    return decorate


@cache
def _loops(name: str) -> ModuleType:
    return importlib.import_module(f"xmclab.kernels.{name}")


def fused_for(x: Tensor, cells: int | None = None) -> ModuleType | None:
    """The compiled passes over matrices, `scores` or `scores_torch`, if this is a matrix for them.

    Args:
        cells: of the matrix to be made from this one; default: its own.
    """
    if _for_loops(x, cells or x.numel()):
        return importlib.import_module("xmclab.kernels.scores")
    import torch

    by_torch = not (x.is_meta or torch.compiler.is_compiling()) and _by_torch.get()
    return importlib.import_module("xmclab.kernels.scores_torch") if by_torch else None


@contextlib.contextmanager
def compiled_by_torch(on: bool = True) -> Iterator[None]:
    """Have torch compile the passes over scores that our loops do not cover, those on a GPU. Needs a compiler."""
    before = _by_torch.set(on)
    try:
        yield
    finally:
        _by_torch.reset(before)


def _for_loops(x: Tensor, cells: int) -> bool:
    import torch  # by a statement, which can be traced

    if torch.compiler.is_compiling():  # it would trace into the loops
        return False
    of_ours = x.device.type == "cpu" and x.dtype.itemsize == 4 and x.is_floating_point() and x.is_contiguous()
    return of_ours and accelerated(cells)
