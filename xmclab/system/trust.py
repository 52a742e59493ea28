"""Whether the Python code that comes with a model may run: only if the user says so, never because a file does.

With a model of which you trust the author:

    with trusting_remote_code():
        predictor = open_predictor(Path("runs/mine"), default_registry())
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

FLAG = "--trust-remote-code"

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextlib.contextmanager
def trusting_remote_code(wanted: bool = True) -> Iterator[None]:
    """Let models that are loaded in the block, by this thread, run code of their own."""
    token = _trusted.set(wanted)
    try:
        yield
    finally:
        _trusted.reset(token)


def remote_code_is_trusted() -> bool:
    """Whether the user allowed it for what is loaded now."""
    return _trusted.get()
