"""Rankings as people and programs read them: tables, JSON lines, or the sparse text of the repository."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rich import box
from rich.table import Table

from xmclab.api import Ranking
from xmclab.runs.store import Labels
from xmclab.system.console import Console, plain
from xmclab.system.terminal import json_text

WIDTH = 120  # columns of a table that is not shown on a terminal


class Writer(ABC):
    """Writes the answers to `rows` queries, block by block."""

    def __init__(self, stream: IO[str], labels: Labels, rows: int) -> None:
        self.stream, self.labels, self.rows = stream, labels, rows
        self.done = 0

    def start(self) -> None:
        """What comes before all answers."""

    @abstractmethod
    def write_one(self, text: str, best: Sequence[tuple[int, float]]) -> None:
        """The answer to a query: (label, score), the best first."""

    def write(self, texts: Sequence[str], ranking: Ranking) -> None:
        """The answers to some queries."""
        for text, best in zip(texts, rows_of(ranking), strict=True):
            self.write_one(text, best)
            self.done += 1


def rows_of(ranking: Ranking) -> Iterator[list[tuple[int, float]]]:
    """(label, score) of each query; without padding."""
    for ids, scores in zip(ranking.ids_NK.tolist(), ranking.scores_NK.tolist(), strict=True):
        yield [(label, score) for label, score in zip(ids, scores, strict=True) if label >= 0]


class JsonLines(Writer):
    """A JSON object per query."""

    def write_one(self, text: str, best: Sequence[tuple[int, float]]) -> None:
        names, texts = self.labels.names, self.labels.texts
        labels = [{"label": id_, "name": names[id_], "text": texts[id_], "score": score} for id_, score in best]
        print(json_text({"row": self.done, "query": text, "labels": labels}, self.stream), file=self.stream)


class SparseText(Writer):
    """A line `label:score label:score ...` per query below a line `queries labels`, as the repository's files are."""

    def start(self) -> None:
        print(self.rows, len(self.labels), file=self.stream)

    def write_one(self, text: str, best: Sequence[tuple[int, float]]) -> None:
        print(" ".join(f"{label}:{score:.9g}" for label, score in best), file=self.stream)  # all digits of a float32


class Tables(Writer):
    """A table per query."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.console = Console(file=self.stream, width=None if self.stream.isatty() else WIDTH, highlight=False)
        self.named = any(name != text for name, text in zip(self.labels.names, self.labels.texts, strict=True))

    def write_one(self, text: str, best: Sequence[tuple[int, float]]) -> None:
        title = plain(text)
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


FORMATS: dict[str, type[Writer]] = {"table": Tables, "jsonl": JsonLines, "xmc": SparseText}
