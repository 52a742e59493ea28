"""Reader of tables, for your own data."""

from __future__ import annotations

import ast
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xmclab.api import Dataset, Reader, Side, option
from xmclab.data.holdout import hold_out, key_of
from xmclab.data.readers.columns import (
    TEST_FILTERS,
    TRAIN_FILTERS,
    Half,
    Targets,
    Texts,
    as_test,
    assemble,
    check_text,
    logger,
)
from xmclab.data.readers.lines import Problems, excerpt
from xmclab.data.readers.table_files import columns_of, find_table, kind_of, read_rows
from xmclab.data.sparse import is_relevance
from xmclab.data.texts import PackedTexts
from xmclab.errors import DataError, Problem

TRAIN, TEST, LABELS, PAIRS, VALID = "train", "test", "labels", "pairs", "valid"
QUERY = ("query", "title", "text")  # accepted column names in order of preference, in any case
CONTENT = ("content", "body")
NAME = ("uid", "id", "name")
LABEL = ("labels", "label", "targets", "tags")
RELEVANCE = ("relevances", "relevance")
LABEL_TITLE = ("title", "text", "label", "name")
LABEL_NAME = (*NAME, "label", "title", "text")
PAIR_QUERY = ("query", "query_id", *NAME)
LONGEST_PYTHON = 1_000_000  # characters of a list as Python prints it: its syntax tree takes a hundred times as much
SEPARATORS = ("|", ";", ",")  # the first of these found in any cell


@dataclass
class Table(Reader):
    """Tables: a CSV, TSV, JSON lines or Parquet file of queries and labels, or a folder with a `train` table.

    Columns: `query` (or `title`, `text`), optionally `content` and `uid`, and `labels`: a list, or names between
    separators. Tables beside `train`, all optional: `test` and `valid`; `labels` with the `uid` and `title` of each
    label; `pairs` with a `query` and a `label` per row in place of the column of labels (and of `valid`).
    """

    filters_same_text = True

    query: str = option("", "column of the query text; empty: the first of query, title, text")
    labels: str = option("", "column of the labels; empty: the first of labels, label, targets, tags")
    separator: str = option("", "separator of the labels in a cell; empty: the first of | ; , found in a cell")
    test_share: float = option(0.1, "share of the queries held out for testing if there is no test table", gt=0, lt=1)

    def matches(self, folder: Path) -> bool:
        return bool(kind_of(folder)) if folder.is_file() else bool(find_table(folder, TRAIN))

    def read(self, folder: Path) -> Dataset:
        tables = _tables(folder)
        if TRAIN not in tables:
            raise DataError(Problem(str(folder), "no table of training queries", "add one, such as train.csv"))
        reading = _Reading(self, tables, Problems())
        dataset = reading.dataset(folder)
        if TEST in tables:
            return dataset
        logger.info("%s: no test table; holding out a share of %g", tables[TRAIN], self.test_share)
        return hold_out(dataset, np.array(reading.keys, dtype=np.uint64), self.test_share, "add a test table")

    def read_queries(self, source: Path, data: Dataset, folder: Path) -> Dataset:
        """A table, or the table `test` of a folder; with a column of labels, all of them known to the data."""
        file = _tables(source).get(TEST) if source.is_dir() else source
        if file is None:
            raise DataError(Problem(str(source), "no table of test queries", "add one, such as test.csv"))
        return _Reading(self, _tables(folder), Problems()).further(file, data)

    def validation_queries(self, folder: Path) -> Path | None:
        return _tables(folder).get(VALID)


def _tables(folder: Path) -> dict[str, Path]:
    """The tables of a data set by name."""
    if folder.is_file():
        return {TRAIN: folder}
    tables = {name: file for name in (TRAIN, TEST, LABELS, PAIRS, VALID) if (file := _only(folder, name))}
    if PAIRS in tables:
        tables.pop(VALID, None)  # has no labels
    return tables


def _only(folder: Path, name: str) -> Path | None:
    found = find_table(folder, name)
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise DataError(Problem(str(folder), f"two tables of the same name: {names}", "remove one of them"))
    return found[0] if found else None


@dataclass
class _Reading:
    """One reading of tables."""

    options: Table
    tables: dict[str, Path]
    problems: Problems
    ids: dict[str, int] = field(default_factory=dict)  # label name -> label index
    separator: str = ""
    keys: array[int] = field(default_factory=lambda: array("Q"))  # of the training queries, if some are held out

    def dataset(self, folder: Path) -> Dataset:
        labels = self._labels() if LABELS in self.tables else self._new(TRAIN, "label")
        halves = [self._half(TRAIN, TRAIN_FILTERS, labels)]
        if TEST in self.tables:
            halves.append(self._half(TEST, TEST_FILTERS, labels))
        if PAIRS in self.tables:
            self._pairs(halves, labels)
        if VALID in self.tables:
            self._half(VALID, (), labels)  # for its problems, and labels that no other table has
        if LABELS not in self.tables:
            for name in self.ids:
                labels.add(name, "")
            labels.names = labels.texts
            if labels.texts and not self.problems.bad_lines and not self.problems.general:
                labels.size = len(labels.texts)
            if labels.texts and all(name.isdigit() for name in labels.texts):
                logger.warning("%s: labels are numbers, which mean nothing as text; add a table of labels", folder)
        options = self.options
        return assemble(
            folder,
            labels,
            halves,
            self.problems,
            [self.tables.get(name) for name in (TRAIN, TEST, LABELS, PAIRS, VALID)],
            (options.query, options.labels, self.separator, str(options.test_share)),
            expects_filters=False,
        )

    def further(self, file: Path, data: Dataset) -> Dataset:
        """A table of test queries beside those of the data set, separated alike and with the same labels."""
        known = Texts(self.tables.get(LABELS, self.tables[TRAIN]), PackedTexts(data.label_texts), data.label_names)
        known.size = data.num_labels
        for table in [self.tables[name] for name in (TRAIN, TEST) if name in self.tables and PAIRS not in self.tables]:
            self._label_column(table, columns_of(table, self.problems))
        self.tables = {TEST: file, LABELS: known.file}
        self.ids = {name: label for label, name in enumerate(data.label_names)}
        half = self._half(TEST, (f"filter_labels_{file.name.partition('.')[0]}.txt",), known)
        made = assemble(file.parent, known, [half], self.problems, [file], expects_filters=False)
        return as_test(made)

    def _labels(self) -> Texts:
        """The label table, which lists every label."""
        file = self.tables[LABELS]
        columns = columns_of(file, self.problems)
        text = self._column(file, columns, LABEL_TITLE, "for the label texts")
        wanted = [text, known_column(columns, CONTENT), known_column(columns, LABEL_NAME)]
        labels = self._new(LABELS, "label")
        labels.names = names = PackedTexts()
        for number, (title, content, name) in self._texts(file, columns, wanted):
            if name in self.ids:
                self.problems.line(file, number, f"duplicate label name {excerpt(name)}")
                continue
            self.ids[name] = len(names)
            labels.add(title, content)
            labels.lines.append(number)
            names.append(name)
        labels.size = self._size(labels)
        return labels

    def _half(self, table: str, filters: tuple[str, ...], labels: Texts) -> Half:
        """The queries of a table, with their labels if these are in a column."""
        file = self.tables[table]
        columns = columns_of(file, self.problems)
        query = self._column(file, columns, QUERY, "for the queries", self.options.query, "query")
        cells = relevances = None
        if PAIRS not in self.tables:
            cells = self._label_column(file, columns)
            relevances = known_column(columns, RELEVANCE)
        half = Half(self._new(table, "query"), Targets(), filters)
        half.queries.names = names = PackedTexts()
        wanted = [query, known_column(columns, CONTENT, query), known_column(columns, NAME, query), cells, relevances]
        for number, (title, content, name, *row) in self._texts(file, columns, wanted):
            try:
                targets = self._targets(row[0], row[1], labels)
            except ValueError as error:
                self.problems.line(file, number, str(error))
                continue
            half.queries.add(title, content)
            half.queries.lines.append(number)
            names.append(name)
            if table == TRAIN and TEST not in self.tables:
                self.keys.append(key_of(title))
            if PAIRS not in self.tables:
                half.targets.add(*targets)
        half.queries.size = self._size(half.queries)
        return half

    def _new(self, table: str, side: Side) -> Texts:
        """No texts yet, of a table."""
        return Texts(self.tables[table], fields=self.options.text_of(side))

    def _size(self, texts: Texts) -> int | None:
        """How many rows there are; a malformed row may stand for several."""
        return None if self.problems.about(texts.file) else len(texts.texts)

    def _texts(
        self, file: Path, columns: Sequence[str], wanted: Sequence[str | None]
    ) -> Iterator[tuple[int, list[Any]]]:
        """The wanted cells of each row, of which the first are (title, content, name) and become texts."""
        if wanted[0] is None:
            return
        row = 0
        for number, (title, content, name, *rest) in read_rows(file, columns, wanted, self.problems):
            try:
                title, content = (
                    cell_text(title, wanted[0]),
                    cell_text("" if content is None else content, wanted[1] or ""),
                )
                name = str(row) if name is None else _name(name)
            except ValueError as error:
                self.problems.line(file, number, str(error))
                continue
            row += 1
            yield number, [title, content, name, *rest]

    def _column(
        self, file: Path, columns: Sequence[str], known: Sequence[str], what: str, chosen: str = "", key: str = ""
    ) -> str | None:
        """The name of a column that must be there."""
        found = (chosen if chosen in columns else None) if chosen else known_column(columns, known)
        if found is None and (columns or not self.problems.about(file)):
            wanted = chosen or " or ".join(known)
            there = f"columns: {', '.join(map(repr, filter(None, columns)))}" if columns else "no header"
            hint = f"{there}; choose one with reader.{key}=NAME" if key else there
            self.problems.file(file, f"no column {what}: expected {wanted}", hint)
        return found

    def _label_column(self, file: Path, columns: Sequence[str]) -> str | None:
        """The name of the column of labels, and what separates these, unless another table of the set told."""
        cells = self._column(file, columns, LABEL, "for the labels", self.options.labels, "labels")
        self.separator = self.separator or self.options.separator or self._find_separator(file, columns, cells)
        return cells

    def _find_separator(self, file: Path, columns: Sequence[str], cells: str | None) -> str:
        """The first of the known separators that a cell of the file has."""
        seen: set[str] = set()
        for _, (cell,) in read_rows(file, columns, [cells], Problems()) if cells else ():
            if isinstance(cell, str) and not _is_list(cell):
                seen.update(sign for sign in SEPARATORS if sign in cell)
            if SEPARATORS[0] in seen:
                break
        found = next((sign for sign in SEPARATORS if sign in seen), "")
        if found:
            logger.info("%s: labels are separated by %r", file, found)
        return found

    def _targets(self, cell: Any, relevances: Any, labels: Texts) -> tuple[list[int], list[float]]:
        """Label indices and relevances of a row."""
        names = [_name(name) for name in self._items(cell)]
        columns = [self._label(name, labels) for name in names if name]
        if relevances is None or relevances == "":
            return columns, [1.0] * len(columns)
        try:
            values = [float(value) for value in self._items(relevances)]
        except (TypeError, ValueError):
            raise ValueError(f"relevances are not numbers: {excerpt(str(relevances))}") from None
        if len(values) != len(columns):
            raise ValueError(f"{len(values)} relevances for {len(columns)} labels")
        for value in values:
            if not is_relevance(value):
                raise ValueError(f"relevance {value} is not a positive float32 number")
        return columns, values

    def _label(self, name: str, labels: Texts) -> int:
        """The index of a label; without a label table, a new name is a new label."""
        if LABELS in self.tables:
            if name not in self.ids and labels.sound:
                raise ValueError(f"label {excerpt(name)} is not in {labels.file.name}")
            return self.ids.get(name, 0)
        return self.ids.setdefault(name, len(self.ids))

    def _items(self, cell: Any) -> list[Any]:
        """A list, or a cell of text cut at the separators."""
        if isinstance(cell, list):
            return cell
        if cell is None:
            return []
        if isinstance(cell, str) and _is_list(cell):
            return _parse_list(cell)
        if isinstance(cell, str) and self.separator:
            return cell.split(self.separator)
        return [cell]

    def _pairs(self, halves: Sequence[Half], labels: Texts) -> None:
        """Give the queries the labels that the table of pairs has for them."""
        file = self.tables[PAIRS]
        columns = columns_of(file, self.problems)
        query = self._column(file, columns, PAIR_QUERY, "for the queries of the pairs")
        label = self._column(file, columns, LABEL, "for the labels of the pairs")
        places = self._places(halves)
        rows, lines = ([array("q") for _ in halves] for _ in range(2))
        wanted = [query, label, known_column(columns, RELEVANCE)]
        found = read_rows(file, columns, wanted, self.problems) if query and label else ()
        for number, (name, label_name, relevance) in found:
            try:
                name = _name(name)
                if name not in places:
                    raise ValueError(f"query {excerpt(name)} is not in any table of queries")
                if not _name(label_name):
                    raise ValueError(f"lacks {label!r}")
                targets = self._targets([label_name], relevance, labels)
            except ValueError as error:
                self.problems.line(file, number, str(error))
                continue
            where, row = places[name]
            halves[where].targets.add(*targets)
            rows[where].append(row)
            lines[where].append(number)
        for half, half_rows, half_lines in zip(halves, map(np.asarray, rows), lines, strict=True):
            half.pairs_file = file
            half.repeated_lines = [half_lines[entry] for entry in half.targets.repeated(half_rows)]
            half.targets = half.targets.gathered(half_rows, len(half.queries.texts))

    def _places(self, halves: Sequence[Half]) -> dict[str, tuple[int, int]]:
        """(half, row) of every query by its name."""
        places: dict[str, tuple[int, int]] = {}
        for number, half in enumerate(halves):
            for row, name in enumerate(half.queries.names):
                if name in places:
                    message = f"two queries are named {excerpt(name)}"
                    self.problems.file(half.queries.file, message, "pairs need a unique uid for each query")
                    return places
                places[name] = number, row
        return places


def known_column(columns: Sequence[str], known: Sequence[str], taken: str | None = None) -> str | None:
    """The first column that has one of the known names."""
    by_name = {column.lower(): column for column in reversed(columns) if column != taken}
    return next((by_name[name] for name in known if name in by_name), None)


def cell_text(cell: Any, column: str) -> str:
    """The text of a cell; ValueError if it holds none."""
    if cell is None:
        raise ValueError(f"lacks {column!r}")
    if not isinstance(cell, str):
        raise ValueError(f"{column!r} is not text: {excerpt(str(cell))}")
    check_text(cell, column)
    return cell


def _name(cell: Any) -> str:
    """A name as text: numbers are names too."""
    if not isinstance(cell, (str, int)) or isinstance(cell, bool):
        raise ValueError(f"neither a name nor an integer: {excerpt(str(cell))}")
    name = str(cell).strip()
    check_text(name, "name")
    return name


def _is_list(cell: str) -> bool:
    return cell.startswith("[") and cell.endswith("]")


def _parse_list(cell: str) -> list[Any]:
    """A list as JSON or, unless it is very long, as Python prints it."""
    for parse in (json.loads, ast.literal_eval)[: 1 if len(cell) > LONGEST_PYTHON else 2]:
        try:
            found = parse(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list):
            return found
    raise ValueError(f"not a list: {excerpt(cell)}")
