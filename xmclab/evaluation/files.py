"""What any program wrote: label matrices, and predictions as sparse text, sparse matrices or arrays of the k best."""

from __future__ import annotations

import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data.readers.lines import Problems, excerpt
from xmclab.errors import DataError, Problem
from xmclab.evaluation.metrics import drop_filtered, ranking_from_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = tuple[int, int]

HEADER = re.compile(rb"\s*(\d+)\s+(\d+)\s*")
ROW = re.compile(rb"\s*(?:\d+:[^\s:_]+(?:\s+|$))*")
LINES = 1 << 14  # of a text file read at once
SHOWN = 5


def read_matrix(
    path: Path, rows: int | None = None, labels: int | None = None, truth: str = "the truth"
) -> sp.csr_array:
    """A label matrix: sparse text (`rows labels`, then lines of `label:value`) or what scipy's `save_npz` wrote.

    Args:
        rows, labels: how many it must have, if that is known.
        truth: what has as many, for errors.

    Raises:
        DataError: with everything that is wrong with the file.
    """
    if path.suffix == ".npz":
        matrix = _sparse_npz(path)
    elif path.suffix == ".npy":
        raise DataError(Problem(str(path), "an array is no label matrix", "give sparse text, or a sparse .npz"))
    else:
        matrix = _SparseText(path).read()
    for what, wanted, found in zip(("rows", "labels"), (rows, labels), matrix.shape, strict=True):
        if wanted is not None and found != wanted:
            raise DataError(Problem(str(path), f"has {found:,} {what}, {truth} has {wanted:,}"))
    if np.isnan(matrix.data).any():
        bad_N = np.isin(np.arange(matrix.shape[0]), _rows(matrix)[np.isnan(matrix.data)])
        _refuse(path, bad_N, "a value that is no number")
    return matrix


def read_ranking(
    path: Path, shape: Shape, k: int, filter_NL: sp.csr_array | None = None, truth: str = "the truth"
) -> Ranking:
    """The first k labels of each row that are not filtered, by descending score.

    Args:
        path: a matrix of scores as for `read_matrix`; or label indices [rows, k], the best first and -1 where there are
            fewer: a `.npy`, or a `.npz` with `indices` and `scores`.
        truth: what has this shape, for errors.
    """
    widest = 0 if filter_NL is None else int(np.diff(filter_NL.indptr).max(initial=0))
    arrays = _top_arrays(path)
    if arrays is None:
        scores_NL = read_matrix(path, *shape, truth)
        _refuse_repeated(path, scores_NL)
        deepest = int(np.diff(scores_NL.indptr).max(initial=0))
        ranking = ranking_from_scores(scores_NL, min(deepest, k + widest))
    else:
        ranking = _ranking_of_arrays(path, *arrays, shape, k + widest, truth)
    if filter_NL is not None or (ranking.ids_NK < 0).any():
        nothing = sp.csr_array((np.zeros(0), np.zeros(0, np.int32), np.zeros(shape[0] + 1, np.int32)), shape=shape)
        ranking = drop_filtered(ranking, nothing if filter_NL is None else filter_NL, ranking.ids_NK.shape[1])
    return Ranking(ranking.ids_NK[:, :k], ranking.scores_NK[:, :k])


def read_pairs(path: Path, shape: Shape, truth: str = "the truth") -> sp.csr_array:
    """The pairs of a filter file: a line `row label` for each, from 0; or a label matrix (`.npz`)."""
    if path.suffix == ".npz":
        return read_matrix(path, *shape, truth)
    problems, pairs = Problems(), []
    for number, line in _numbered(path, problems):
        try:
            row, label = map(int, line.split())
        except ValueError:
            problems.line(path, number, f"not a pair `row label`: {excerpt(line)}")
            continue
        if not (0 <= row < shape[0] and 0 <= label < shape[1]):
            problems.line(path, number, f"pair {row} {label} is out of range: {shape[0]} rows, {shape[1]} labels")
        pairs.append((row, label))
    problems.raise_if_any()
    rows, labels = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sp.csr_array(sp.coo_array((np.ones(len(rows), np.float32), (rows, labels)), shape=shape))


@dataclass
class _SparseText:
    """Sparse text: read by the block, and looked at line by line only where a block is wrong."""

    path: Path

    def read(self) -> sp.csr_array:
        problems = Problems()
        lines = _numbered(self.path, problems)
        _, first = next(lines, (1, b""))
        problems.raise_if_any()
        header = HEADER.fullmatch(first)
        if header is None:
            hint = "three numbers head a file of features" if len(first.split()) == 3 else "say how large it is"
            raise DataError(Problem(f"{self.path}:1", f"not a header `rows labels`: {excerpt(first)}", hint))
        rows, labels = map(int, header.groups())
        numbers: list[NDArray[np.float64]] = []
        lengths: list[int] = []
        while block := list(islice(lines, LINES)):
            found = self._parse([line for _, line in block], labels)
            if found is None:
                self._report(block, labels, problems)
                continue
            numbers.append(found)
            lengths += (line.count(b":") for _, line in block)
        if not problems.bad_lines and len(lengths) != rows:
            problems.file(self.path, f"the header says {rows:,} rows, there are {len(lengths):,}")
        problems.raise_if_any()
        flat = np.concatenate([np.zeros(0), *numbers])
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return sp.csr_array((flat[1::2], flat[::2].astype(np.int64), indptr), shape=(rows, labels))

    @staticmethod
    def _parse(lines: list[bytes], labels: int) -> NDArray[np.float64] | None:
        """label, value, label, value, ... of all lines; None if any of them is wrong."""
        if not all(map(ROW.fullmatch, lines)):
            return None
        text = b" ".join(lines)
        if b":" not in text:
            return np.zeros(0)
        try:
            numbers = np.fromstring(text.replace(b":", b" "), sep=" ")
        except ValueError:
            return None
        sound = len(numbers) == 2 * text.count(b":") and not np.isnan(numbers).any() and (numbers[::2] < labels).all()
        return numbers if sound else None

    def _report(self, block: list[tuple[int, bytes]], labels: int, problems: Problems) -> None:
        for number, line in block:
            for entry in line.split():
                label, _, value = entry.partition(b":")
                try:
                    if b"_" in entry:  # Python's numbers may have it, other programs' do not
                        raise ValueError
                    if int(label) >= labels or int(label) < 0:
                        problems.line(self.path, number, f"label {int(label)} is out of range: {labels} labels, from 0")
                    elif np.isnan(float(value)):
                        problems.line(self.path, number, f"label {int(label)} has no number: {excerpt(entry)}")
                except ValueError:
                    problems.line(self.path, number, f"not `label:value`: {excerpt(entry)}")
                else:
                    continue
                break


def _numbered(path: Path, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of a file, gzipped or not; what cannot be read is reported."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        stream: IO[bytes]
        with opener(path, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.rstrip(b"\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problems.file(path, f"damaged archive after {number:,} lines: {error}", "fetch the file again")
    except OSError as error:
        problems.file(path, f"cannot be read: {error.strerror or error}")


def _load(path: Path) -> Any:
    """What numpy stored, never unpickled."""
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(Problem(str(path), f"no file of numpy: {error}")) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"cannot be read: {error.strerror or error}")) from error


def _sparse_npz(path: Path) -> sp.csr_array:
    try:
        matrix = sp.csr_array(sp.load_npz(path))
        matrix.check_format(full_check=True)
    except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            Problem(str(path), f"no sparse matrix of scipy: {error}", "scipy.sparse.save_npz writes one")
        ) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"cannot be read: {error.strerror or error}")) from error
    return matrix


def _top_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None] | None:
    """(indices, scores or None) of a file of the k best; None if it is a file of another kind."""
    if path.suffix == ".npy":
        return _load(path), None
    if path.suffix != ".npz":
        return None
    try:
        with _load(path) as arrays:
            if "format" in arrays.files:
                return None
            if "indices" not in arrays.files:
                names = ", ".join(arrays.files) or "nothing"
                hint = "`indices` and `scores` [rows, k], or what scipy.sparse.save_npz writes"
                raise DataError(Problem(str(path), f"holds {names}", hint))
            return arrays["indices"], arrays["scores"] if "scores" in arrays.files else None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(Problem(str(path), f"damaged: {error}")) from error


def _ranking_of_arrays(
    path: Path, indices: NDArray[Any], scores: NDArray[Any] | None, shape: Shape, depth: int, truth: str
) -> Ranking:
    where = str(path)
    if indices.ndim != 2 or not np.issubdtype(indices.dtype, np.integer):
        kind = f"an array {list(indices.shape)} of {indices.dtype}"
        raise DataError(Problem(where, f"{kind} in place of label indices [rows, k]"))
    if len(indices) != shape[0]:
        raise DataError(Problem(where, f"has {len(indices):,} rows, {truth} has {shape[0]:,}"))
    ids_NK = indices.astype(np.int64)
    _refuse(path, (ids_NK < -1) | (ids_NK >= shape[1]), f"an index out of range ({shape[1]} labels, from 0)")
    blocks = (indices[start : start + LINES] for start in range(0, max(len(indices), 1), LINES))
    _refuse(path, np.concatenate([_repeats(block) for block in blocks]), "a label twice")
    if scores is None:
        places_NK = np.broadcast_to(-np.arange(ids_NK.shape[1], dtype=np.float32), ids_NK.shape)
        return Ranking(ids_NK[:, :depth], places_NK[:, :depth])
    if scores.shape != indices.shape or scores.dtype.kind not in "fiu":
        kind = f"{list(scores.shape)} of {scores.dtype}"
        raise DataError(Problem(where, f"`scores` are {kind}, `indices` {list(indices.shape)}"))
    scores_NK = np.where(ids_NK < 0, -np.inf, scores)
    _refuse(path, np.isnan(scores_NK), "a score that is no number")
    order = np.lexsort((ids_NK, -scores_NK), axis=1)[:, :depth]
    best_NK = np.take_along_axis(scores_NK, order, axis=1).astype(np.float32)
    return Ranking(np.take_along_axis(ids_NK, order, axis=1), best_NK)


def _refuse_repeated(path: Path, matrix: sp.csr_array) -> None:
    order = np.lexsort((matrix.indices, rows := _rows(matrix)))
    columns = matrix.indices[order]
    again = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    _refuse(path, np.isin(np.arange(matrix.shape[0]), rows[1:][again]), "a label twice")


def _repeats(ids_QK: NDArray[Any]) -> NDArray[np.bool_]:
    """[Q] whether a row has a label twice."""
    ordered = np.sort(ids_QK, axis=1)
    repeats: NDArray[np.bool_] = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    return repeats


def _rows(matrix: sp.csr_array) -> NDArray[np.int64]:
    """The row of each entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _refuse(path: Path, bad_N: NDArray[np.bool_], what: str) -> None:
    """Stop if any row is marked, or any cell of one."""
    rows = np.flatnonzero(bad_N.reshape(len(bad_N), -1).any(axis=1))
    if len(rows):
        shown = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
        raise DataError(Problem(str(path), f"{len(rows)} of {len(bad_N)} rows have {what} (row {shown})"))
