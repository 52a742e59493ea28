"""Reads files of unknown origin, within the limits: lines, archives, JSON and arrays.

What is wrong with a file is a `ValueError` (or an `OSError`), which the caller turns into an error about that file.
"""

from __future__ import annotations

import gzip
import json
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from xmclab.system.limits import BeyondLimit, check, check_inflation, limit, raised

PIECE = 1 << 20  # bytes of a line that is skipped, at a time
BEGINNING = 100  # bytes that are kept of such a line
ARRAY, ARCHIVE = b"\x93NUMPY", b"PK"
UNREADABLE = (  # what reading a malformed file raises
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OverflowError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes


def lines_of(stream: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each line with its size in bytes; of a line beyond the limit only the beginning, and the rest is skipped."""
    most = limit("line")
    while line := stream.readline(most + 1):
        size = len(line)
        if size > most:
            ended, line = line.endswith(b"\n"), line[:BEGINNING]
            while not ended and (rest := stream.readline(PIECE)):
                ended, size = rest.endswith(b"\n"), size + len(rest)
        yield line, size


def long_line(size: int) -> BeyondLimit:
    """The error for a line of this many bytes."""
    return BeyondLimit(f"a line of {size:,} bytes; the limit is {limit('line'):,}", raised("line", size))


class Unpacked(gzip.GzipFile):
    """Reads an archive in small pieces, so that everything before a cut is returned, and stops where it inflates."""

    _unpacked = 0

    def readinto(self, buffer: Any) -> int:
        count = self.readinto1(buffer)
        self._unpacked += count
        check_inflation(self._unpacked, self.fileobj.tell())  # type: ignore[union-attr]  # the packed file
        return count


def read_json(file: Path, kind: Literal["document", "records"] = "document") -> Any:
    """The JSON document in a file."""
    check(kind, file.stat().st_size, "it has")
    return parse_json(file.read_bytes())


def read_json_lines(file: Path, complete: bool = False) -> Iterator[Any]:
    """The JSON value of each line.

    Args:
        complete: leave out a last line without an end, which is still being written.
    """
    with file.open("rb") as stream:
        for number, (line, size) in enumerate(lines_of(stream), start=1):
            if size > limit("line"):
                raise long_line(size)
            if complete and not line.endswith(b"\n"):
                return
            try:
                value = parse_json(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            yield value


def parse_json(text: str | bytes) -> Any:
    """A JSON value, of any depth that can be read; ValueError otherwise."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load_arrays(file: Path) -> Any:
    """What numpy stored: an array, or arrays by name; nothing is unpickled.

    Sizes are compared with the file before memory is taken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about headers of Python 2
        with file.open("rb") as stream:
            start = stream.read(len(ARRAY))
            if start == ARRAY:
                stream.seek(0)
                _check_array(stream, file.stat().st_size)
            elif start.startswith(ARCHIVE):
                _check_archive(file)
        return np.load(file, allow_pickle=False)


def _check_archive(file: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            check_inflation(sum(member.file_size for member in members), file.stat().st_size)
            for member in members:
                if member.compress_type not in PACKINGS or member.flag_bits & 1:
                    raise ValueError(f"{member.filename} is packed in a way that numpy does not use")
                with archive.open(member) as stream:
                    if stream.read(len(ARRAY)) != ARRAY:
                        continue
                with archive.open(member) as stream:
                    _check_array(stream, member.file_size)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OverflowError) as error:
        raise ValueError(f"damaged archive: {error}") from error


def _check_array(stream: IO[bytes], size: int) -> None:
    """Refuse an array whose header announces more than there is."""
    formats = np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    version = formats.read_magic(stream)
    if version not in readers:
        raise ValueError(f"format {version[0]}.{version[1]} of arrays is not supported")
    try:
        shape, _, kind = readers[version](stream)
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"malformed header of an array: {type(error).__name__}") from error
    needed = math.prod(shape) * kind.itemsize
    if any(length < 0 for length in shape) or needed > size or max(shape, default=0) > np.iinfo(np.int64).max:
        raise ValueError(f"its header announces an array {list(shape)} of {kind}, {needed:,} bytes of {size:,}")
