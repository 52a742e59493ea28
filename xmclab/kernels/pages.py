"""Memory: large pages for large tables, and random bits."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

WORTH_LARGE_PAGES = 1 << 22  # bytes


def in_large_pages(table: Tensor) -> Tensor:
    """Ask the system to keep a new table in large pages, so that a row is found without a walk through page tables.

    A hint for Linux only; nothing depends on it.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and table.device.type == "cpu" and table.nbytes >= WORTH_LARGE_PAGES:
        start = -(-table.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = table.data_ptr() + table.nbytes - start
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice)
    return table


def random_bits(x: Tensor) -> Tensor:
    """Sixteen random bits for each element."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    return words.view(torch.int16)[: x.numel()].view(x.shape)
