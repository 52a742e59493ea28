"""What the layouts of text files and label matrices share: a text per line, and a matrix with a row per text."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, overload

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Reader
from xmclab.data.readers.columns import (
    TEST_FILTERS,
    TRAIN_FILTERS,
    Half,
    Targets,
    Texts,
    assemble,
    check_index,
    is_relevance,
    logger,
)
from xmclab.data.readers.lines import Problems, encoding_of, excerpt, find_file, read_all_lines
from xmclab.data.texts import PackedTexts

HEADER = re.compile(r"\d+ +\d+$")
ENTRY = re.compile(r"(-?\d+)(?::(\S+))?$")
SEPARATORS = re.compile(r"[\s,]+")


class RowNumbers(Sequence[str]):
    """The names of texts that have none: their row, from 0."""

    def __init__(self, rows: int) -> None:
        self._rows = range(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        return list(map(str, self._rows[row])) if isinstance(row, slice) else str(self._rows[row])


@dataclass
class TextMatrixReader(Reader):
    """A layout of text files and label matrices: subclasses say how the files are called."""

    train_texts: ClassVar[tuple[str, ...]]
    test_texts: ClassVar[tuple[str, ...]]
    label_texts: ClassVar[tuple[str, ...]]
    train_labels: ClassVar[tuple[str, ...]]
    test_labels: ClassVar[tuple[str, ...]]

    def matches(self, folder: Path) -> bool:
        return any(find_file(folder, *names) for names in (self.train_texts, self.test_texts))

    def read(self, folder: Path) -> Dataset:
        problems = Problems()
        labels = read_texts(_locate(folder, self.label_texts, problems), problems)
        labels.names = labels.texts  # a label has no other name than its text
        halves, matrices = [], []
        for texts, matrix, filters in (
            (self.train_texts, self.train_labels, TRAIN_FILTERS),
            (self.test_texts, self.test_labels, TEST_FILTERS),
        ):
            queries = read_texts(_locate(folder, texts, problems), problems)
            matrices.append(_locate(folder, matrix, problems))
            halves.append(Half(queries, read_labels(matrices[-1], queries, labels, problems), filters))
        files = [labels.file, *(half.queries.file for half in halves), *matrices]
        return assemble(folder, self.text, labels, halves, problems, files)


def _locate(folder: Path, names: Sequence[str], problems: Problems) -> Path:
    """The file of one of these names; the first name, and a problem, if there is none."""
    file = find_file(folder, *names)
    if file is None:
        file = folder / names[0]
        problems.file(file, "missing", f"{' or '.join(names[1:])} would do as well" if names[1:] else "")
    return file


def read_texts(file: Path, problems: Problems) -> Texts:
    """A text per line, an empty one for a blank line; UTF-8 or latin-1. The names are the row numbers."""
    texts = Texts(file)
    if problems.about(file):
        return texts
    encoding = encoding_of(file)
    if encoding != "utf-8":
        logger.warning("%s: not UTF-8, read as %s", file, encoding)
    texts.texts = PackedTexts(line.rstrip("\r\n") for _, line in read_all_lines(file, problems, encoding))
    texts.names = RowNumbers(len(texts.texts))
    texts.size = problems.rows(file, len(texts.texts))
    return texts


def read_labels(file: Path, queries: Texts, labels: Texts, problems: Problems) -> Targets:
    """The label matrix of some queries: a sparse text file, or what `scipy.sparse.save_npz` wrote."""
    if problems.about(file):
        return Targets()
    targets, rows = (_read_npz if file.suffix == ".npz" else _read_sparse_text)(file, labels, problems)
    if rows is not None and queries.size is not None and rows != queries.size:
        problems.file(file, f"has {rows:,} rows, but {queries.file.name} has {queries.size:,} lines")
    return targets


def _read_sparse_text(file: Path, labels: Texts, problems: Problems) -> tuple[Targets, int | None]:
    """Lines of `label:relevance` (or `label` alone), perhaps below a header `rows columns`; blank: no label.

    Also how many rows there are, bad ones included, unless this is not known or already a problem.
    """
    targets = Targets()
    header: list[int] | None = None
    for number, line in read_all_lines(file, problems):
        line = line.strip()
        if number == 1 and HEADER.match(line):
            header = list(map(int, line.split()))
            continue
        try:
            targets.add(*_entries(line, labels))
        except ValueError as error:
            problems.line(file, number, str(error))
    rows = problems.rows(file, len(targets.lengths))
    if header is not None and rows is not None:
        found = [rows, header[1] if labels.size is None else labels.size]
        if header != found:
            content = f"{found[0]} rows below it and {found[1]} labels in {labels.file.name}"
            problems.line(file, 1, f"the header says {header[0]} rows and {header[1]} columns: there are {content}")
            return targets, None
    return targets, rows


def _entries(line: str, labels: Texts) -> tuple[list[int], list[float]]:
    columns, relevances = [], []
    for entry in filter(None, SEPARATORS.split(line)):
        match = ENTRY.match(entry)
        if match is None:
            raise ValueError(f"not an entry `label:relevance`: {excerpt(entry)}")
        check_index(int(match[1]), labels)
        try:
            relevance = float(match[2] or 1)
        except ValueError:
            relevance = np.nan
        if not is_relevance(relevance):
            raise ValueError(f"relevance {excerpt(match[2])} is no positive number (of float32)")
        columns.append(int(match[1]))
        relevances.append(relevance)
    return columns, relevances


def _read_npz(file: Path, labels: Texts, problems: Problems) -> tuple[Targets, int | None]:
    """The same from a matrix."""
    try:
        matrix = sp.csr_array(sp.load_npz(file))
        matrix.check_format(full_check=True)
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"its entries are {matrix.dtype}")
    except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        problems.file(file, f"no sparse matrix of scipy: {error}", "scipy.sparse.save_npz writes one")
        return Targets(), None
    except OSError as error:
        problems.file(file, f"cannot be read: {error.strerror or error}")
        return Targets(), None
    rows, columns = matrix.shape
    if labels.size not in (None, columns):
        problems.file(file, f"has {columns:,} columns, but {labels.file.name} has {labels.size:,} lines")
        rows = None
    stored = matrix.nnz
    matrix.eliminate_zeros()
    if stored > matrix.nnz:
        logger.warning("%s: %d stored zeros left out", file, stored - matrix.nnz)
    relevances = matrix.data.astype(np.float32)
    for entry in np.flatnonzero(~(np.isfinite(relevances) & (relevances > 0))):
        row = int(np.searchsorted(matrix.indptr, entry, side="right"))
        problems.line(file, row, f"relevance {matrix.data[entry]} is no positive number (of float32)")
    return Targets.of(matrix.indices, relevances, np.diff(matrix.indptr)), rows
