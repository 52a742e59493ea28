"""Rankings as people and programs read them: tables, CSV, JSON, Parquet, or the sparse text of the repository.

A query has a row (from 0), its text, and the id that its file gives it, if that has ids. A label has its number, name,
text and score, the best first. `xmclab.serve.answers` reads all but tables and sparse text again.

json, jsonl, parquet    a record per query: {"row", "id", "query", "labels": [{"label", "name", "text", "score"}, ...]}
csv, tsv                a line per label: row, id, query, rank, label, name, text, score; a query without labels has
                        one line, in which what belongs to a label is empty
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from rich import box
from rich.table import Table

from xmclab.api import Ranking
from xmclab.errors import ConfigError, PluginError, Problem
from xmclab.runs.store import Labels
from xmclab.serve.texts import TextRecord
from xmclab.system.console import Console, plain
from xmclab.system.files import new_binary, new_file, refuse_existing
from xmclab.system.terminal import SURROGATES, json_text

WIDTH = 120  # columns of a table that is not shown on a terminal
PACKED = ".gz"
SUFFIXES = {".txt": "xmc", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
SUFFIXES[".parquet"] = "parquet"


@dataclass(frozen=True)
class Shape:
    """What is answered."""

    labels: Labels
    rows: int  # queries
    ids: bool = False  # whether the queries have ids


class Writer(ABC):
    """Writes the answers to queries, block by block."""

    binary: ClassVar[bool] = False  # whether it writes bytes

    def __init__(self, stream: IO[Any], shape: Shape) -> None:
        self.stream, self.shape, self.labels = stream, shape, shape.labels
        self.done = 0

    def start(self) -> None:
        """What comes before all answers."""

    @abstractmethod
    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        """The answer to a query: (label, score), the best first."""

    def write(self, queries: Sequence[TextRecord], ranking: Ranking) -> None:
        """The answers to some queries."""
        for query, best in zip(queries, rows_of(ranking), strict=True):
            self.write_one(query, best)
            self.done += 1

    def end(self) -> None:
        """What comes after all answers."""

    def abandon(self) -> None:
        """Let go of everything, whether or not it is complete."""


def rows_of(ranking: Ranking) -> Iterator[list[tuple[int, float]]]:
    """(label, score) of each query; without padding."""
    for ids, scores in zip(ranking.ids_NK.tolist(), ranking.scores_NK.tolist(), strict=True):
        yield [(label, score) for label, score in zip(ids, scores, strict=True) if label >= 0]


class JsonLines(Writer):
    """A JSON object per query."""

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        print(self._record(query, best), file=self.stream)

    def _record(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> str:
        names, texts = self.labels.names, self.labels.texts
        labels = [{"label": id_, "name": names[id_], "text": texts[id_], "score": score} for id_, score in best]
        known = {"id": query.id} if self.shape.ids else {}
        return json_text({"row": self.done, **known, "query": query.text, "labels": labels}, self.stream)


class JsonArray(JsonLines):
    """An array of such objects."""

    def start(self) -> None:
        self.stream.write("[")

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        self.stream.write(f"{',' if self.done else ''}\n{self._record(query, best)}")

    def end(self) -> None:
        self.stream.write("\n]\n")


class SparseText(Writer):
    """A line `label:score label:score ...` per query below a line `queries labels`, as the repository's files are."""

    def start(self) -> None:
        print(self.shape.rows, len(self.labels), file=self.stream)

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        print(" ".join(f"{label}:{score:.9g}" for label, score in best), file=self.stream)  # all digits of a float32


class Csv(Writer):
    """A line per label, below the names of the columns."""

    delimiter = ","

    def start(self) -> None:
        # With this end of lines, the module puts any cell with a line break of any kind in quotes.
        self._rows = csv.writer(_Lines(self.stream), delimiter=self.delimiter, lineterminator=_Lines.END)
        id_ = ["id"] if self.shape.ids else []
        self._rows.writerow(["row", *id_, "query", "rank", "label", "name", "text", "score"])

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        names, texts = self.labels.names, self.labels.texts
        asked = [self.done, *([_encodable(query.id or "")] if self.shape.ids else []), _encodable(query.text)]
        for rank, (label, score) in enumerate(best, start=1):
            cells = _encodable(names[label]), _encodable(texts[label])
            self._rows.writerow([*asked, rank, label, *cells, f"{score:.9g}"])
        if not best:
            self._rows.writerow([*asked, *[""] * 5])


class Tsv(Csv):
    """The same between tabs."""

    delimiter = "\t"


class _Lines:
    """Ends lines as everything else that is written does."""

    END = "\r\n"

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, line: str) -> None:
        self.stream.write(f"{line.removesuffix(self.END)}\n")


class Parquet(Writer):
    """A row per query; each block is a row group."""

    binary = True
    _file: Any = None

    def start(self) -> None:
        try:
            self._arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
        except ImportError as error:
            hint = 'pip install "xmclab[parquet]", or write JSON lines'
            raise PluginError(Problem("Parquet", f"pyarrow cannot be imported: {error}", hint)) from error
        arrow = self._arrow
        label = {"label": arrow.int64(), "name": arrow.string(), "text": arrow.string(), "score": arrow.float32()}
        self._label = arrow.struct(list(label.items()))
        id_ = [("id", arrow.string())] if self.shape.ids else []
        columns = [("row", arrow.int64()), *id_, ("query", arrow.string()), ("labels", arrow.list_(self._label))]
        self._schema = arrow.schema(columns)
        self._file = parquet.ParquetWriter(self.stream, self._schema)

    def write(self, queries: Sequence[TextRecord], ranking: Ranking) -> None:
        arrow, real_NK = self._arrow, ranking.ids_NK >= 0
        ids_E = ranking.ids_NK[real_NK]
        names, texts = (
            [_encodable(some[id_]) for id_ in ids_E.tolist()] for some in (self.labels.names, self.labels.texts)
        )
        cells = [arrow.array(ids_E), arrow.array(names, arrow.string()), arrow.array(texts, arrow.string())]
        cells.append(arrow.array(ranking.scores_NK[real_NK].astype(np.float32)))
        labels = arrow.StructArray.from_arrays(cells, fields=list(self._label))
        offsets = np.concatenate([[0], np.cumsum(real_NK.sum(axis=1))]).astype(np.int32)
        columns = [arrow.array(range(self.done, self.done + len(queries)), arrow.int64())]
        if self.shape.ids:
            columns.append(arrow.array([_encodable(query.id or "") for query in queries], arrow.string()))
        columns.append(arrow.array([_encodable(query.text) for query in queries], arrow.string()))
        columns.append(arrow.ListArray.from_arrays(arrow.array(offsets), labels))
        self._file.write_table(arrow.table(columns, schema=self._schema))
        self.done += len(queries)

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        ids, scores = ([pair[place] for pair in best] for place in (0, 1))
        self.write([query], Ranking(np.array([ids], np.int64), np.array([scores], np.float32)))

    def end(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(Exception):  # the one that matters is on its way
                self._file.close()


class Tables(Writer):
    """A table per query."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.console = Console(file=self.stream, width=None if self.stream.isatty() else WIDTH, highlight=False)
        self.named = any(name != text for name, text in zip(self.labels.names, self.labels.texts, strict=True))

    def write_one(self, query: TextRecord, best: Sequence[tuple[int, float]]) -> None:
        title = plain(query.text)
        if not best:
            self.console.print(f"[italic]{title}[/italic]\nno labels\n")
            return
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column("score", justify="right")
        table.add_column("label", justify="right")
        for title in ("name", "text") if self.named else ("text",):
            table.add_column(title, overflow="fold")
        for label, score in best:
            cells = [f"{score:.4f}", str(label)]
            cells += [plain(self.labels.names[label])] if self.named else []
            table.add_row(*cells, plain(self.labels.texts[label]))
        self.console.print(table)


def _encodable(text: str) -> str:
    """The text without lone surrogates, which only JSON can write."""
    return SURROGATES.sub("\ufffd", text)


FORMATS: dict[str, type[Writer]] = {
    "table": Tables,
    "jsonl": JsonLines,
    "json": JsonArray,
    "csv": Csv,
    "tsv": Tsv,
    "parquet": Parquet,
    "xmc": SparseText,
}


def format_of(out: Path) -> str:
    """The format that the name of a file asks for; tables if it has no suffix.

    Raises:
        ConfigError: the suffix is not that of a format.
    """
    packed = out.name.endswith(PACKED)
    suffix = Path(out.name.removesuffix(PACKED)).suffix.lower()
    found = SUFFIXES.get(suffix) if suffix else "table"
    if found is None or (packed and FORMATS[found].binary):
        reason = "Parquet is compressed already" if found else "the name does not say which format to write"
        hint = f"end it in {', '.join(SUFFIXES)} or one of these with {PACKED}, or choose one with --format"
        raise ConfigError(Problem(f"--out {out}", reason, "leave out .gz" if found else hint))
    return found


@contextlib.contextmanager
def new_answers(out: Path, form: str, shape: Shape, overwrite: bool = False) -> Iterator[Writer]:
    """A writer into a file that appears only if the block succeeds.

    Raises:
        StorageError: there is such a file, or it cannot be written.
    """
    where = f"--out {out}"
    if not overwrite:
        refuse_existing(out, where)
    with contextlib.ExitStack() as stack:
        stream: IO[Any]
        if out.name.endswith(PACKED) and not FORMATS[form].binary:
            raw = stack.enter_context(new_binary(out, where))
            packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
            stream = stack.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline="\n"))
        else:
            stream = stack.enter_context((new_binary if FORMATS[form].binary else new_file)(out, where))
        yield FORMATS[form](stream, shape)
