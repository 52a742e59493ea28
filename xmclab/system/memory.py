"""Recognises that memory ran out, whoever noticed it first."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any

# What libraries say in errors of a general type: torch on a CPU and on a GPU, its libraries, safetensors, faiss.
SIGNS = (
    "DefaultCPUAllocator",
    "CUDA out of memory",
    "ALLOC_FAILED",
    "not enough memory",
    "Cannot allocate memory",
    "bad_alloc",
)

LOWER = {  # by command
    "run": "lower encode.chunk (gradients stay exact), then pool.cap or sampler.batch_size",
    "predict": "lower -k, or split the input; the vectors of all labels must fit",
    "eval": "evaluate on fewer queries; the vectors of all labels must fit",
    "export": "the vectors of all labels must fit, twice with an index: try --index flat",
    "score": "predict fewer labels for each query, or split the file by rows",
    "data": "split the data, or shorten its texts",
    "bench": "lower --jobs, or what the rows of the bench set",
    "tune": "lower --jobs, or narrow the space",
}
ANY = "close other programs, or use less data"


def what_to_lower(arguments: Sequence[str]) -> str:
    """What makes a command take less memory, from its arguments."""
    command = next((word for word in arguments if not word.startswith("-")), "")
    return LOWER.get(command, ANY)


def out_of_memory(error: BaseException) -> str | None:
    """What could not be allocated, in one line, if that is what the error means; otherwise None."""
    torch: Any = sys.modules.get("torch")
    lines = str(error).strip().splitlines()
    known = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    known = known or (torch is not None and isinstance(error, torch.OutOfMemoryError))
    general = isinstance(error, RuntimeError) or type(error).__name__ == "SafetensorError"
    if known or (general and any(sign in line for line in lines for sign in SIGNS)):
        return lines[0] if lines else "allocation failed"
    return None
