"""Texts from plain files: a text per line, or a table (CSV, TSV, JSON, JSON lines, Parquet)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmclab.api import TextFields
from xmclab.data.readers.columns import choose, lacks_content, texts_were_cut, within_limit
from xmclab.data.readers.json_records import JSON, is_json, read_json_records
from xmclab.data.readers.lines import Problems, read_all_lines
from xmclab.data.readers.table import CONTENT, LABEL_TITLE, NAME, QUERY, cell_text, known_column
from xmclab.data.readers.table_files import PEEKED, SUFFIXES, Row, columns_of, kind_of, read_rows
from xmclab.errors import ConfigError, Problem

LINES = ".txt"
KNOWN = (LINES, *SUFFIXES, JSON)  # also as `.gz`, Parquet apart


@dataclass(frozen=True)
class TextRecord:
    """A text, of a file or by itself."""

    text: str
    id: str | None = None  # its name in the file, if that has names
    cut: bool = False  # whether the text was longer than the limit
    lacks_content: bool = False  # whether it is a title, read for want of a content

    @property
    def name(self) -> str:
        """The text itself where there are no names."""
        return self.text if self.id is None else self.id


class TextFile:
    """The texts of a file. Iterating reads it from the start, a record at a time.

    Args:
        path: `.txt` (a text per line), a table, or `.json` (an array, or a record per line); also with `.gz` appended.
        column: the column of the table that holds the text.
        of_labels: the texts are labels, each with a name; else queries.
        fields: what the model was trained on. In place of a content, it takes a column that was chosen or is the only
            one.
    """

    def __init__(
        self, path: Path, column: str | None = None, of_labels: bool = False, fields: TextFields = "title"
    ) -> None:
        self.path, self.column, self.of_labels, self.fields = path, column, of_labels, fields
        self.known = LABEL_TITLE if of_labels else QUERY
        self.has_ids = False  # whether the texts have names of their own; from `check`
        self.is_table = bool(kind_of(path)) or is_json(path)
        self.notes: list[str] = []  # about texts that are not what one may expect, from `check`
        if not self.is_table and Path(path.name.removesuffix(".gz")).suffix.lower() != LINES:
            raise ConfigError(Problem(str(path), "unknown file format", f"known: {', '.join(KNOWN)}"))

    def check(self) -> int:
        """Read everything once; the number of texts.

        Raises:
            DataError: with everything that is wrong with the file.
        """
        problems = Problems()
        found = cut = lacking = 0
        for record in self._checked(problems):
            found += 1
            cut += record.cut
            lacking += record.lacks_content
            self.has_ids |= record.id is not None
        if not found and not problems.about(self.path):
            problems.file(self.path, "has no texts")
        if found and found == lacking and not problems.about(self.path):
            side = "label" if self.of_labels else "query"
            advice = "rename the one with the text to 'content'" if self.of_labels else "choose one with --column"
            columns = ", ".join(map(repr, self._columns(problems)))
            reason = f"no {side} has a 'content', which the model was trained on"
            problems.file(self.path, reason, f"columns: {columns}; {advice}")
        problems.raise_if_any()
        self.notes = [texts_were_cut(self.path, cut)] if cut else []
        if lacking:
            self.notes.append(f"{self.path}: {lacking} of {found} texts have no 'content'; reading the title instead")
        return found

    def __iter__(self) -> Iterator[TextRecord]:
        problems = Problems()
        yield from self._checked(problems)
        problems.raise_if_any()

    def _checked(self, problems: Problems) -> Iterator[TextRecord]:
        for number, record in self._records(problems):
            if self.of_labels and not record.name.strip():
                problems.line(self.path, number, "label without a name")
                continue
            yield record

    def _records(self, problems: Problems) -> Iterator[tuple[int, TextRecord]]:
        if not self.is_table:
            for number, line in read_all_lines(self.path, problems):
                yield number, _record(line.rstrip("\r\n"))
            return
        columns = self._columns(problems)
        column = self._pick(columns)
        if column is None:
            if not problems.about(self.path):
                there = f"columns: {', '.join(map(repr, columns)) or 'none'}"
                advice = "rename the one with the text" if self.of_labels else "choose one with --column"
                problems.file(self.path, f"no column {self.column or ' or '.join(self.known)}", f"{there}; {advice}")
            return
        chosen = self.column is not None or len(columns) == 1 or column.lower() in CONTENT
        fields = "title" if chosen and self.fields == "content" else self.fields
        content = None if fields == "title" else known_column(columns, CONTENT, column)
        names = known_column(columns, NAME, column)
        wanted = [column, content, names]
        for number, (cell, more, name) in self._rows(columns, wanted, problems):
            try:
                title, more = cell_text(cell, column), cell_text(more or "", content or "")
            except ValueError as error:
                problems.line(self.path, number, str(error))
                continue
            text, name = choose(title, more, fields), None if names is None else "" if name is None else str(name)
            yield number, _record(text, name, lacks_content(more, fields))

    def _columns(self, problems: Problems) -> list[str]:
        """The names of the columns; of JSON, the keys of the first records."""
        if not is_json(self.path):
            return columns_of(self.path, problems)
        peek = Problems()  # reported when the rows are read, unless there are none
        first = itertools.islice(read_json_records(self.path, peek), PEEKED)
        keys = list(dict.fromkeys(key for _, record in first for key in record))
        if not keys:
            problems.general += peek.general
        return keys

    def _rows(self, columns: Sequence[str], wanted: Sequence[str | None], problems: Problems) -> Iterator[Row]:
        """The wanted cells of each row."""
        if not is_json(self.path):
            yield from read_rows(self.path, columns, wanted, problems)
            return
        for number, record in read_json_records(self.path, problems):
            yield number, [None if name is None else record.get(name) for name in wanted]

    def _pick(self, columns: Sequence[str]) -> str | None:
        """The column that holds the text, if it is there."""
        if self.column is not None:
            return self.column if self.column in columns else None
        known = (*self.known, *CONTENT) if self.fields == "content" else self.known
        return known_column(columns, known) or (columns[0] if len(columns) == 1 else None)


def _record(text: str, name: str | None = None, lacks_content: bool = False) -> TextRecord:
    """The text, cut at the limit."""
    shown = within_limit(text)
    return TextRecord(shown, name, shown is not text, lacks_content)
