"""What a run tells its trackers; one that raises is switched off.

Each gets copies of the records and of the config. Gradients are off while it runs; when it returns, their mode and the
random generators (of Python, numpy's global one, torch's on the CPU and on CUDA devices in use) are as before. Nothing
else is restored. What it raises, `SystemExit` too, is a warning; the tracker is then ended, and not called again in
this run.
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
SPARE = np.random.MT19937()  # what `np.random` draws from while others run
numpy_random: Any = np.random  # whose stubs lack what is used here


@dataclass
class Observers:
    """Trackers, by the names that a warning calls them."""

    present: dict[str, Tracker]
    strict: bool = field(default_factory=lambda: is_strict(os.environ))

    def tell(self, event: str, call: Callable[[Tracker], object]) -> None:
        """Call each; without those that raise from then on."""
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
            messages.warning("%s; switched off for the rest of this run", problem)


def _end(observer: Tracker) -> None:
    observer.end()


@contextlib.contextmanager
def observed(config: Config, folder: Path, steps: int, started: float) -> Iterator[Callable[[Record], None]]:
    """The function that takes the records of a run, to every tracker: the chosen ones, and those of every run.

    Args:
        started: when the run did, by `time.perf_counter`.
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
        log({"event": "start", "steps": steps})
        yield log
    except BaseException as error:
        observers.strict = False  # of two errors the first is told
        end(type(error).__name__, next(iter(str(error).splitlines()), ""))
        raise
    end("", "")


def trackers(config: Config) -> dict[str, Tracker]:
    """The trackers of a run: those of every run, with their default options, unless chosen too."""
    chosen = config.make_all("tracker")
    unasked = [name for name in config.registry.always("tracker") if name not in chosen]
    made = {name: config.registry.get("tracker", name)() for name in unasked} | chosen
    return {f"tracker {name}": tracker for name, tracker in made.items()}


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn at random inside the block: outside, the generators go on as if it had not been."""
    of_python, of_numpy = random.getstate(), numpy_random.get_bit_generator()
    numpy_random.set_bit_generator(SPARE)  # to keep and restore a state would take numpy half a millisecond
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        random.setstate(of_python)
        numpy_random.set_bit_generator(of_numpy)
