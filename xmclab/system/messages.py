"""Notes and warnings for users, sent through the loggers below `xmclab`.

The library logs; the command line prints every record on stderr as `note: ...` or `warning: ...`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from xmclab.system.terminal import printable

ROOT = "xmclab"


class _Printer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        word = "warning" if record.levelno >= logging.WARNING else "note"
        print(f"{word}: {printable(record.getMessage())}", file=sys.stderr)


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Print the messages of the block on stderr."""
    with _handled(_Printer()):
        yield


@contextlib.contextmanager
def kept(name: str = ROOT) -> Iterator[list[logging.LogRecord]]:
    """Collect the messages of the block; they are not shown."""
    with _handled(keeper := _Keeper(), name):
        yield keeper.records


@contextlib.contextmanager
def _handled(handler: logging.Handler, name: str = ROOT) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
