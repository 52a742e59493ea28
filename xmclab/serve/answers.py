"""Answers read again: every format that `xmclab predict` writes, sparse text apart, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmclab.data.readers.json_records import is_json, read_json_records
from xmclab.data.readers.lines import Problems, excerpt
from xmclab.data.readers.table_files import columns_of, kind_of, read_rows

QUERY = ("row", "id", "query")
LABEL = ("label", "name", "score")
LABELS = "labels"


@dataclass
class Answer:
    """The labels of a query, as they stand in a file."""

    line: int  # of the file, or the number of the record: from 1
    row: int | None = None  # of the query, from 0
    id: str | None = None
    query: str | None = None
    labels: list[int | None] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)


def has_answers(file: Path) -> bool:
    """Whether the name of a file is that of a format which is read here."""
    return bool(kind_of(file)) or is_json(file)


def read_answers(file: Path) -> Iterator[Answer]:
    """The answers, in the order of the file.

    Raises:
        DataError: with everything that is wrong with the file, after the last of them.
    """
    problems = Problems()
    columns = [*QUERY, LABELS] if is_json(file) else columns_of(file, problems)
    nested = LABELS in columns
    if not nested and not problems.about(file) and not {"label", "name"} & set(columns):
        there = ", ".join(map(repr, columns)) or "none"
        problems.file(file, "no column 'labels', 'label' or 'name'", f"columns: {there}")
    if not problems.general:
        yield from _nested(file, columns, problems) if nested else _long(file, columns, problems)
    problems.raise_if_any()


def _nested(file: Path, columns: Sequence[str], problems: Problems) -> Iterator[Answer]:
    """A record per query."""
    wanted = [name if name in columns else None for name in (*QUERY, LABELS)]
    for number, (*asked, labels) in _rows(file, columns, wanted, problems):
        try:
            found = _asked(number, asked)
            if not isinstance(labels, list):
                raise ValueError(f"'labels' is not a list: {excerpt(str(labels))}")
            for each in labels:
                cells = each if isinstance(each, dict) else {"name" if isinstance(each, str) else "label": each}
                _add(found, [cells.get(name) for name in LABEL])
        except ValueError as error:
            problems.line(file, number, str(error))
            continue
        yield found


def _rows(
    file: Path, columns: Sequence[str], wanted: Sequence[str | None], problems: Problems
) -> Iterator[tuple[int, list[Any]]]:
    if not is_json(file):
        yield from read_rows(file, columns, wanted, problems)
        return
    for number, record in read_json_records(file, problems):
        yield number, [None if name is None else record.get(name) for name in wanted]


def _long(file: Path, columns: Sequence[str], problems: Problems) -> Iterator[Answer]:
    """A line per label: those of a query follow each other."""
    wanted = [name if name in columns else None for name in (*QUERY, *LABEL)]
    key = next((place for place, name in enumerate(wanted[: len(QUERY)]) if name), None)
    if key is None:
        problems.file(file, "no column 'row', 'id' or 'query'", "they say whose label it is")
        return
    current: Answer | None = None
    last: Any = None
    for number, cells in read_rows(file, columns, wanted, problems):
        try:
            if current is None or cells[key] != last:
                if current is not None:
                    yield current
                current, last = _asked(number, cells[: len(QUERY)]), cells[key]
            label = cells[len(QUERY) :]
            if any(cell not in (None, "") for cell in label):
                _add(current, label)
        except ValueError as error:
            problems.line(file, number, str(error))
    if current is not None:
        yield current


def _asked(number: int, cells: Sequence[Any]) -> Answer:
    """A query without labels yet."""
    row, id_, query = cells
    if query is not None and not isinstance(query, str):
        raise ValueError(f"'query' is not text: {excerpt(str(query))}")
    return Answer(number, _whole(row, "row"), None if id_ is None else str(id_), query)


def _add(answer: Answer, cells: Sequence[Any]) -> None:
    label, name, score = cells
    label = _whole(label, "label")
    if label is None and name in (None, ""):
        raise ValueError("a label has neither a number nor a name")
    answer.labels.append(label)
    answer.names.append(None if name in (None, "") else str(name))
    answer.scores.append(_number(score))


def _whole(cell: Any, column: str) -> int | None:
    """The integer in a cell, which may be text."""
    if cell is None or cell == "":
        return None
    try:
        if isinstance(cell, bool | float):
            raise ValueError
        return int(cell)
    except (TypeError, ValueError):
        raise ValueError(f"{column!r} is not an integer: {excerpt(str(cell))}") from None


def _number(cell: Any) -> float | None:
    """The score in a cell."""
    if cell is None or cell == "":
        return None
    try:
        found = float(cell)
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise ValueError(f"'score' is not a number: {excerpt(str(cell))}")
    return found
