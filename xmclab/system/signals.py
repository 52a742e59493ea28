"""Signals as requests: end between two steps, or at once where nothing would be lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from xmclab.errors import Stopped

STOPS = ("SIGINT", "SIGTERM", "SIGHUP")
SAVE = "SIGUSR1"


class Signals:
    """The requests that signals make of a run; a context manager that handles them, in the main thread only.

    SIGINT, SIGTERM and SIGHUP ask for the end: by raising `Stopped`, or within `deferred` by setting `asked`. A second
    one ends the process. SIGUSR1 sets `save`. A signal that is ignored, as SIGHUP below `nohup`, stays ignored.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.save = False
        self._deferred = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for name in (*STOPS, SAVE):
                number = getattr(signal, name, None)  # Windows lacks some
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextlib.contextmanager
    def deferred(self, wanted: bool = True) -> Iterator[None]:
        """Requests inside the block wait until they are looked at; `wanted=False`: an exception to that."""
        before, self._deferred = self._deferred, wanted
        try:
            if not wanted:
                self.check()
            yield
        finally:
            self._deferred = before

    def check(self) -> None:
        """Raise `Stopped` if the end was asked for."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == getattr(signal, SAVE, None):
            self.save = True
            return
        if self.asked is not None:
            end_at_once(number)
        self.asked = number
        if not self._deferred:
            raise Stopped(number)
        _say(f"{signal.Signals(number).name}: finishing the step and saving; a second signal ends at once")


def end_at_once(number: int, frame: FrameType | None = None) -> None:
    """End the process without cleaning up, as a handler of signals; says so in one line."""
    _say(f"stopped by {signal.Signals(number).name}")
    os._exit(128 + number)


def _say(text: str) -> None:
    """A line on stderr, below a progress bar if there is one; buffers may be in use."""
    cursor = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{cursor}{text}\n".encode())
