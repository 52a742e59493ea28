"""Data for the library: a name, a folder or a file as for the command line, or rows that are in memory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from xmclab.data import open_data
from xmclab.errors import ConfigError, DataError, Problem, XmclabError
from xmclab.host.resolver import resolve
from xmclab.python.given import Given
from xmclab.system import messages
from xmclab.system.files import new_file

DATA_KEYS = ("data.", "reader=", "reader.", "plugin=")
Result = TypeVar("Result")
Source = Any  # a name or path, a DataFrame, a pyarrow table, dicts, or pairs of a text and its labels


class Data:
    """A data set that was read, and where it can be read again.

    Rows from memory are kept as tables in a temporary folder; a run that trains on them copies them to its own.
    """

    def __init__(self, source: str, given: Given, tables: Path | None = None, quiet: bool = False) -> None:
        """
        Args:
            source: what `data=` would be.
            given: how it is read.
            tables: a temporary folder with the rows, if they came from memory.
            quiet: show no notes and warnings.
        """
        self.source, self.words, self.tables = source, tuple(given.words), tables
        self._config = resolve([f"data={source}", *given.words], given.registry)
        self.registry = self._config.registry
        self.said: list[str] = []  # notes and warnings that were shown
        with self.showing(quiet):
            self.dataset = _without_folder(self.folder, lambda: open_data(self._config))
        if tables is not None:
            weakref.finalize(self, shutil.rmtree, tables.parent, ignore_errors=True)

    @property
    def folder(self) -> str:
        """What messages about rows from memory leave out: the temporary folder around their tables."""
        return f"{self.tables.parent}{os.sep}" if self.tables else ""

    @contextlib.contextmanager
    def showing(self, quiet: bool) -> Iterator[None]:
        """Print notes and warnings as the command does, each once; or nothing."""
        if quiet:
            with messages.kept():
                yield
        else:
            with messages.shown(self.folder, tuple(self.said)) as said:
                yield
            self.said += said

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def num_labels(self) -> int:
        return self.dataset.num_labels

    def __repr__(self) -> str:
        sizes = f"{len(self.dataset.train)} training queries, {len(self.dataset.test)} test queries"
        where = "in memory" if self.tables else self.source
        return f"Data({self.name}: {sizes}, {self.num_labels} labels; {where})"


def read(
    source: Source,
    *overrides: str,
    test: Source = None,
    labels: Source = None,
    name: str = "memory",
    quiet: bool = False,
    **keywords: Any,
) -> Data:
    """Read a data set: a name, a folder or a file in any layout that the command line reads; or rows.

    >>> rows = [("red car", ["car"]), ("green tree", ["tree", "plant"]), ("blue car", ["car"])] * 5
    >>> read(rows, test=rows[:3]).num_labels
    3

    Args:
        source: rows are a pandas DataFrame, a pyarrow Table, dicts, or pairs of a text and its labels. Their columns
            are those of a table file: `query` (or `title`, `text`) and `labels`, and whatever else a file may have.
        overrides: how it is read, as on the command line: `"reader.labels=tags"`.
        test: rows of test queries; without them, a share of `source` is held out.
        labels: rows of labels, with their `uid` and `title`; without them, the name of a label is its text.
        name: what rows from memory are called.
        quiet: show no notes and warnings.
        keywords: more overrides: `**{"reader.labels": "tags"}`.

    Raises:
        DataError: with everything that is wrong with the data.
        ConfigError: with everything that is wrong with the overrides.
    """
    given = Given.of(overrides, keywords)
    if strange := [word for word in given.words if not word.startswith(DATA_KEYS)]:
        reason, hint = "only data.* and reader keys can be set here", "such as reader.text=title+content"
        raise ConfigError(*(Problem(word, reason, hint) for word in strange))
    further = {"test": test, "labels": labels}
    if isinstance(source, str | os.PathLike):
        if beside := [key for key, rows in further.items() if rows is not None]:
            hint = "put their tables in the folder of the data, or give all of them as rows"
            raise ConfigError(*(Problem(f"{key}=", "goes with rows, not with a name or path", hint) for key in beside))
        return Data(os.fspath(source), given, quiet=quiet)
    folder = Path(tempfile.mkdtemp(prefix="xmclab-")).resolve() / name
    try:
        folder.mkdir()
        for table, rows in {"train": source, **further}.items():
            if rows is not None:
                _write(folder / f"{table}.jsonl", rows)
        return Data(str(folder), given, folder, quiet)
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


def _without_folder(folder: str, call: Callable[[], Result]) -> Result:
    """The result of a call, whose errors name tables from memory without their folder."""
    try:
        return call()
    except XmclabError as error:
        if not folder:
            raise
        texts = ([text.replace(folder, "") for text in (p.where, p.message, p.hint)] for p in error.problems)
        raise type(error)(*(Problem(*text) for text in texts)) from None


def _write(file: Path, rows: Source) -> None:
    """Write rows as JSON lines."""
    records = list(_records(rows, file.stem))
    keys = dict.fromkeys(key for record in records for key in record)
    with new_file(file, file.name) as stream:
        for record in records:
            stream.write(json.dumps({key: _plain(record.get(key)) for key in keys}, ensure_ascii=False) + "\n")


def _records(rows: Source, table: str) -> Iterator[Mapping[str, Any]]:
    """Every row as a record."""
    if hasattr(rows, "to_pylist"):  # pyarrow
        yield from rows.to_pylist()
    elif hasattr(rows, "to_dicts"):  # polars
        yield from rows.to_dicts()
    elif hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas
        yield from rows.rename(columns=str).to_dict("records")
    elif isinstance(rows, Iterable) and not isinstance(rows, Mapping | str | bytes):
        for number, row in enumerate(rows, start=1):
            yield _record(row, table, number)
    else:
        hint = "a path, a DataFrame, a pyarrow Table, dicts, or pairs of a text and its labels"
        raise DataError(Problem(table, f"{type(rows).__name__} objects cannot be read", hint))


def _record(row: Any, table: str, number: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return {str(key): value for key, value in row.items()}
    if isinstance(row, Sequence) and not isinstance(row, str) and len(row) == 2:
        text, labels = row
        if table == "labels":
            return {"uid": text, "title": labels}
        return {"query": text, "labels": [labels] if isinstance(labels, str | int) else labels}
    expected = "a name and a text" if table == "labels" else "a text and its labels"
    raise DataError(Problem(f"{table}, row {number}", f"neither a dict nor a pair of {expected}: {row!r:.60}"))


def _plain(value: Any) -> Any:
    """A cell as a JSON value; what has no such form is left for the reader to refuse."""
    if hasattr(value, "tolist"):  # of numpy
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return [_plain(each) for each in sorted(value, key=str)]
    missing = type(value).__name__ in ("NAType", "NaTType")  # of pandas
    return None if missing else {type(value).__name__: str(value)}
