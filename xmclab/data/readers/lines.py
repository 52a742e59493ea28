"""Reading text files line by line, and reporting everything that is wrong with them at once."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from xmclab.errors import DataError, Problem
from xmclab.system.files import sha256_of
from xmclab.system.limits import BeyondLimit, limit
from xmclab.system.progress import so_far
from xmclab.system.reading import Unpacked, lines_of, long_line

SHOWN = 5  # bad lines shown of each kind; all are counted
VALUES = re.compile(r"'.*?'|\d+")  # what differs between two messages of one kind
EXCERPT = 60  # characters of a bad line shown
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINES_BETWEEN = 10_000  # two looks at how much was read
TO_UTF_8 = "if it is latin1, convert it: iconv -f latin1 -t utf-8 OLD > NEW"


@dataclass
class Problems:
    """What is wrong with the files of a data set: all of it counted, the first few of each kind shown."""

    shown: list[Problem] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    bad_lines: Counter[str] = field(default_factory=Counter)  # by file
    general: list[Problem] = field(default_factory=list)  # about a whole file: always shown

    def line(self, file: Path, number: int, message: str, hint: str = "") -> None:
        """A bad line, counted from 1."""
        kind = VALUES.sub("", message.partition(":")[0])
        self.bad_lines[file.name] += 1
        self.kinds[kind] += 1
        if self.kinds[kind] <= SHOWN:
            self.shown.append(Problem(f"{file}:{number}", message, hint))

    def more_lines(self, file: Path, number: int, kind: str) -> None:
        """Count further bad lines that are not shown."""
        if number:
            self.bad_lines[file.name] += number
            self.kinds[kind] += number

    def file(self, file: Path, message: str, hint: str = "") -> None:
        """A file that is bad as a whole."""
        self.general.append(Problem(str(file), message, hint))

    def about(self, file: Path) -> bool:
        """Whether anything is wrong with this file."""
        return file.name in self.bad_lines or self.as_a_whole(file)

    def as_a_whole(self, file: Path) -> bool:
        """Whether this file is bad as a whole."""
        return any(problem.where == str(file) for problem in self.general)

    def rows(self, file: Path, good: int) -> int | None:
        """How many rows a file of a row per line has, the bad ones included; None if its end was not seen."""
        return None if self.as_a_whole(file) else good + self.bad_lines[file.name]

    def raise_if_any(self) -> None:
        """Stop with everything that was reported."""
        if not self.bad_lines and not self.general:
            return
        problems = [*self.general, *self.shown]
        if self.bad_lines.total() > len(self.shown):
            counts = ", ".join(f"{count} in {name}" for name, count in self.bad_lines.items())
            total = f"{self.bad_lines.total()} bad lines in total ({counts})"
            problems.append(Problem("", f"{total}; the first {SHOWN} of each kind are shown"))
        raise DataError(*problems)


def find_file(folder: Path, *names: str) -> Path | None:
    """The first of these files that exists, gzipped (`.gz`) or plain."""
    candidates = (folder / f"{name}{suffix}" for name in names for suffix in (".gz", ""))
    return next((file for file in candidates if file.is_file()), None)


def read_lines(file: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """(line number from 1, text without line end) of each line; blank lines at the end of the file are skipped.

    Handles gzip, a byte order mark and CRLF. Bytes that are not UTF-8, blank lines between others, and a damaged
    archive are reported; the good lines are still returned.
    """
    blank: list[int] = []  # the first of them
    more = 0
    for number, line in read_all_lines(file, problems):
        line = line.rstrip("\r\n")
        if not line.strip():
            if len(blank) < SHOWN:
                blank.append(number)
            else:
                more += 1
            continue
        for empty in blank:
            problems.line(file, empty, "blank line")
        problems.more_lines(file, more, "blank line")
        blank, more = [], 0
        yield number, line


def read_all_lines(file: Path, problems: Problems, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The same with blank lines, and with line ends kept."""
    offset = 0
    number = 0
    most = limit("line")
    try:
        with opened(file) as stream:
            size_of_file = file.stat().st_size
            for number, (raw, size) in enumerate(lines_of(stream), start=1):
                start, offset = offset, offset + size
                if number % LINES_BETWEEN == 0:
                    so_far(f"reading {file.name}", _bytes_read(stream, offset), size_of_file)
                if size > most:
                    long = long_line(size)
                    problems.line(file, number, long.message, long.hint)
                    continue
                if number == 1 and raw.startswith(BYTE_ORDER_MARK):
                    raw, start = raw.removeprefix(BYTE_ORDER_MARK), len(BYTE_ORDER_MARK)
                try:
                    line = raw.decode(encoding)
                except UnicodeDecodeError as error:
                    where = f"byte 0x{raw[error.start]:02x} at offset {start + error.start}"
                    problems.line(file, number, f"not UTF-8: {where}: {excerpt(raw[error.start :])}", TO_UTF_8)
                    continue
                yield number, line
    except EOFError:
        problems.file(file, f"truncated: the archive ends after {number:,} lines", "download the file again")
    except (gzip.BadGzipFile, zlib.error) as error:
        problems.file(file, f"damaged archive after {number:,} lines: {error}", "download the file again")
    except BeyondLimit as error:
        problems.file(file, f"{error.message}, after {number:,} lines", error.hint)
    except OSError as error:
        problems.file(file, f"cannot be read: {error.strerror or error}")


def encoding_of(file: Path) -> str:
    """`utf-8`; or `latin-1` if most lines beyond ASCII are not UTF-8, so that a few damaged bytes do not decide."""
    sound = damaged = 0
    try:
        with opened(file) as stream:
            offset, size_of_file = 0, file.stat().st_size
            for number, (raw, size) in enumerate(lines_of(stream), start=1):
                offset += size
                if number % LINES_BETWEEN == 0:
                    so_far(f"looking at {file.name}", _bytes_read(stream, offset), size_of_file)
                if not raw.isascii() and size == len(raw):
                    try:
                        raw.decode()
                        sound += 1
                    except UnicodeDecodeError:
                        damaged += 1
    except (EOFError, zlib.error, OSError, BeyondLimit):
        pass  # reported when the file is read
    return "latin-1" if damaged > sound else "utf-8"


def opened(file: Path) -> IO[bytes]:
    """The bytes of a file, unpacked if it is a `.gz`."""
    if file.suffix != ".gz":
        return file.open("rb")
    return io.BufferedReader(Unpacked(file))  # type: ignore[arg-type]  # its own line reading is slow


def _bytes_read(stream: IO[bytes], offset: int) -> int:
    """Bytes of the file itself: of an archive, packed."""
    packed = getattr(getattr(stream, "raw", None), "fileobj", None)
    return offset if packed is None else packed.tell()


def excerpt(text: str | bytes) -> str:
    """The beginning of a text, as shown in messages."""
    return repr(text[:EXCERPT]).removeprefix("b") + ("…" if len(text) > EXCERPT else "")


def fingerprint(files: Iterable[Path], *choices: str) -> str:
    """sha256 over the names and bytes of files, and over the choices made in reading them."""
    digest = hashlib.sha256()
    for choice in choices:
        digest.update(f"{len(choice)}:{choice}".encode())
    for file in files:
        digest.update(f"{file.name}:{sha256_of(file)}".encode())
    return digest.hexdigest()
