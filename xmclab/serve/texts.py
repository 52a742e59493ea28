"""Texts from files that anybody can write: a text per line, CSV, TSV or JSON lines; gzipped or not."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from xmclab.data.lines import Problems, excerpt
from xmclab.errors import ConfigError, Problem

QUERY_COLUMNS = ("query", "text", "title")
LABEL_COLUMNS = ("text", "title", "label")
NAME_COLUMNS = ("name", "uid")
DELIMITERS = {"csv": ",", "tsv": "\t"}
FORMATS = {"txt": "txt", "csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl"}
LONGEST_FIELD = 1 << 30  # characters; the csv module stops at 128 Ki unless told otherwise
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # what undecodable bytes become, and halves of surrogate pairs


@dataclass(frozen=True)
class TextRecord:
    """A text of a file."""

    text: str
    name: str  # the text itself where the file has no name for it


class TextFile:
    """The texts of a file. Iterating reads it from the start, a record at a time.

    Args:
        path: `.txt` (a text per line), `.csv`, `.tsv` (with a header) or `.jsonl`; `.gz` behind it is fine.
        columns: names of the column or key that holds the text; the first that the file has is read.
        with_content: put the `content` of a record behind its `title`, as a model may have been trained.
    """

    def __init__(self, path: Path, columns: Sequence[str] = QUERY_COLUMNS, with_content: bool = False) -> None:
        self.path, self.columns, self.with_content = path, columns, with_content
        suffix = Path(path.name.removesuffix(".gz")).suffix.removeprefix(".").lower()
        if suffix not in FORMATS:
            known = ", ".join(f".{name}" for name in FORMATS)
            raise ConfigError(Problem(str(path), "the name does not say what format it is", f"known: {known}"))
        self.format = FORMATS[suffix]

    def check(self) -> int:
        """Read everything once; the number of texts.

        Raises:
            DataError: with everything that is wrong with the file.
        """
        problems = Problems()
        found = sum(1 for _ in self._records(problems))
        if not found and not problems.about(self.path):
            problems.file(self.path, "no text in it")
        problems.raise_if_any()
        return found

    def __iter__(self) -> Iterator[TextRecord]:
        problems = Problems()
        yield from self._records(problems)
        problems.raise_if_any()

    def _records(self, problems: Problems) -> Iterator[TextRecord]:
        number = 0
        try:
            with closing(_open(self.path)) as stream:
                for number, record in self._parse(stream):
                    try:
                        found = self._read(record)
                    except ValueError as error:
                        problems.line(self.path, number, str(error))
                        continue
                    yield found
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problems.file(self.path, f"damaged archive after {number:,} lines: {error}", "fetch the file again")
        except OSError as error:
            problems.file(self.path, f"cannot be read: {error.strerror or error}")
        except (csv.Error, _NoColumnError) as error:
            problems.file(self.path, str(error))

    def _parse(self, stream: IO[str]) -> Iterator[tuple[int, Any]]:
        """(line, record): the line itself, or a mapping by column."""
        if self.format == "txt":
            yield from enumerate((line.rstrip("\r\n") for line in stream), start=1)
        elif self.format == "jsonl":
            yield from ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
        else:
            csv.field_size_limit(LONGEST_FIELD)
            rows = csv.DictReader(stream, delimiter=DELIMITERS[self.format], strict=True)
            self._column(list(rows.fieldnames or []))
            yield from ((rows.line_num, row) for row in rows)

    def _read(self, record: Any) -> TextRecord:
        if self.format == "txt":
            return TextRecord(_clean(record), record)
        if self.format == "jsonl":
            try:
                record = json.loads(record)
            except (ValueError, RecursionError):
                raise ValueError(f"not JSON: {excerpt(record)}") from None
            if isinstance(record, str):
                return TextRecord(_clean(record), record)
            if not isinstance(record, dict):
                raise ValueError(f"neither a JSON object nor a text: {excerpt(json.dumps(record))}")
        try:
            column = self._column(list(record))
        except _NoColumnError as error:
            raise ValueError(str(error)) from None
        text = record[column]
        if not isinstance(text, str):
            raise ValueError(f"{column!r} is no text: {excerpt(json.dumps(text))}")
        if column == "title" and self.with_content and record.get("content"):
            text = f"{text} {record['content']}".strip()
        name = next((str(record[column]) for column in NAME_COLUMNS if record.get(column)), text)
        return TextRecord(_clean(text), _clean(name))

    def _column(self, present: list[str | None]) -> str:
        """The column that holds the text."""
        for column in self.columns:
            if column in present:
                return column
        if len(present) == 1 and present[0] is not None and len(self.columns) > 1:
            return present[0]
        wanted, there = (", ".join(map(repr, names)) or "none" for names in (self.columns, present))
        raise _NoColumnError(f"no column {wanted}; there are: {there}; name the one to read by --column")


class _NoColumnError(Exception):
    """None of the columns asked for is there."""


def _clean(text: str) -> str:
    if NOT_UTF8.search(text):
        raise ValueError(f"not UTF-8: {excerpt(text)}")
    return text


def _open(path: Path) -> IO[str]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    stream: IO[str] = opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return stream
