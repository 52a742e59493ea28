"""Writing data sets: a folder that is complete or absent, in the layouts that the readers read."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data.readers.columns import content_of, logger
from xmclab.errors import DataError, Problem


@dataclass(frozen=True)
class Contents:
    """The contents that belong to the titles of a data set, empty where there is none."""

    train: Sequence[str]
    test: Sequence[str]
    labels: Sequence[str]

    def __bool__(self) -> bool:
        return any(any(texts) for texts in (self.train, self.test, self.labels))


NO_CONTENTS = Contents((), (), ())  # for layouts of one text, which includes or omits the contents


@contextlib.contextmanager
def text_file(file: Path) -> Iterator[IO[str]]:
    """A text file, gzipped if its name says so; the same text gives the same bytes."""
    with contextlib.ExitStack() as stack:
        stream: Any = stack.enter_context(file.open("wb"))
        if file.suffix == ".gz":
            stream = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=5, fileobj=stream, mtime=0))
            stream = stack.enter_context(io.BufferedWriter(stream, 1 << 20))
        yield stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))


def write_lf_json(folder: Path, data: Dataset, contents: Contents) -> None:
    """Label-feature JSON: it holds everything that a data set has."""
    for name, split, texts in (("trn", data.train, contents.train), ("tst", data.test, contents.test)):
        with text_file(folder / f"{name}.json.gz") as stream:
            for row, record in enumerate(_records(split.names, split.texts, texts)):
                columns, relevances = _row(split.targets_NL, row)
                targets = {"target_ind": columns} | ({"target_rel": relevances} if relevances else {})
                stream.write(f"{json.dumps(record | targets, ensure_ascii=False)}\n")
    with text_file(folder / "lbl.json.gz") as stream:
        for record in _records(data.label_names, data.label_texts, contents.labels):
            stream.write(f"{json.dumps(record, ensure_ascii=False)}\n")
    _write_filters(folder, data, "filter_labels_train.txt", "filter_labels_test.txt")


def write_table(folder: Path, data: Dataset, contents: Contents) -> None:
    """Tables of JSON lines, with label names in place of indices: they hold everything too."""
    names = _unique_names(data.label_names)
    for name, split, texts in (("train", data.train, contents.train), ("test", data.test, contents.test)):
        with text_file(folder / f"{name}.jsonl") as stream:
            for row, record in enumerate(_records(split.names, split.texts, texts)):
                columns, relevances = _row(split.targets_NL, row)
                labels: dict[str, Any] = {"labels": [names[column] for column in columns]}
                labels |= {"relevances": relevances} if relevances else {}
                stream.write(f"{json.dumps(record | labels, ensure_ascii=False)}\n")
    with text_file(folder / "labels.jsonl") as stream:
        for record in _records(names, data.label_texts, contents.labels):
            stream.write(f"{json.dumps(record, ensure_ascii=False)}\n")
    _write_filters(folder, data, "filter_labels_train.txt", "filter_labels_test.txt")


def write_raw_text(folder: Path, data: Dataset, contents: Contents) -> None:
    """Raw texts with sparse label files."""
    _warn_of_loss(data, contents)
    _write_texts(folder, data, "trn_X.txt", "tst_X.txt", "Y.txt")
    for name, split in (("trn", data.train), ("tst", data.test)):
        with text_file(folder / f"{name}_X_Y.txt") as stream:
            stream.write(f"{len(split)} {data.num_labels}\n")
            for row in range(len(split)):
                columns, relevances = _row(split.targets_NL, row)
                pairs = zip(columns, relevances or [1] * len(columns), strict=True)
                stream.write(" ".join(f"{column}:{relevance}" for column, relevance in pairs) + "\n")
    _write_filters(folder, data, "trn_filter_labels.txt", "tst_filter_labels.txt")


def write_dexml(folder: Path, data: Dataset, contents: Contents) -> None:
    """DEXML's layout."""
    _warn_of_loss(data, contents)
    (folder / "raw").mkdir()
    _write_texts(folder / "raw", data, "trn_X.txt", "tst_X.txt", "Y.txt")
    _write_matrices(folder, data)
    _write_filters(folder, data, "filter_labels_train.txt", "filter_labels_test.txt")


def write_pecos(folder: Path, data: Dataset, contents: Contents) -> None:
    """PECOS's layout."""
    _warn_of_loss(data, contents)
    _write_texts(folder, data, "X.trn.txt", "X.tst.txt", "output-items.txt")
    _write_matrices(folder, data)
    _write_filters(folder, data, "filter_labels_train.txt", "filter_labels_test.txt")


WRITERS: dict[str, Callable[[Path, Dataset, Contents], None]] = {
    "lf_json": write_lf_json,
    "raw_text": write_raw_text,
    "dexml": write_dexml,
    "pecos": write_pecos,
    "table": write_table,
}
HOLD_CONTENTS = ("lf_json", "table")  # layouts that keep titles and contents apart


def _records(names: Iterable[str], titles: Iterable[str], contents: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name, title, content in zip(names, titles, contents, strict=True):
        yield {"uid": name, "title": title} | ({"content": content} if content else {})


def _row(matrix: sp.csr_array, row: int) -> tuple[list[int], list[float]]:
    """Columns and values of a row; no values if all are 1. They are as short as float32 allows."""
    entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
    values = matrix.data[entries]
    return matrix.indices[entries].tolist(), [] if (values == 1).all() else [float(str(value)) for value in values]


def _unique_names(names: Sequence[str]) -> Sequence[str]:
    """The names if they identify the labels, else numbers."""
    if len(set(names)) == len(names) and all(name and name == name.strip() for name in names):
        return names
    logger.warning("some label names are empty or duplicated; numbering the labels instead")
    return [str(number) for number in range(len(names))]


def _write_texts(folder: Path, data: Dataset, *names: str) -> None:
    for name, texts in zip(names, (data.train.texts, data.test.texts, data.label_texts), strict=True):
        with text_file(folder / name) as stream:
            for row, text in enumerate(texts):
                if "\n" in text or text.endswith("\r"):
                    problem = (
                        f"the text of row {row} contains a line break, which a layout with a text per line cannot store"
                    )
                    raise DataError(Problem(name, problem, "use --to lf_json or --to table"))
                stream.write(f"{text}\n")


def _write_matrices(folder: Path, data: Dataset) -> None:
    for name, split in (("Y.trn.npz", data.train), ("Y.tst.npz", data.test)):
        sp.save_npz(folder / name, sp.csr_matrix(split.targets_NL))


def _write_filters(folder: Path, data: Dataset, train: str, test: str) -> None:
    """The filter pairs; no file if there is none."""
    for name, split in ((train, data.train), (test, data.test)):
        if split.filter_NL.nnz:
            pairs = np.stack(split.filter_NL.nonzero(), axis=1)
            with text_file(folder / name) as stream:
                stream.writelines(f"{row} {column}\n" for row, column in pairs.tolist())


def _warn_of_loss(data: Dataset, contents: Contents) -> None:
    """Warn about what a text per line cannot store."""
    if contents:
        logger.warning("contents are dropped: the layout has one text (reader.text=title+content writes both as one)")
    if list(data.label_names) != list(data.label_texts):
        logger.warning("label names are dropped: the layout stores only texts")
    if any(name != str(row) for split in (data.train, data.test) for row, name in enumerate(split.names)):
        logger.warning("query names are dropped: the layout stores only texts")


def with_contents(read: Callable[[Literal["title", "title+content"]], Dataset]) -> tuple[Dataset, Contents]:
    """A data set by its titles, and the contents that belong to them.

    Args:
        read: gives the data set for `"title"` and for `"title+content"`.
    """
    titles, joined = read("title"), read("title+content")
    pairs = ((joined.train, titles.train), (joined.test, titles.test))
    train, test = (_contents(long.texts, short.texts) for long, short in pairs)
    return titles, Contents(train, test, _contents(joined.label_texts, titles.label_texts))


def _contents(joined: Sequence[str], titles: Sequence[str]) -> list[str]:
    return [content_of(long, title) for long, title in zip(joined, titles, strict=True)]


def pooled(splits: Sequence[Split]) -> Split:
    """All queries of several parts, one after the other."""
    return Split(
        texts=[text for split in splits for text in split.texts],
        names=[name for split in splits for name in split.names],
        targets_NL=sp.csr_array(sp.vstack([split.targets_NL for split in splits])),
        filter_NL=sp.csr_array(sp.vstack([split.filter_NL for split in splits])),
    )
