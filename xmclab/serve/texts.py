"""Texts from plain files: a text per line, or a table (CSV, TSV, JSON lines, Parquet)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmclab.api import TextFields
from xmclab.data.readers.columns import choose, lacks_content, texts_were_cut, within_limit
from xmclab.data.readers.lines import Problems, read_all_lines
from xmclab.data.readers.table import CONTENT, LABEL_TITLE, NAME, QUERY, cell_text, known_column
from xmclab.data.readers.table_files import SUFFIXES, columns_of, kind_of, read_rows
from xmclab.errors import ConfigError, Problem


@dataclass(frozen=True)
class TextRecord:
    """A text of a file."""

    text: str
    name: str  # the text itself where the file has no names
    cut: bool = False  # whether the text was longer than the limit
    lacks_content: bool = False  # whether it is a title, read for want of a content


class TextFile:
    """The texts of a file. Iterating reads it from the start, a record at a time.

    Args:
        path: `.txt` (a text per line) or a table, optionally with `.gz` appended.
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
        self.is_table = bool(kind_of(path))
        self.notes: list[str] = []  # about texts that are not what one may expect, from `check`
        if not self.is_table and Path(path.name.removesuffix(".gz")).suffix.lower() != ".txt":
            kinds = ", ".join((".txt", *SUFFIXES))
            raise ConfigError(Problem(str(path), "unknown file format", f"known: {kinds}"))

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
        if not found and not problems.about(self.path):
            problems.file(self.path, "has no texts")
        if found and found == lacking and not problems.about(self.path):
            side = "label" if self.of_labels else "query"
            advice = "rename the one with the text to 'content'" if self.of_labels else "choose one with --column"
            columns = ", ".join(map(repr, columns_of(self.path, problems)))
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
        columns = columns_of(self.path, problems)
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
        for number, (cell, more, name) in read_rows(self.path, columns, wanted, problems):
            try:
                title, more = cell_text(cell, column), cell_text(more or "", content or "")
            except ValueError as error:
                problems.line(self.path, number, str(error))
                continue
            text, name = choose(title, more, fields), None if names is None else "" if name is None else str(name)
            yield number, _record(text, name, lacks_content(more, fields))

    def _pick(self, columns: Sequence[str]) -> str | None:
        """The column that holds the text, if it is there."""
        if self.column is not None:
            return self.column if self.column in columns else None
        known = (*self.known, *CONTENT) if self.fields == "content" else self.known
        return known_column(columns, known) or (columns[0] if len(columns) == 1 else None)


def _record(text: str, name: str | None = None, lacks_content: bool = False) -> TextRecord:
    """The text, cut at the limit; it is also the name if there is no other."""
    shown = within_limit(text)
    return TextRecord(shown, shown if name is None else name, shown is not text, lacks_content)
