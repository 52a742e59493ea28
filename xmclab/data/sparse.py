"""Sparse label matrices and the files that hold them: text (`label:value` rows, lists of pairs) and scipy's `.npz`."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from xmclab.data.readers.lines import SHOWN, Problems, excerpt, read_all_lines, read_lines
from xmclab.errors import DataError, Problem
from xmclab.system.limits import BeyondLimit, check
from xmclab.system.progress import watched
from xmclab.system.reading import UNREADABLE, load_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

NUMBER = r"[^\s:_\x7f-\U0010ffff]+"  # Python allows underscores in numbers, other programs do not
HEADER = re.compile(r"\s*(\d+)(\s+)(\d+)\s*", re.ASCII)
ENTRY = re.compile(rf"(-?\d{{1,400}})(?::({NUMBER}))?", re.ASCII)
ROW = re.compile(rf"\s*(?:\d+:{NUMBER}(?:\s+|$))*", re.ASCII)
LINES = 1 << 14  # lines of a text file parsed at once
CHARACTERS = 1 << 22  # the same in characters, for long lines
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)  # bounds of a relevance


# Matrices


def canonical(matrix: sp.csr_array) -> sp.csr_array:
    """The matrix with sorted rows, without repeated or zero entries; not copied if it is so already."""
    matrix = sp.csr_array(matrix)
    if not matrix.has_canonical_format or np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return matrix


def no_pairs(rows: int, labels: int) -> sp.csr_array:
    """A matrix without entries."""
    return narrow(np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(rows + 1, np.int64), (rows, labels))


def narrow(values: NDArray[Any], columns: Ids, offsets: Ids, shape: tuple[int, int]) -> sp.csr_array:
    """A matrix with 4-byte indices where they suffice; scipy would keep 8 bytes."""
    index = np.int32 if max(len(columns), *shape) <= np.iinfo(np.int32).max else np.int64
    return sp.csr_array((values, columns.astype(index), offsets.astype(index)), shape=shape)


# Checks


def is_relevance(value: float) -> bool:
    """Whether it is a positive float32 number."""
    return SMALLEST <= value <= LARGEST


class Extent(NamedTuple):
    """How many queries or labels there are, if known, and where that number comes from."""

    size: int | None = None
    source: str = ""

    @property
    def limit(self) -> int:
        """The upper bound of indices; if the size is unknown, what a float64 holds exactly."""
        return 1 << 53 if self.size is None else self.size

    def check(self, kind: str, index: int) -> None:
        """Raise ValueError if the index is out of range."""
        if not 0 <= index < self.limit:
            raise ValueError(
                f"{kind} {index} is out of range" + (f": {self.source}, counted from 0" if self.source else "")
            )


def refuse_rows(path: Path, bad_N: NDArray[np.bool_], what: str) -> None:
    """Raise DataError if any row, or any cell of a row, is marked."""
    rows = np.flatnonzero(bad_N.reshape(len(bad_N), -1).any(axis=1))
    if len(rows):
        shown = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
        raise DataError(Problem(str(path), f"{len(rows)} of {len(bad_N)} rows have {what} (row {shown})"))


# Files


class Block(NamedTuple):
    """Some rows of a matrix."""

    columns_E: Ids
    values_E: Floats
    lengths_Q: Ids  # entries of each row


@dataclass
class SparseText:
    """Lines of `label:value`, a row each: parsed in blocks, and line by line only where a block is irregular.

    Scores are any numbers, below a header `rows labels`. Relevances are positive float32 numbers; a bare label then
    counts 1, commas separate as spaces do, and the header is optional.
    """

    path: Path
    problems: Problems
    relevances: bool = False
    labels: Extent = field(default_factory=Extent)  # of scores: what the header says
    header: tuple[int, int] | None = None  # once the first block is read

    def blocks(self) -> Iterator[Block]:
        """All valid rows, in order; problems with the others are reported."""
        lines = read_all_lines(self.path, self.problems)
        for first in islice(lines, 1):
            try:
                if not self._take_header(*first):
                    lines = chain([first], lines)
            except BeyondLimit as error:
                self.problems.file(self.path, error.message.replace("it ", "its header ", 1), error.hint)
                return
        if self.header is None and not self.relevances:
            _, line = next(lines, (1, ""))
            hint = (
                "a header of three numbers belongs to a feature file"
                if len(line.split()) == 3
                else "the first line must give its size"
            )
            if not self.problems.about(self.path):
                self.problems.line(self.path, 1, f"not a header `rows labels`: {excerpt(line.rstrip())}", hint)
            return
        while block := _next_block(lines):
            yield self._parse([line for _, line in block]) or self._parse_lines(block)

    def _take_header(self, number: int, line: str) -> bool:
        found = HEADER.fullmatch(line) if number == 1 else None
        if found is None or (self.relevances and found[2].strip(" ")):  # two labels between tabs
            return False
        try:
            self.header = _checked_shape(int(found[1]), int(found[3]))
        except BeyondLimit:
            raise
        except ValueError:  # thousands of digits
            return False
        if not self.relevances:
            self.labels = Extent(self.header[1], f"the header says {self.header[1]} labels")
        return True

    def _parse(self, lines: list[str]) -> Block | None:
        """All lines at once; None if any of them is irregular."""
        if not all(map(ROW.fullmatch, lines)):
            return None
        text = " ".join(lines)
        try:
            numbers = np.fromstring(text.replace(":", " "), sep=" ") if ":" in text else np.zeros(0)
        except ValueError:
            return None
        labels_E, values_E = numbers[::2], numbers[1::2].copy()
        low, high = (SMALLEST, LARGEST) if self.relevances else (-np.inf, np.inf)
        sound = len(numbers) == 2 * text.count(":") and ((values_E >= low) & (values_E <= high)).all()
        if not sound or (labels_E >= self.labels.limit).any():
            return None
        return Block(labels_E.astype(np.int64), values_E, np.array([line.count(":") for line in lines]))

    def _parse_lines(self, block: list[tuple[int, str]]) -> Block:
        rows = []
        for number, line in block:
            entries = (line.replace(",", " ") if self.relevances else line).split()
            try:
                rows.append([self._entry(entry) for entry in entries])
            except ValueError as error:
                self.problems.line(self.path, number, str(error))
        numbers = np.array([pair for row in rows for pair in row], np.float64).reshape(-1, 2)
        return Block(numbers[:, 0].astype(np.int64), numbers[:, 1], np.array(list(map(len, rows)), np.int64))

    def _entry(self, entry: str) -> tuple[int, float]:
        found = ENTRY.fullmatch(entry)
        if found is None or (found[2] is None and not self.relevances):
            raise ValueError(f"not `label:{'relevance' if self.relevances else 'value'}`: {excerpt(entry)}")
        label = int(found[1])
        self.labels.check("label index", label)
        try:
            value = float(found[2] or 1)
        except ValueError:
            value = np.nan
        if self.relevances and not is_relevance(value):
            raise ValueError(f"relevance {excerpt(found[2])} is not a positive float32 number")
        if np.isnan(value):
            raise ValueError(f"the value of label {label} is not a number: {excerpt(entry)}")
        return label, value


def _checked_shape(rows: int, labels: int) -> tuple[int, int]:
    """The size of a matrix, unless it is beyond the limits."""
    check("rows", rows, "it announces")
    check("labels", labels, "it announces")
    return rows, labels


def _next_block(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    """Lines to be parsed together."""
    block, held = [], 0
    for line in islice(lines, LINES):
        block.append(line)
        held += len(line[1])
        if held > CHARACTERS:
            break
    return block


def read_npz(path: Path, problems: Problems) -> sp.csr_array | None:
    """A matrix written by scipy's `save_npz`; None, and a problem, if it cannot be read. Nothing is unpickled."""
    try:
        with load_arrays(path) as arrays:
            _checked_shape(*map(int, arrays["shape"]))
        with watched(path) as stream:
            loaded = sp.load_npz(stream)
        if hasattr(loaded, "check_format"):
            loaded.check_format(full_check=True)  # before a conversion, which trusts the indices
        matrix = sp.csr_array(loaded)
        matrix.check_format(full_check=True)
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"its dtype is {matrix.dtype}")
    except BeyondLimit as error:
        problems.file(path, error.message, error.hint)
    except UNREADABLE as error:
        problems.file(path, f"not a scipy sparse matrix: {error}", "scipy.sparse.save_npz writes one")
    except OSError as error:
        problems.file(path, f"cannot be read: {error.strerror or error}")
    else:
        return matrix
    return None


def read_matrix(
    path: Path, rows: int | None = None, labels: int | None = None, truth: str = "the truth"
) -> sp.csr_array:
    """A label matrix: sparse text (`rows labels`, then lines of `label:value`) or what scipy's `save_npz` wrote.

    Args:
        rows, labels: how many it must have, if known.
        truth: what it must match, for errors.

    Raises:
        DataError: with everything that is wrong with the file.
    """
    if path.suffix == ".npy":
        raise DataError(Problem(str(path), "an array, not a label matrix", "use sparse text or a sparse .npz"))
    problems = Problems()
    matrix = read_npz(path, problems) if path.suffix == ".npz" else _read_text(path, problems)
    problems.raise_if_any()
    assert matrix is not None
    for what, wanted, found in zip(("rows", "labels"), (rows, labels), matrix.shape, strict=True):
        if wanted is not None and found != wanted:
            raise DataError(Problem(str(path), f"has {found:,} {what}, but {truth} has {wanted:,}"))
    bad_N = np.zeros(matrix.shape[0], np.bool_)
    bad_N[np.searchsorted(matrix.indptr, np.flatnonzero(np.isnan(matrix.data)), side="right") - 1] = True
    refuse_rows(path, bad_N, "a value that is not a number")
    return matrix


def _read_text(path: Path, problems: Problems) -> sp.csr_array | None:
    text = SparseText(path, problems)
    blocks = list(text.blocks())
    if text.header is None or problems.about(path):
        return None
    nothing = Block(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    columns_E, values_E, lengths_N = (np.concatenate(parts) for parts in zip(nothing, *blocks, strict=True))
    if len(lengths_N) != text.header[0]:
        problems.file(path, f"the header says {text.header[0]:,} rows, but there are {len(lengths_N):,}")
        return None
    return narrow(values_E, columns_E, np.concatenate([[0], np.cumsum(lengths_N)]), text.header)


def read_pairs(path: Path, queries: Extent, labels: Extent, problems: Problems) -> tuple[Ids, Ids]:
    """The pairs of a filter file, a line `query label` for each, from 0."""
    pairs = array("q")
    for number, line in read_lines(path, problems):
        try:
            query, label = map(int, line.split())
        except ValueError:
            problems.line(path, number, f"not a pair `query label`: {excerpt(line)}")
            continue
        try:
            queries.check("query", query)
            labels.check("label", label)
        except ValueError as error:
            problems.line(path, number, str(error))
            continue
        pairs.extend((query, label))
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return rows, columns


def read_filter(path: Path, shape: tuple[int, int], truth: str = "the truth") -> sp.csr_array:
    """The pairs of a filter file for a label matrix of this shape: a list of them, or a matrix (`.npz`)."""
    if path.suffix == ".npz":
        return read_matrix(path, *shape, truth)
    problems = Problems()
    sizes = (Extent(shape[0], f"{truth} has {shape[0]} rows"), Extent(shape[1], f"{truth} has {shape[1]} labels"))
    pairs = read_pairs(path, *sizes, problems)
    problems.raise_if_any()
    return sp.csr_array(sp.coo_array((np.ones(len(pairs[0]), np.float32), pairs), shape=shape))
