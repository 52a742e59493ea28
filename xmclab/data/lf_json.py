"""Reader of the label-feature sets of the Extreme Classification Repository."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Reader, Split
from xmclab.data.lines import Problems, excerpt, find_file, fingerprint, read_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("xmclab.data")

TRAIN, TEST, LABELS = "trn.json", "tst.json", "lbl.json"
FILTERS = {
    TRAIN: ("filter_labels_train.txt", "trn_filter_labels.txt"),
    TEST: ("filter_labels_test.txt", "tst_filter_labels.txt"),
}
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass
class LabelFeatureJson(Reader):
    """Label-feature sets: `trn.json.gz`, `tst.json.gz` and `lbl.json.gz` (or not gzipped), a JSON object per line.

    Keys of a line: `title`, optionally `content` and `uid`; of queries also `target_ind` (label indices, from 0) and
    optionally `target_rel` (their relevances, 1 when missing). Filter files beside them: `filter_labels_train.txt` and
    `filter_labels_test.txt`, or `trn_filter_labels.txt` and `tst_filter_labels.txt`: a pair `query label` per line.
    """

    def matches(self, folder: Path) -> bool:
        return any(find_file(folder, name) for name in (TRAIN, TEST, LABELS))

    def read(self, folder: Path) -> Dataset:
        problems = Problems()
        labels = self._read_records(folder, LABELS, problems)
        train = self._read_records(folder, TRAIN, problems, labels)
        test = self._read_records(folder, TEST, problems, labels)
        filters = [_read_filter(folder, queries, labels, problems) for queries in (train, test)]
        if train.texts and train.sound and not train.columns:
            problems.file(train.file, "no query has a label")
        problems.raise_if_any()

        for warning in _warnings(labels, train, test, filters, self.text):
            logger.warning("%s: %s", folder, warning)
        used = [labels.file, train.file, test.file, *(pairs.file for pairs in filters if pairs.file)]
        return Dataset(
            name=folder.resolve().name,
            train=_split(train, filters[0], labels),
            test=_split(test, filters[1], labels),
            label_texts=labels.texts,
            label_names=labels.names,
            fingerprint=fingerprint(used, self.text),
        )

    def _read_records(self, folder: Path, name: str, problems: Problems, labels: _Records | None = None) -> _Records:
        """The lines of a file; with targets into `labels` when these are given."""
        file = find_file(folder, name)
        records = _Records(name, file or folder / f"{name}.gz")
        if file is None:
            problems.file(records.file, "missing", f"{name} would do as well")
        for number, line in read_lines(file, problems) if file else ():
            try:
                record = _parse(line)
                title, content = _text(record, "title"), _text(record, "content", default="")
                name = _text({"uid": str(record.get("uid", number - 1))}, "uid")
                indices, relevances = _targets(record, labels) if labels else ((), ())
            except ValueError as error:
                problems.line(records.file, number, str(error))
                continue
            records.has_content |= bool(content)
            records.texts.append(f"{title} {content}".strip() if self.text == "title+content" else title)
            records.names.append(name)
            records.columns.extend(indices)
            records.relevances.extend(relevances)
            records.lengths.append(len(indices))
        records.sound = not problems.about(records.file)
        if records.sound and not records.texts:
            problems.file(records.file, "no line in it")
        return records


@dataclass
class _Records:
    """The lines of a file, as columns."""

    name: str
    file: Path
    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    columns: array[int] = field(default_factory=lambda: array("q"))  # label indices of all lines, one after the other
    relevances: array[float] = field(default_factory=lambda: array("f"))
    lengths: list[int] = field(default_factory=list)  # label indices of each line
    sound: bool = False  # nothing was wrong: the number of lines can be relied on
    has_content: bool = False

    @property
    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """(row, column, relevance) of all targets."""
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return rows, np.array(self.columns, dtype=np.int64), np.array(self.relevances, dtype=np.float32)


@dataclass
class _FilterPairs:
    """The pairs of a filter file, if there is one."""

    file: Path | None
    rows: array[int] = field(default_factory=lambda: array("q"))
    columns: array[int] = field(default_factory=lambda: array("q"))


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"not JSON: {excerpt(line)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {excerpt(line)}")
    return record


def _text(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if value is None:
        raise ValueError(f"lacks {key!r}: {excerpt(json.dumps(record))}")
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is no text: {excerpt(json.dumps(value))}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{key!r} has half a surrogate pair: {excerpt(value[error.start :])}") from None
    return value


def _targets(record: dict[str, Any], labels: _Records) -> tuple[list[int], list[float]]:
    """Label indices and relevances of a query."""
    indices = record.get("target_ind")
    if not isinstance(indices, list):
        problem = "is no list" if "target_ind" in record else "is missing"
        raise ValueError(f"'target_ind' {problem}: {excerpt(json.dumps(record))}")
    relevances = record.get("target_rel", [1.0] * len(indices))
    if not isinstance(relevances, list) or len(relevances) != len(indices):
        raise ValueError(f"'target_rel' does not have the {len(indices)} values of 'target_ind'")
    for index in indices:
        if type(index) is not int:
            raise ValueError(f"label index {excerpt(json.dumps(index))} is no whole number")
        if labels.sound and not 0 <= index < len(labels.texts):
            size = f"{labels.file.name} has {len(labels.texts)} labels, from 0"
            raise ValueError(f"label index {index} is out of range: {size}")
    for relevance in relevances:
        if type(relevance) not in (int, float) or not SMALLEST <= relevance <= LARGEST:
            raise ValueError(f"relevance {excerpt(json.dumps(relevance))} is no positive number (of float32)")
    return indices, relevances


def _read_filter(folder: Path, queries: _Records, labels: _Records, problems: Problems) -> _FilterPairs:
    """The filter pairs that belong to some queries."""
    pairs = _FilterPairs(find_file(folder, *FILTERS[queries.name]))
    for number, line in read_lines(pairs.file, problems) if pairs.file else ():
        assert pairs.file is not None
        try:
            row, column = map(int, line.split())
        except ValueError:
            problems.line(pairs.file, number, f"not a pair `query label`: {excerpt(line)}")
            continue
        for index, records, kind in ((row, queries, "query"), (column, labels, "label")):
            if records.sound and not 0 <= index < len(records.texts):
                size = f"{records.file.name} has {len(records.texts)} lines, from 0"
                problems.line(pairs.file, number, f"{kind} {index} is out of range: {size}")
                break
        else:
            pairs.rows.append(row)
            pairs.columns.append(column)
    return pairs


def _split(queries: _Records, pairs: _FilterPairs, labels: _Records) -> Split:
    shape = (len(queries.texts), len(labels.texts))
    filter_rows, filter_columns = np.array(pairs.rows, dtype=np.int64), np.array(pairs.columns, dtype=np.int64)
    ones = np.ones(len(filter_rows), dtype=np.float32)
    return Split(
        texts=queries.texts,
        names=queries.names,
        targets_NL=_distinct(*queries.pairs, shape),
        filter_NL=_distinct(filter_rows, filter_columns, ones, shape),
    )


def _distinct(
    rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32], shape: tuple[int, int]
) -> sp.csr_array:
    """A sorted matrix without duplicates: of several values of one pair the largest stands."""
    order = np.lexsort((-values, columns, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows[first], minlength=shape[0]))])
    return sp.csr_array((values[first], columns[first], offsets), shape=shape)


def _warnings(
    labels: _Records, train: _Records, test: _Records, filters: list[_FilterPairs], text: str
) -> Iterator[str]:
    """What a user should know of a data set that can be used."""
    for records, pairs in zip((train, test), filters, strict=True):
        where = records.file.name
        rows, columns, _ = records.pairs
        repeated = len(rows) - len(np.unique(rows * len(labels.texts) + columns))
        if repeated:
            yield f"{where}: {repeated} duplicate labels of a query left out"
        if without := records.lengths.count(0):
            yield f"{where}: {without} queries have no label"
        if pairs.file is None:
            names = " or ".join(FILTERS[records.name])
            yield f"no {names}: reciprocal pairs, and queries that are labels themselves, are ranked and scored"
    for records in (labels, train, test):
        empty = [number for number, line in enumerate(records.texts) if not line.strip()]
        if empty:
            lines = ", ".join(str(row + 1) for row in empty[:5]) + ", …" * (len(empty) > 5)
            yield f"{records.file.name}: {len(empty)} empty texts (line {lines})"
    if same := len(labels.texts) - len(set(labels.texts)):
        yield f"{labels.file.name}: {same} labels have the text of another label"
    if text == "title+content" and not (labels.has_content or train.has_content or test.has_content):
        yield "no line has a 'content': titles alone are read"
