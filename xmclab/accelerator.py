"""Loops compiled by numba, where it is installed; the numpy versions beside them give the same numbers, bit for bit.

Modules of compiled loops are imported at their first use, never at start-up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])

WORTH_LOADING = 100_000  # entries of a sparse matrix: below, numpy is done before numba is imported


def accelerated(entries: int) -> bool:
    """Whether compiled loops should work on a matrix of so many entries."""
    return entries >= WORTH_LOADING and numba_works()


@cache
def numba_works() -> bool:
    """Whether numba can be imported: it may be missing, or refuse this version of numpy."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def jit(function: Function) -> Function:
    """Compile at the first call, free of the interpreter's lock; keep the code on disk where that can be written."""
    njit = importlib.import_module("numba").njit
    try:
        compiled: Function = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for the cache
        compiled = njit(nogil=True)(function)
    return compiled
