"""Notes and warnings for users, sent through the loggers below `xmclab`.

The library logs; the command line prints every record on stderr as `note: ...` or `warning: ...`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Collection, Iterator

from xmclab.system.terminal import in_lines, printable

ROOT = "xmclab"


class _Printer(logging.Handler):
    """Prints each message once: a command may read the same data for many runs."""

    def __init__(self, hidden: str, known: Collection[str]) -> None:
        super().__init__()
        self.hidden, self.known = hidden, known
        self.printed: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        word = "warning" if record.levelno >= logging.WARNING else "note"
        text = f"{word}: {printable(record.getMessage().replace(self.hidden, ''))}"
        if text not in self.known and text not in self.printed:
            print(in_lines(text, sys.stderr), file=sys.stderr)
            self.printed.append(text)


class _Keeper(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextlib.contextmanager
def shown(hidden: str = "", known: Collection[str] = ()) -> Iterator[list[str]]:
    """Print the messages of the block on stderr, each once, and collect what was printed.

    Args:
        hidden: left out of every message, such as the name of a temporary folder.
        known: lines that were printed before and are not repeated.
    """
    with _handled(printer := _Printer(hidden, known)):
        yield printer.printed


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
