"""The last step of every reader: columns of texts and pairs, checked against each other and made into a data set."""

from __future__ import annotations

import dataclasses
import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Side, Split, TextFields
from xmclab.data.readers.lines import SHOWN, Problems, excerpt, find_file, fingerprint
from xmclab.data.sparse import Block, Extent, narrow, read_pairs
from xmclab.data.texts import PackedTexts, number_of_distinct
from xmclab.system.limits import VARIABLE, limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("xmclab.data")

SORTED_TOGETHER = 65_536  # rows of a matrix: bounds the memory of sorting, not the result
TRAIN_FILTERS = (
    "filter_labels_train.txt",
    "trn_filter_labels.txt",
    "filter_labels_trn.txt",
    "train_filter_labels.txt",
)
TEST_FILTERS = (
    "filter_labels_test.txt",
    "tst_filter_labels.txt",
    "filter_labels_tst.txt",
    "test_filter_labels.txt",
)


@dataclass
class Texts:
    """The texts of queries or labels, with their names."""

    file: Path
    texts: PackedTexts = field(default_factory=PackedTexts)
    names: Sequence[str] = field(default_factory=PackedTexts)
    size: int | None = None  # how many there are, bad lines included; None if unknown
    has_content: bool = False
    lines: array[int] = field(default_factory=lambda: array("q"))  # line of each text in the file, if not row + 1
    cut: int = 0  # number of texts longer than the limit
    fields: TextFields = "title"  # what is read of a record
    lacking: array[int] = field(default_factory=lambda: array("q"))  # rows without the content that was asked for

    @property
    def sound(self) -> bool:
        """Whether all of them are valid."""
        return self.size == len(self.texts)

    def add(self, title: str, content: str) -> None:
        """Add the text of a record."""
        self.has_content |= bool(content)
        if lacks_content(content, self.fields):
            self.lacking.append(len(self.texts))
        self.append(choose(title, content, self.fields))

    def append(self, text: str) -> None:
        """Add a text, cut at the limit."""
        shown = within_limit(text)
        self.cut += shown is not text
        self.texts.append(shown)

    def extent(self, unit: str) -> Extent:
        """How many there are, as shown in messages."""
        return Extent() if self.size is None else Extent(self.size, f"{self.file.name} has {self.size} {unit}")

    def at(self, rows: NDArray[np.integer[Any]]) -> str:
        """The lines of the file that hold these rows."""
        return in_lines([self.lines[row] if self.lines else row + 1 for row in rows[: SHOWN + 1].tolist()])


@dataclass
class Targets:
    """The labels of queries, row after row."""

    columns: array[int] = field(default_factory=lambda: array("q"))  # label indices
    relevances: array[float] = field(default_factory=lambda: array("f"))
    lengths: array[int] = field(default_factory=lambda: array("q"))  # number of label indices of each row

    @classmethod
    def of(
        cls, columns: NDArray[np.integer[Any]], relevances: NDArray[np.float32], lengths: NDArray[np.integer[Any]]
    ) -> Targets:
        """Make them from numpy arrays."""
        columns, lengths = (np.asarray(some, dtype=np.int64) for some in (columns, lengths))
        return cls(array("q", columns.tobytes()), array("f", relevances.tobytes()), array("q", lengths.tobytes()))

    def add(self, columns: Sequence[int], relevances: Sequence[float]) -> None:
        """Append a row."""
        self.columns.extend(columns)
        self.relevances.extend(relevances)
        self.lengths.append(len(columns))

    def add_block(self, block: Block) -> None:
        """Append many rows."""
        self.columns.frombytes(block.columns_E.tobytes())
        self.relevances.frombytes(block.values_E.astype(np.float32).tobytes())
        self.lengths.frombytes(block.lengths_Q.tobytes())

    def gathered(self, rows: NDArray[np.int64], num_rows: int) -> Targets:
        """Group labels by row: entry i, in any order, belongs to row `rows[i]`."""
        order = np.argsort(rows, kind="stable")
        lengths = np.bincount(rows, minlength=num_rows)
        return Targets.of(np.asarray(self.columns)[order], np.asarray(self.relevances)[order], lengths)

    def repeated(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries of such rows that repeat an earlier one."""
        columns = np.asarray(self.columns)
        pairs = rows * (columns.max(initial=0) + 1) + columns
        return np.delete(np.arange(len(rows)), np.unique(pairs, return_index=True)[1])

    def matrix(self, num_labels: int) -> sp.csr_array:
        """A row per query; a repeated pair counts once, with its largest relevance.

        Sorts in place, to keep a single copy of the pairs: the targets cannot be used afterwards.
        """
        columns, relevances, lengths = (np.asarray(some) for some in (self.columns, self.relevances, self.lengths))
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        read = written = 0
        for row in range(0, len(lengths), SORTED_TOGETHER):
            some = lengths[row : row + SORTED_TOGETHER]
            rows = np.repeat(np.arange(len(some)), some)
            block = slice(read, read := read + len(rows))
            found = distinct(rows, columns[block], relevances[block], (len(some), num_labels))
            columns[written : written + found.nnz] = found.indices
            relevances[written : written + found.nnz] = found.data
            offsets[row + 1 : row + 1 + len(some)] = found.indptr[1:]
            offsets[row + 1 : row + 1 + len(some)] += written
            written += found.nnz
        return narrow(relevances[:written], columns[:written], offsets, (len(lengths), num_labels))


@dataclass
class Half:
    """The training or the test queries as read."""

    queries: Texts
    targets: Targets
    filter_names: tuple[str, ...]
    filter_file: Path | None = None
    filter_pairs: tuple[NDArray[np.int64], NDArray[np.int64]] = (np.empty(0, np.int64), np.empty(0, np.int64))
    pairs_file: Path | None = None  # where the targets are, if not beside the queries
    repeated_lines: Sequence[int] = ()  # its lines that repeat a pair

    def read_filter(self, folder: Path, labels: Texts, problems: Problems) -> None:
        """Read the pairs of the filter file, if there is one."""
        self.filter_file = file = find_file(folder, *self.filter_names)
        if file:
            self.filter_pairs = read_pairs(file, self.queries.extent("lines"), labels.extent("lines"), problems)

    def split(self, num_labels: int) -> Split:
        rows, columns = self.filter_pairs
        ones = np.ones(len(rows), dtype=np.float32)
        return Split(
            texts=self.queries.texts,
            names=self.queries.names,
            targets_NL=self.targets.matrix(num_labels),
            filter_NL=distinct(rows, columns, ones, (len(self.queries.texts), num_labels)),
        )


def distinct(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32], shape: tuple[int, int]
) -> sp.csr_array:
    """A sorted matrix without duplicates; a repeated pair keeps its largest value."""
    order = np.lexsort((-values, columns, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[first], minlength=shape[0]))])
    return narrow(values[first], columns[first], offsets, shape)


def join(title: str, content: str) -> str:
    """A title with its content; `content_of` is the inverse."""
    return f"{title} {content}" if title and content else title or content


def content_of(joined: str, title: str) -> str:
    """What `join` added to a title."""
    return joined[len(title) :].removeprefix(" " if title else "")


def choose(title: str, content: str, fields: TextFields) -> str:
    """The text of a record; the title stands in for a missing content."""
    if fields == "title+content":
        return join(title, content)
    return title if fields == "title" or lacks_content(content, fields) else content


def lacks_content(content: str, fields: TextFields) -> bool:
    """Whether the content alone is asked for, and there is none."""
    return fields == "content" and not content.strip()


def within_limit(text: str) -> str:
    """The text itself, or the beginning of one that is longer than the limit."""
    return text if len(text) <= limit("text") else text[: limit("text")]


def texts_were_cut(file: Path, cut: int) -> str:
    """A warning about texts that were longer than the limit."""
    return f"{file}: cut {cut:,} texts at {limit('text'):,} characters ({VARIABLE}=text=... changes that)"


def in_lines(lines: Sequence[int]) -> str:
    """The first few of some lines, as shown in messages."""
    return f"(line {', '.join(map(str, lines[:SHOWN]))}{', …' if len(lines) > SHOWN else ''})"


def check_text(value: str, key: str) -> None:
    """Raise ValueError if a text cannot be written as UTF-8."""
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{key!r} contains an unpaired surrogate: {excerpt(value[error.start :])}") from None


def assemble(
    folder: Path,
    labels: Texts,
    halves: Sequence[Half],
    problems: Problems,
    files: Sequence[Path | None],
    choices: Sequence[str] = (),
    expects_filters: bool = True,
) -> Dataset:
    """The data set, if everything is valid.

    Args:
        folder: where filter files are.
        halves: the training queries, and the test queries if there are any; or test queries alone (`as_test`).
        files: what was read, except the filter files, in a fixed order.
        choices: anything else that the result depends on.
        expects_filters: whether a missing filter file is worth a warning.

    Raises:
        DataError: with everything that is wrong.
    """
    for half in halves:
        half.read_filter(folder, labels, problems)
    for texts in (labels, *(half.queries for half in halves)):
        if texts.sound and not texts.texts:
            problems.file(texts.file, "has no lines")
    for side, texts in _sides(labels, halves):
        if texts.sound and 0 < len(texts.texts) == len(texts.lacking):
            problems.file(texts.file, f"no {side} has a 'content'", f"data.{side}_text=title reads the title")
    train = halves[0]
    if train.queries.texts and train.queries.sound and not len(train.targets.columns):
        problems.file(train.queries.file, "no query has a label")
    problems.raise_if_any()

    splits = [half.split(len(labels.texts)) for half in halves]
    for warning in _warnings(folder, labels, halves, splits, expects_filters):
        logger.warning("%s", warning)
    used = [*files, *(half.filter_file for half in halves)]
    if any(texts.cut for texts in (labels, *(half.queries for half in halves))):
        choices = (*choices, f"text={limit('text')}")
    fields = " / ".join(dict.fromkeys((train.queries.fields, labels.fields)))
    empty = Half(Texts(folder), Targets(), ()).split(len(labels.texts))
    return Dataset(
        name=folder.resolve().name if folder.is_dir() else folder.name.partition(".")[0],
        train=splits[0],
        test=splits[1] if len(splits) > 1 else empty,
        label_texts=labels.texts,
        label_names=labels.names,
        fingerprint=fingerprint([file for file in used if file], fields, *choices),
    )


def as_test(dataset: Dataset) -> Dataset:
    """What was assembled from test queries alone, as such."""
    return dataclasses.replace(dataset, test=dataset.train)


def _sides(labels: Texts, halves: Sequence[Half]) -> list[tuple[Side, Texts]]:
    """All texts of a data set, each with what they are."""
    return [("label", labels), *(("query", half.queries) for half in halves)]


def _warnings(
    folder: Path, labels: Texts, halves: Sequence[Half], splits: Sequence[Split], expects_filters: bool
) -> Iterator[str]:
    """Warnings about a usable data set."""
    for half, split in zip(halves, splits, strict=True):
        queries, labels_N = half.queries, np.asarray(half.targets.lengths)
        repeated_N = labels_N - np.diff(split.targets_NL.indptr)
        if repeated := int(repeated_N.sum()):
            lines = in_lines(half.repeated_lines) if half.pairs_file else queries.at(np.flatnonzero(repeated_N))
            yield f"{half.pairs_file or queries.file}: ignored {repeated} duplicate labels of a query {lines}"
        if len(without := np.flatnonzero(labels_N == 0)):
            yield f"{queries.file}: {len(without)} queries have no label {queries.at(without)}"
        if half.filter_file is None and expects_filters:
            names = " or ".join(half.filter_names[:2])
            effect = "reciprocal pairs are ranked and scored (fine unless queries are also labels)"
            yield f"{folder}: no {names}; {effect}"
    for side, texts in _sides(labels, halves):
        if texts.lacking:
            what = "labels" if side == "label" else "queries"
            where = texts.at(np.asarray(texts.lacking))
            yield f"{texts.file}: {len(texts.lacking)} {what} have no 'content'; reading the title instead {where}"
        if texts.cut:
            yield texts_were_cut(texts.file, texts.cut)
        empty = np.array([row for row, text in enumerate(texts.texts) if not text.strip()], dtype=np.int64)
        if len(empty):
            yield f"{texts.file}: {len(empty)} empty texts {texts.at(empty)}"
    if same := len(labels.texts) - number_of_distinct(labels.texts):
        hint = "data.merge_same_text=true keeps them from being each other's negatives"
        yield f"{labels.file}: {same} labels share their text with another label ({hint})"
    joined = [texts for _, texts in _sides(labels, halves) if texts.fields == "title+content"]
    if joined and not any(texts.has_content for texts in joined):
        yield f"{folder}: no line has a 'content'; reading titles only"
