"""Tables in files: CSV, TSV, JSON lines and Parquet, read row by row."""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xmclab.data.readers.lf_json import parse_object
from xmclab.data.readers.lines import Problems, read_all_lines, read_lines
from xmclab.errors import DataError, PluginError, Problem
from xmclab.system.limits import BeyondLimit, check, check_inflation
from xmclab.system.memory import out_of_memory
from xmclab.system.progress import so_far

DELIMITERS = {".csv": ",", ".tsv": "\t"}
OTHER_DELIMITERS = (";", "\t")  # that some programs write into .csv files
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, *JSON_LINES, PARQUET)
HINTS = {  # for too few and for too many cells
    ".csv": ("an empty cell still needs its comma", "put cells that contain a comma in double quotes"),
    ".tsv": ("an empty cell still needs its tab", "use a single tab between cells"),
}
PARQUET_ROWS = 8192  # rows of a Parquet file that are held at once
PEEKED = 100  # lines of a JSON lines file whose keys are its columns

Row = tuple[int, list[Any]]  # line (of a Parquet file: row), counted from 1, and the cells


def kind_of(file: Path) -> str:
    """The suffix that says how a file is read, without `.gz`; empty if it is not a table."""
    suffix = Path(file.name.removesuffix(".gz")).suffix.lower()
    packed = file.name.endswith(".gz")
    return suffix if suffix in SUFFIXES and not (packed and suffix == PARQUET) else ""


def find_table(folder: Path, name: str) -> list[Path]:
    """The tables of this name, under any suffix."""
    names = [f"{name}{suffix}{gz}" for suffix in SUFFIXES for gz in ("", ".gz")]
    return [file for file in (folder / found for found in names) if kind_of(file) and file.is_file()]


def columns_of(file: Path, problems: Problems) -> list[str]:
    """The names of the columns."""
    kind = kind_of(file)
    if kind == PARQUET:
        with _parquet(file) as table:
            return list(table.schema_arrow.names)
    if kind in JSON_LINES:
        peek = Problems()  # problems are reported when the rows are read
        keys: dict[str, None] = {}
        for _, line in itertools.islice(read_lines(file, peek), PEEKED):
            try:
                keys |= dict.fromkeys(parse_object(line))
            except ValueError:
                continue
        return list(keys)
    header = next(_csv_rows(file, DELIMITERS[kind], problems), (1, []))[1]
    other = next((sign for sign in OTHER_DELIMITERS if kind == ".csv" and len(header) == 1 and sign in header[0]), "")
    if other:
        hint = "save the table with commas, or with tabs as .tsv"
        problems.file(file, f"cells seem to be separated by {other!r}, not by commas", hint)
        return []
    return [str(cell).strip() for cell in header]


def read_rows(file: Path, columns: Sequence[str], wanted: Sequence[str | None], problems: Problems) -> Iterator[Row]:
    """The cells of the wanted columns of each row; None for a column or cell that does not exist."""
    kind = kind_of(file)
    if kind == PARQUET:
        yield from _parquet_rows(file, wanted)
    elif kind in JSON_LINES:
        for number, line in read_lines(file, problems):
            try:
                record = parse_object(line)
            except ValueError as error:
                problems.line(file, number, str(error))
                continue
            yield number, [record.get(name) if name is not None else None for name in wanted]
    else:
        places = [columns.index(name) if name is not None else None for name in wanted]
        for number, cells in itertools.islice(_csv_rows(file, DELIMITERS[kind], problems), 1, None):
            if len(cells) == len(columns):
                yield number, [None if place is None else cells[place] for place in places]
            else:
                message = f"{len(cells)} cells where the header has {len(columns)}"
                problems.line(file, number, f"{message}: {HINTS[kind][len(cells) > len(columns)]}")


def _csv_rows(file: Path, delimiter: str, problems: Problems) -> Iterator[Row]:
    """The rows of a CSV file, header included; blank lines between rows are skipped."""
    csv.field_size_limit(sys.maxsize)
    held = 0  # characters of the row that is being read

    def lines() -> Iterator[str]:
        nonlocal held
        for _, line in read_all_lines(file, problems):
            held += len(line)
            check("line", held, "a row of more than one line has")
            yield line

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        number, held = rows.line_num + 1, 0
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            problems.line(file, number, f"malformed row: {error}")
            continue
        except BeyondLimit as error:
            problems.file(file, f"line {number}: {error.message}; is a double quote missing?", error.hint)
            return
        if cells:
            yield number, cells


def _parquet_rows(file: Path, wanted: Sequence[str | None]) -> Iterator[Row]:
    number, size = 0, file.stat().st_size
    with _parquet(file) as table:
        for batch in table.iter_batches(PARQUET_ROWS, columns=[name for name in wanted if name is not None]):
            columns = [None if name is None else batch.column(name).to_pylist() for name in wanted]
            for row in range(batch.num_rows):
                number += 1
                yield number, [None if column is None else column[row] for column in columns]
            so_far(f"reading {file.name}", size * number // max(table.metadata.num_rows, 1), size)


@contextlib.contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    """An open Parquet file; `DataError` if it is not valid."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
        arrow = importlib.import_module("pyarrow")
    except ImportError as error:
        hint = 'pip install "xmclab[parquet]", or save the table as CSV or JSON lines'
        raise PluginError(Problem(str(file), f"pyarrow cannot be imported: {error}", hint)) from error
    try:
        with parquet.ParquetFile(file) as table:
            about = table.metadata
            check("rows", about.num_rows, "it announces")
            unpacked = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
            check_inflation(unpacked, file.stat().st_size)
            yield table
    except BeyondLimit as error:
        raise DataError(error.at(str(file))) from error
    except (arrow.ArrowException, OSError) as error:
        if out_of_memory(error):
            raise
        raise DataError(Problem(str(file), f"not a valid Parquet file: {error}")) from error
