"""What the layouts of text files and label matrices share: a text per line, and a matrix with a row per text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from xmclab.api import Dataset, Reader, Side, TextFields
from xmclab.data.readers.columns import (
    TEST_FILTERS,
    TRAIN_FILTERS,
    Half,
    Targets,
    Texts,
    as_test,
    assemble,
    logger,
)
from xmclab.data.readers.lines import Problems, encoding_of, find_file, read_all_lines
from xmclab.data.sparse import SparseText, read_npz
from xmclab.data.texts import RowNumbers

Names = tuple[str, ...]


@dataclass
class TextMatrixReader(Reader):
    """A layout of text files and label matrices: subclasses name the files."""

    train_texts: ClassVar[tuple[str, ...]]
    test_texts: ClassVar[tuple[str, ...]]
    label_texts: ClassVar[tuple[str, ...]]
    train_labels: ClassVar[tuple[str, ...]]
    test_labels: ClassVar[tuple[str, ...]]

    def matches(self, folder: Path) -> bool:
        return any(find_file(folder, *names) for names in (self.train_texts, self.test_texts))

    def read(self, folder: Path) -> Dataset:
        return self._dataset(folder, (self.train_texts, self.train_labels, TRAIN_FILTERS), self._test)

    def read_queries(self, source: Path, data: Dataset, folder: Path) -> Dataset:
        return as_test(self._dataset(source, self._test))

    @property
    def _test(self) -> tuple[Names, Names, Names]:
        return self.test_texts, self.test_labels, TEST_FILTERS

    def _dataset(self, folder: Path, *parts: tuple[Names, Names, Names]) -> Dataset:
        """The labels and the queries of these (texts, matrix, filter file), each the first of its names that exists."""
        problems = Problems()
        sides: tuple[Side, ...] = ("query", "label")
        for side in sides:
            if self.text_of(side) == "content":
                hint = f"data.{side}_text=title reads the lines"
                problems.file(folder, f"a {side} is a line of text here, without a 'content'", hint)
        labels = read_texts(_locate(folder, self.label_texts, problems), problems, self.text_of("label"))
        labels.names = labels.texts  # a label has no other name than its text
        halves, matrices = [], []
        for texts, matrix, filters in parts:
            queries = read_texts(_locate(folder, texts, problems), problems, self.text_of("query"))
            matrices.append(_locate(folder, matrix, problems))
            halves.append(Half(queries, read_labels(matrices[-1], queries, labels, problems), filters))
        files = [labels.file, *(half.queries.file for half in halves), *matrices]
        return assemble(folder, labels, halves, problems, files)


def _locate(folder: Path, names: Sequence[str], problems: Problems) -> Path:
    """The file of one of these names; the first name, and a problem, if there is none."""
    file = find_file(folder, *names)
    if file is None:
        file = folder / names[0]
        problems.file(file, "missing", f"{' or '.join(names[1:])} works too" if names[1:] else "")
    return file


def read_texts(file: Path, problems: Problems, fields: TextFields) -> Texts:
    """A text per line, an empty one for a blank line; UTF-8 or latin-1. The names are the row numbers.

    Args:
        fields: those that were asked for; a line is a title without a content.
    """
    texts = Texts(file, fields=fields)
    if problems.about(file):
        return texts
    encoding = encoding_of(file)
    if encoding != "utf-8":
        logger.warning("%s: not UTF-8; reading it as %s", file, encoding)
    for _, line in read_all_lines(file, problems, encoding):
        texts.append(line.rstrip("\r\n"))
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
    """The rows of a sparse text, and how many there are, bad ones included, unless that is unknown or a problem."""
    text = SparseText(file, problems, relevances=True, labels=labels.extent("labels"))
    targets = Targets()
    for block in text.blocks():
        targets.add_block(block)
    rows = problems.rows(file, len(targets.lengths))
    if text.header is not None and rows is not None:
        found = rows, text.header[1] if labels.size is None else labels.size
        if text.header != found:
            says = f"the header says {text.header[0]} rows and {text.header[1]} columns"
            there = f"{found[0]} rows below it and {found[1]} labels in {labels.file.name}"
            problems.line(file, 1, f"{says}, but there are {there}")
            return targets, None
    return targets, rows


def _read_npz(file: Path, labels: Texts, problems: Problems) -> tuple[Targets, int | None]:
    """The same from a matrix."""
    matrix = read_npz(file, problems)
    if matrix is None:
        return Targets(), None
    rows: int | None = matrix.shape[0]
    if labels.size not in (None, matrix.shape[1]):
        problems.file(file, f"has {matrix.shape[1]:,} columns, but {labels.file.name} has {labels.size:,} lines")
        rows = None
    stored = matrix.nnz
    matrix.eliminate_zeros()
    if stored > matrix.nnz:
        logger.warning("%s: ignored %d stored zeros", file, stored - matrix.nnz)
    relevances = matrix.data.astype(np.float32)
    for entry in np.flatnonzero(~(np.isfinite(relevances) & (relevances > 0))):
        row = int(np.searchsorted(matrix.indptr, entry, side="right"))
        problems.line(file, row, f"relevance {matrix.data[entry]} is not a positive float32 number")
    return Targets.of(matrix.indices, relevances, np.diff(matrix.indptr)), rows
