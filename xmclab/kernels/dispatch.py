"""The one place that decides whether a compiled function replaces a plain one, which defines it.

Compiled by numba, where it is installed, in modules beside this one that are imported at their first use; or by torch,
where a run asks for it. Nobody else knows. A function stays compiled if a whole step or command is at least 1.1 times
as fast with it; its module says where that was measured.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, wraps
from itertools import starmap
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., object])
Result = TypeVar("Result")

WORTH_A_PASS = 1 << 20  # scores: a step with fewer gains less (1.03 times as fast at 1.4M, 1.2 at 6.6M)
WORTH_LOADING = 100_000  # numbers of a table: with fewer, torch is done before numba is imported
_by_torch = ContextVar("by_torch", default=False)


@cache
def numba_works() -> bool:
    """Whether numba can be imported: it may be missing, or refuse this version of numpy."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


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


def in_threads(loop: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
    """The results of a compiled loop, which releases the GIL, for each of these arguments, in torch's threads."""
    threads = min(importlib.import_module("torch").get_num_threads(), len(calls))
    shares = [calls[len(calls) * n // threads : len(calls) * (n + 1) // threads] for n in range(threads)]
    # The caller takes a share itself: one thread less to wake.
    others = [_pool(threads - 1).submit(list, starmap(loop, share)) for share in shares[1:]]
    return [*starmap(loop, shares[0]), *(result for other in others for result in other.result())]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="xmclab-loops")


@cache
def gpu_kernels(name: str) -> ModuleType | None:
    """A module in the language of Triton; None where that is missing or its `trial` fails, as without a C compiler."""
    try:
        module = _loops(name)
        module.trial()
    except ImportError:  # builds of torch for CUDA bring Triton along on Linux, others do not
        return None
    except Exception as error:  # whatever compilers raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logging.getLogger("xmclab.kernels").warning("Triton does not work here, so steps are slower: %s", reason)
        return None
    return module


def accelerated_on_gpu_by(kernels: str) -> Callable[[Function], Function]:
    """The same for tensors of a GPU, by a function in `xmclab.kernels.<kernels>` in the language of Triton."""

    def decorate(plain: Function) -> Function:
        @wraps(plain)
        def dispatched(x: Tensor, *arguments: Any) -> object:
            if x.is_cuda and not _by_torch.get() and (module := gpu_kernels(kernels)):
                found = getattr(module, plain.__name__)(x, *arguments)
                if found is not NotImplemented:
                    return found
            return plain(x, *arguments)

        return dispatched  # type: ignore[return-value]

    return decorate


def accelerated_by(loops: str, when: Callable[..., bool], by_torch: bool = False) -> Callable[[Function], Function]:
    """Let the function of the same name in `xmclab.kernels.<loops>` replace the decorated one, which defines it.

    It may look at its arguments and return NotImplemented.

    Args:
        when: called with the arguments; whether these are for the compiled version.
        by_torch: within `compiled_by_torch`, let torch compile the decorated function for all other arguments.
    """

    def decorate(plain: Function) -> Function:
        @wraps(plain)
        def dispatched(*arguments: Any, **named: Any) -> object:
            if when(*arguments, **named) and numba_works():
                found = getattr(_loops(loops), plain.__name__)(*arguments, **named)
                if found is not NotImplemented:
                    return found
            compiled = by_torch and _by_torch.get()
            return (_compiled(plain) if compiled else plain)(*arguments, **named)

        return dispatched  # type: ignore[return-value]

    return decorate


@cache
def _loops(name: str) -> ModuleType:
    return importlib.import_module(f"xmclab.kernels.{name}")


@cache
def _compiled(plain: Function) -> Function:
    compiled: Function = importlib.import_module("torch").compile(plain, dynamic=True, fullgraph=True)
    return compiled


def large_table(x: Tensor, *_: object) -> bool:
    """Whether compiled loops should handle this table: on a CPU, and torch not done before numba is imported."""
    return x.device.type == "cpu" and x.numel() >= WORTH_LOADING


def large_matrix(x: Tensor, *_: object) -> bool:
    """Whether compiled passes should handle this matrix: large, contiguous, in float32, on a CPU."""
    if x.device.type != "cpu" or x.numel() < WORTH_A_PASS or x.dtype.itemsize != 4:
        return False
    import torch  # by a statement, which can be traced

    return x.is_contiguous() and not torch.compiler.is_compiling()  # it would trace into the loops


def large_floats(x: Tensor, *_: object) -> bool:
    """Whether a compiled pass should handle these numbers: many, in float32 or float64, on a CPU."""
    if x.device.type != "cpu" or x.numel() < WORTH_LOADING or x.dtype.itemsize < 4:
        return False
    import torch

    return not torch.compiler.is_compiling()


@contextlib.contextmanager
def compiled_by_torch(on: bool = True) -> Iterator[None]:
    """Have torch compile the passes over scores that our loops do not cover, as on a GPU. Needs a compiler."""
    before = _by_torch.set(on)
    try:
        yield
    finally:
        _by_torch.reset(before)
