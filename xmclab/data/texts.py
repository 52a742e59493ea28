"""Texts by the million: sequences that hold bytes and give strings."""

from __future__ import annotations

import hashlib
import os
import tempfile
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import IO, overload

import numpy as np
from numpy.typing import NDArray

from xmclab.system.files import storage_errors

IN_MEMORY = 1 << 20  # bytes that are collected before they go to the file; smaller sets have no file
BLOCK = 16_384  # texts decoded at a time when iterating
BLOCK_BYTES = 1 << 23  # the same in bytes, for long texts
LOSSLESS = "surrogatepass"  # any string comes back as it was


class LazyTexts(Sequence[str]):
    """A sequence of strings that are decoded on demand. Slices are lists."""

    @abstractmethod
    def one(self, row: int) -> str:
        """The string of a row, from 0."""

    def some(self, start: int, stop: int) -> list[str]:
        """The strings of rows `start` to `stop` (exclusive)."""
        return [self.one(row) for row in range(start, stop)]

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if not isinstance(row, slice):
            return self.one(range(len(self))[row])
        rows = range(*row.indices(len(self)))
        return self.some(rows.start, max(rows.stop, rows.start)) if rows.step == 1 else [self.one(i) for i in rows]


class PackedTexts(LazyTexts):
    """Strings as UTF-8 in a private temporary file: eight bytes of memory each, at any length.

    It can be appended to, and equals a list of the same strings.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._ends = array("q", [0])  # of the text before each text, so that text i is bytes [ends[i], ends[i + 1])
        self._recent = bytearray()  # what is not in the file yet
        self._filed = 0  # bytes in the file
        self._file: IO[bytes] | None = None
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self._recent += text.encode(errors=LOSSLESS)
        self._ends.append(self._filed + len(self._recent))
        if len(self._recent) >= IN_MEMORY:
            with storage_errors(f"temporary texts in {tempfile.gettempdir()}"):
                self._file_away()

    def _file_away(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # open as long as the texts are used
        while self._recent:
            written = self._file.write(self._recent)
            self._filed += written
            del self._recent[:written]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def one(self, row: int) -> str:
        return self._bytes(self._ends[row], self._ends[row + 1]).decode(errors=LOSSLESS)

    def __iter__(self) -> Iterator[str]:
        for start, stop in self.blocks():
            yield from self.some(start, stop)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} texts, {self._ends[-1]:,} bytes>"

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of pieces that fit into memory."""
        start = 0
        while start < len(self):
            fitting = bisect_right(self._ends, self._ends[start] + BLOCK_BYTES, start + 1, len(self._ends)) - 1
            stop = min(max(fitting, start + 1), start + BLOCK)
            yield start, stop
            start = stop

    def encoded(self, start: int, stop: int) -> tuple[bytes, NDArray[np.int64]]:
        """The bytes of these texts together, and the length of each."""
        ends = np.array(self._ends[start : stop + 1], dtype=np.int64)
        return self._bytes(int(ends[0]), int(ends[-1])), np.diff(ends)

    def some(self, start: int, stop: int) -> list[str]:
        ends = self._ends[start : stop + 1]
        content = self._bytes(ends[0], ends[-1])
        first = ends[0]
        places = pairwise(ends)
        if content.isascii():
            whole = content.decode("ascii")
            return [whole[begin - first : end - first] for begin, end in places]
        return [content[begin - first : end - first].decode(errors=LOSSLESS) for begin, end in places]

    def _bytes(self, begin: int, end: int) -> bytes:
        """Read at an offset: processes would share a file position, and a mapping would keep what was read once."""
        pieces = []
        while begin < min(end, self._filed):
            assert self._file is not None
            piece = os.pread(self._file.fileno(), min(end, self._filed) - begin, begin)
            if not piece:
                raise OSError("the temporary file of the texts was truncated")
            pieces.append(piece)
            begin += len(piece)
        if begin < end:
            pieces.append(bytes(self._recent[begin - self._filed : end - self._filed]))
        return b"".join(pieces)


class JoinedTexts(LazyTexts):
    """Several sequences one after the other, without a copy."""

    def __init__(self, *parts: Sequence[str]) -> None:
        self.parts = parts
        self._starts = [0, *accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._starts[-1]

    def some(self, start: int, stop: int) -> list[str]:
        pieces = zip(self.parts, self._starts[:-1], strict=True)
        return [text for part, first in pieces for text in part[max(start - first, 0) : max(stop - first, 0)]]

    def one(self, row: int) -> str:
        which = bisect_right(self._starts, row) - 1
        return self.parts[which][row - self._starts[which]]

    def __iter__(self) -> Iterator[str]:
        for part in self.parts:
            yield from part


class RowNumbers(LazyTexts):
    """The names of texts that have none: their row, from 0."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def one(self, row: int) -> str:
        return str(row)


def blocks(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces that fit into memory."""
    if isinstance(texts, PackedTexts):
        return texts.blocks()
    return ((start, min(start + BLOCK, len(texts))) for start in range(0, len(texts), BLOCK))


def hashes(texts: Sequence[str]) -> NDArray[np.int64]:
    """A 64-bit hash of each text, the same for equal texts of this process."""
    return np.fromiter(map(hash, texts), np.int64, len(texts))


def number_of_distinct(texts: Sequence[str]) -> int:
    """The number of distinct texts, by 64-bit hash."""
    return len(np.unique(hashes(texts)))


def content_digest(*sequences: Sequence[str]) -> str:
    """sha256 over all texts and where each begins: the same for a list and for packed texts."""
    content, lengths = hashlib.sha256(), hashlib.sha256()
    for texts in sequences:
        lengths.update(f"{len(texts)}:".encode())
        for start, stop in blocks(texts):
            some, length_B = _encoded(texts, start, stop)
            content.update(some)
            lengths.update(length_B.astype("<i8").tobytes())
    return hashlib.sha256(content.digest() + lengths.digest()).hexdigest()


def _encoded(texts: Sequence[str], start: int, stop: int) -> tuple[bytes, NDArray[np.int64]]:
    if isinstance(texts, PackedTexts):
        return texts.encoded(start, stop)
    encoded = [text.encode(errors=LOSSLESS) for text in texts[start:stop]]
    return b"".join(encoded), np.fromiter(map(len, encoded), np.int64, len(encoded))
