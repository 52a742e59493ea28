"""All errors of xmclab: each says what is wrong, where, and what to do, and has an exit code."""

from __future__ import annotations

import difflib
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One problem of an input; an error has one or more."""

    where: str  # the key, file:line or name, as the user typed it
    message: str  # what is wrong
    hint: str = ""  # what to do about it

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class XmclabError(Exception):
    """Base class of errors that users can cause; printed without a traceback."""

    exit_code = 1

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = [Problem("", p) if isinstance(p, str) else p for p in problems]
        super().__init__("\n".join(map(str, self.problems)))


class ConfigError(XmclabError):
    """A recipe, an override or an expression cannot be used as written."""

    exit_code = 2


class DataError(XmclabError):
    """The data (or a model folder) is missing or malformed."""

    exit_code = 3


class PluginError(XmclabError):
    """A plugin is broken, or two plugins claim the same name."""

    exit_code = 4


class DivergedError(XmclabError):
    """A loss or gradient is not finite."""

    exit_code = 5
    details: dict[str, object] | None = None  # recorded in `failure/` of the run folder


class MemoryLimitError(XmclabError):
    """The device ran out of memory."""

    exit_code = 6


class StorageError(XmclabError):
    """A run folder cannot be written or read."""

    exit_code = 7


class Stopped(KeyboardInterrupt):
    """A signal asked the program to end: not an error, so nothing that catches `Exception` holds it up."""

    def __init__(self, number: int, message: str = "") -> None:
        self.number, self.message = number, message
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"stopped by {signal.Signals(self.number).name}"
        return f"{text}: {self.message}" if self.message else text

    @property
    def exit_code(self) -> int:
        """As shells report the death by a signal: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.number


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to a word, if any is close."""
    return next(iter(difflib.get_close_matches(word, sorted(set(known)), n=1, cutoff=cutoff)), None)


FAMILY = 4  # more names than this with the same prefix are listed as one


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'bce'?`, or a list of the known names, with families as `pml.* (14)`."""
    names = sorted(set(known))
    close = closest(word, names)
    if close:
        return f"did you mean {close!r}?"
    firsts = Counter(name.partition(".")[0] for name in names if "." in name)
    families = {first: count for first, count in firsts.items() if count > FAMILY}
    listed = [name for name in names if name.partition(".")[0] not in families]
    listed += [f"{first}.* ({count})" for first, count in families.items()]
    return "known: " + ", ".join(listed) if listed else ""
