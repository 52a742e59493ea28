"""Rows from memory are read as the same table in a file is; errors say where."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

import xmclab as xl
from xmclab.errors import ConfigError, DataError
from xmclab.python.data import Data

Rows = list[tuple[str, list[str]]]


def same(a: Data, b: Data) -> bool:
    """Whether two data sets hold the same texts and pairs."""
    pairs = [(a.dataset.train, b.dataset.train), (a.dataset.test, b.dataset.test)]
    return list(a.dataset.label_texts) == list(b.dataset.label_texts) and all(
        list(x.texts) == list(y.texts) and (x.targets_NL != y.targets_NL).nnz == 0 for x, y in pairs
    )


@pytest.fixture
def table(tmp_path: Path, rows: Rows) -> Path:
    """The rows as a CSV file."""
    file = tmp_path / "mine.csv"
    file.write_text("query,labels\n" + "".join(f"{text},{'|'.join(labels)}\n" for text, labels in rows))
    return file


def test_a_path_is_read_as_the_command_reads_it(table: Path, rows: Rows) -> None:
    data = xl.read(table)
    assert (data.name, data.num_labels, data.source) == ("mine", 9, str(table))
    assert len(data.dataset.train) + len(data.dataset.test) == len(rows)
    assert "in memory" not in repr(data)
    assert len(xl.read(table, "reader.test_share=0.5").dataset.test) > len(data.dataset.test)
    assert len(xl.read(table, **{"reader.test_share": 0.5}).dataset.test) > len(data.dataset.test)


def test_queries_that_are_labels_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"q{row}", [f"q{row + 1}"]) for row in range(10)]
    data = xl.read(rows, test=[("q2", ["q5"]), ("other", ["q5"])])
    assert data.dataset.train.filter_NL.nnz == 9
    assert (
        "note: memory: 10 of 12 queries have the text of a label; 10 such pairs are left out" in capsys.readouterr().err
    )
    assert xl.read(rows, "data.same_text=keep", test=rows, quiet=True).dataset.train.filter_NL.nnz == 0
    assert capsys.readouterr().err == ""


def test_a_known_name_is_read() -> None:
    assert xl.read("tiny").name == "tiny"


def test_pairs_and_dicts_are_what_a_file_with_the_same_rows_is(table: Path, rows: Rows) -> None:
    pairs, dicts = xl.read(rows), xl.read({"title": text, "tags": set(labels)} for text, labels in rows)
    assert same(pairs, xl.read(table))
    assert list(dicts.dataset.train.texts) == list(pairs.dataset.train.texts)
    assert (
        repr(pairs) == f"Data(memory: {len(pairs.dataset.train)} training queries, {len(pairs.dataset.test)} "
        "test queries, 9 labels; in memory)"
    )


def test_test_rows_and_label_rows_are_tables_of_their_own(rows: Rows) -> None:
    texts = {"red": "a warm colour", **{name: name for _, labels in rows for name in labels if name != "red"}}
    data = xl.read(rows, test=rows[:3], labels=list(texts.items()), name="mine")
    assert (data.name, len(data.dataset.train), len(data.dataset.test)) == ("mine", len(rows), 3)
    assert data.dataset.label_texts[0] == "a warm colour"
    assert data.dataset.label_names[0] == "red"


def test_a_single_label_is_not_taken_apart() -> None:
    data = xl.read([("one", "red|blue"), ("two", 7), ("three", ["x"])], test=[("one", "x")])
    assert list(data.dataset.label_texts) == ["red|blue", "7", "x"]


def test_a_pyarrow_table_is_read(rows: Rows) -> None:
    made = pyarrow.table({"query": [text for text, _ in rows], "labels": [labels for _, labels in rows]})
    assert same(xl.read(made), xl.read(rows))


def test_a_frame_of_pandas_is_read(rows: Rows) -> None:
    frame = pandas.DataFrame({"query": [text for text, _ in rows], "labels": [labels for _, labels in rows]})
    frame["seen"] = pandas.Timestamp("2020-01-01")  # of no concern
    assert same(xl.read(frame), xl.read(rows))


def test_messages_about_rows_name_no_temporary_folder_and_come_once(
    rows: Rows, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = pandas.DataFrame({"query": [text for text, _ in rows], "labels": ["|".join(labels) for _, labels in rows]})
    assert xl.read(table, test=rows, quiet=True).num_labels == 9
    assert capfd.readouterr() == ("", "")
    data = xl.read(table, test=rows)
    said = "note: memory/train.jsonl: labels are separated by '|'"
    assert said in capfd.readouterr().err.splitlines()
    small = {"encoder.dim": 8, "head.de.dim": 8, "head.clf.dim": 8, "epochs": 1, "baseline": None}
    xl.train("unidec", data, out=tmp_path / "run", **small)
    err = capfd.readouterr().err
    assert "training queries" in err
    assert "labels are separated" not in err


class Frame:
    """What is used of a pandas DataFrame."""

    columns = ("query", "labels", "relevance")

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def rename(self, columns: Any) -> Frame:
        return Frame([{columns(key): value for key, value in row.items()} for row in self.rows])

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.rows


def test_cells_of_a_frame_may_be_arrays_numpy_numbers_and_missing(rows: Rows) -> None:
    made = [{"query": text, "labels": np.array(labels), "relevance": float("nan")} for text, labels in rows]
    data = xl.read(Frame([*made, {"query": "seven", "labels": np.int64(7), "relevance": float("nan")}]), test=rows)
    assert data.dataset.train.targets_NL.nnz == 2 * len(rows) + 1
    assert data.dataset.label_names[-1] == "7"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([("a", ["b"]), 3], r"^train, row 2: neither a dict nor a pair of a text and its labels: 3$"),
        ([{"texts": "a", "labels": ["b"]}], r"^memory/train.jsonl: no column for the queries: expected query or title"),
        ([(b"bytes", ["b"])], r"^memory/train.jsonl:1: 'query' is not text"),
        ([("a", [0.5])], r"^memory/train.jsonl:1: neither a name nor an integer: '0.5'"),
        (3, r"^train: int objects cannot be read \(a path, a DataFrame"),
        ("no/such.csv", r"^data=no/such.csv: no such folder or file"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(source: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        xl.read(source)


def test_only_how_data_is_read_can_be_set() -> None:
    with pytest.raises(ConfigError, match="epochs=3: only data"):
        xl.read("tiny", epochs=3)
    with pytest.raises(ConfigError, match="test=: goes with rows"):
        xl.read("tiny", test=[("a", ["b"])])


def test_the_temporary_tables_go_with_the_data(rows: Rows) -> None:
    data = xl.read(rows)
    assert data.tables is not None
    folder = data.tables
    assert json.loads((folder / "train.jsonl").read_text().splitlines()[0]) == {
        "query": rows[0][0],
        "labels": rows[0][1],
    }
    del data
    gc.collect()
    assert not folder.exists()
