"""Passes the records of a run to its trackers; a tracker that raises is disabled.

Each tracker gets copies of the records and the config. Gradients are off while it runs; afterwards the gradient mode
and the random generators (Python's, numpy's global one, torch's on the CPU and on CUDA devices in use) are restored,
and nothing else. An exception, including `SystemExit`, becomes a warning; the tracker is then ended and not called
again in this run.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xmclab.api import Tracker
from xmclab.errors import PluginError, Problem
from xmclab.host.config import Config
from xmclab.host.load import exception_line, is_strict

messages = logging.getLogger(__name__)
Record = Mapping[str, Any]
SPARE = np.random.MT19937()  # what `np.random` draws from while trackers run
numpy_random: Any = np.random  # its stubs lack what is used here


@dataclass
class Observers:
    """Trackers, by the names used in warnings."""

    present: dict[str, Tracker]
    strict: bool = field(default_factory=lambda: is_strict(os.environ))

    def tell(self, event: str, call: Callable[[Tracker], object]) -> None:
        """Call each tracker; drop those that raise."""
        problems = []
        with undisturbed():
            for name, observer in list(self.present.items()):
                try:
                    call(observer)
                except (Exception, SystemExit) as error:
                    del self.present[name]
                    if call is not _end:
                        with contextlib.suppress(Exception, SystemExit):
                            _end(observer)
                    problems.append(Problem(name, f"{exception_line(error)}, at {event!r}"))
        if problems and self.strict:
            raise PluginError(*problems)
        for problem in problems:
            messages.warning("%s; disabled for the rest of this run", problem)


def _end(observer: Tracker) -> None:
    observer.end()


@contextlib.contextmanager
def observed(
    config: Config, folder: Path, steps: int, started: float, resumed: int = 0
) -> Iterator[Callable[[Record], None]]:
    """A function that sends records to all trackers of a run: the chosen ones and the `always` ones.

    Args:
        started: start of the run, by `time.perf_counter`.
        resumed: steps that an earlier process did.
    """
    observers = Observers(trackers(config))

    def log(record: Record) -> None:
        observers.tell(record["event"], lambda observer: observer.log(copy.deepcopy(record)))

    def end(error: str, message: str) -> None:
        try:
            log({"event": "end", "error": error, "message": message, "seconds": time.perf_counter() - started})
        finally:
            observers.tell("end", _end)

    try:
        observers.tell("start", lambda observer: observer.start(folder, config.to_dict()))
        log({"event": "resume", "step": resumed, "steps": steps} if resumed else {"event": "start", "steps": steps})
        yield log
    except BaseException as error:
        observers.strict = False  # report the first of two errors
        end(type(error).__name__, next(iter(str(error).splitlines()), ""))
        raise
    end("", "")


def trackers(config: Config) -> dict[str, Tracker]:
    """The chosen trackers, and the `always` ones with default options; one of the latter that is broken is skipped."""
    chosen = config.make_all("tracker")
    made: dict[str, Tracker] = {}
    for name in config.registry.always("tracker"):
        if name not in chosen:
            try:
                made[name] = config.registry.get("tracker", name)()
            except Exception as error:
                if is_strict(os.environ):
                    raise
                messages.warning("tracker %s: %s; not used in this run", name, exception_line(error))
    return {f"tracker {name}": tracker for name, tracker in (made | chosen).items()}


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Random draws inside the block do not affect the generators outside."""
    of_python, of_numpy = random.getstate(), numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(SPARE)  # saving and restoring the state would take numpy half a millisecond
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        random.setstate(of_python)
        numpy_random.set_bit_generator(of_numpy)
