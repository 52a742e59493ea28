"""Tables of one's own: every format and form of labels, and what users are told about bad rows."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from xmclab.api import Dataset
from xmclab.data.readers.table import Table
from xmclab.errors import DataError, PluginError

ROWS = [("red apple", ["fruit", "red"]), ("bun", ["bread"]), ("brie", ["cheese, soft", "fruit"]), ("stone", [])]
NAMES = ["fruit", "red", "bread", "cheese, soft"]
TARGETS = [[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]]


def write_csv(file: Path, header: str, *lines: str) -> Path:
    file.write_text("\n".join([header, *lines, ""]))
    return file


def write_parquet(file: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file


def all_queries(data: Dataset) -> dict[str, list[float]]:
    """text -> row of targets, of both halves."""
    halves = (data.train, data.test)
    return {
        text: row for half in halves for text, row in zip(half.texts, half.targets_NL.toarray().tolist(), strict=True)
    }


def read(path: Path, **options: Any) -> Dataset:
    assert Table().matches(path)
    return Table(**options).read(path)


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **options)
    assert caught.value.exit_code == 3
    return str(caught.value)


def make(folder: Path, form: str) -> Path:
    """The same table in different forms."""
    quoted = [f'"{text}","{"|".join(labels)}"' for text, labels in ROWS]
    lists = [f"{text}\t{json.dumps(labels)}" for text, labels in ROWS]
    python = [f'{text},"{labels}"' for text, labels in ROWS]
    records = [json.dumps({"query": text, "labels": labels}) for text, labels in ROWS]
    match form:
        case "csv":
            return write_csv(folder / "own.csv", "query,labels", *quoted)
        case "csv.gz":
            file = write_csv(folder / "own.csv", "query,labels", *quoted)
            (folder / "own.csv.gz").write_bytes(gzip.compress(file.read_bytes()))
            return folder / "own.csv.gz"
        case "csv of python lists":
            return write_csv(folder / "own.csv", "query,labels", *python)
        case "tsv of json lists":
            return write_csv(folder / "own.tsv", "Text\tTAGS", *lists)
        case "jsonl":
            return write_csv(folder / "own.jsonl", *records)
        case "jsonl of strings":
            pairs = [json.dumps({"labels": "; ".join(labels), "title": text}) for text, labels in ROWS]
            return write_csv(folder / "own.ndjson", *pairs)
        case "parquet":
            texts, labels = zip(*ROWS, strict=True)
            return write_parquet(folder / "own.parquet", text=list(texts), labels=list(labels), other=[1] * 4)
    raise AssertionError(form)


FORMS = ["csv", "csv.gz", "csv of python lists", "tsv of json lists", "jsonl", "jsonl of strings", "parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same(tmp_path: Path, form: str) -> None:
    data = read(make(tmp_path, form), test_share=0.25)
    assert (data.name, list(data.label_names), list(data.label_texts)) == ("own", NAMES, NAMES)
    assert all_queries(data) == dict(zip((text for text, _ in ROWS), TARGETS, strict=True))
    assert (len(data.train), len(data.test)) == (3, 1)


def test_the_held_out_queries_do_not_depend_on_the_order(tmp_path: Path) -> None:
    lines = [f"text {number},label {number % 7}" for number in range(100)]
    forward = read(write_csv(tmp_path / "a.csv", "query,labels", *lines))
    backward = read(write_csv(tmp_path / "b.csv", "query,labels", *reversed(lines)))
    assert len(forward.test) == 10
    assert set(forward.test.texts) == set(backward.test.texts)


def test_the_held_out_queries_do_not_depend_on_the_text(tmp_path: Path) -> None:
    lines = [f"text {number},content {number % 3},label" for number in range(20)]
    file = write_csv(tmp_path / "a.csv", "query,content,labels", *lines)
    long = [text.partition(" content")[0] for text in read(file, text="title+content").test.texts]
    assert long == list(read(file).test.texts)


def test_a_test_table_is_taken_as_it_is(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "query,labels", "red,a", "blue,b")
    write_csv(tmp_path / "test.tsv", "query\tlabels", "green\tb|c")
    data = read(tmp_path)
    assert (list(data.train.texts), list(data.test.texts)) == (["red", "blue"], ["green"])
    assert list(data.label_names) == ["a", "b", "c"]  # c is a label without training queries
    np.testing.assert_array_equal(data.test.targets_NL.toarray(), [[0, 1, 1]])


def test_a_label_table_gives_texts_order_and_all_labels(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "uid,title,content,labels", "q1,red,a colour,7|9", "q2,blue,,9")
    write_csv(tmp_path / "test.csv", "uid,title,content,labels", "q3,green,,7")
    write_csv(tmp_path / "labels.csv", "id,title,content", "9,cold,as ice", "8,lukewarm,", "7,warm,")
    data = read(tmp_path, text="title+content")
    assert (list(data.label_names), list(data.label_texts)) == (["9", "8", "7"], ["cold as ice", "lukewarm", "warm"])
    assert (list(data.train.names), list(data.train.texts)) == (["q1", "q2"], ["red a colour", "blue"])
    np.testing.assert_array_equal(data.train.targets_NL.toarray(), [[1, 0, 1], [1, 0, 0]])
    assert list(read(tmp_path).label_texts) == ["cold", "lukewarm", "warm"]
    data = read(tmp_path, label_text="content", query_text="title")
    assert (list(data.label_texts), list(data.train.texts)) == (["as ice", "lukewarm", "warm"], ["red", "blue"])


def test_contents_of_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_csv(tmp_path / "own.csv", "query,body,labels", "red,a colour,warm", "blue,,cold", "grey,a mood,cold")
    data = read(file, query_text="content")
    assert sorted([*data.train.texts, *data.test.texts]) == ["a colour", "a mood", "blue"]
    assert list(data.label_texts) == ["warm", "cold"]
    note = f"{file}: 1 queries have no 'content'; reading the title instead (line 3)"
    assert note in [record.getMessage() for record in caplog.records]
    with pytest.raises(DataError, match=r"own\.csv: no label has a 'content' \(data\.label_text=title reads"):
        read(file, text="content")
    bare = write_csv(tmp_path / "bare.csv", "query,labels", "red,warm", "blue,cold")
    with pytest.raises(DataError, match=r"bare\.csv: no query has a 'content'"):
        read(bare, query_text="content")


def test_a_label_table_of_names_alone(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "query,labels", "red,warm", "blue,cold")
    write_csv(tmp_path / "test.csv", "query,labels", "green,cold")
    write_csv(tmp_path / "labels.csv", "name", "cold", "warm")
    data = read(tmp_path)
    assert list(data.label_names) == list(data.label_texts) == ["cold", "warm"]


def test_numbers_as_labels_want_a_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path / "train.parquet", text=["red", "blue"], labels=[[7, 9], [9]])
    write_parquet(tmp_path / "test.parquet", text=["green"], labels=[[7]])
    assert list(read(tmp_path).label_names) == ["7", "9"]
    assert any("labels are numbers" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("relevance", [False, True])
def test_pairs_in_a_table_of_their_own(tmp_path: Path, relevance: bool) -> None:
    write_csv(tmp_path / "train.csv", "id,query", "1,red", "2,blue", "3,grey")
    write_csv(tmp_path / "test.csv", "id,query", "x,green")
    pairs = ["2,cold,0.5", "x,cold,2", "1,warm,1", "2,wet,1"]
    if relevance:
        write_csv(tmp_path / "pairs.csv", "query_id,label,relevance", *pairs)
    else:
        write_csv(tmp_path / "pairs.csv", "query_id,label", *(pair.rpartition(",")[0] for pair in pairs))
    data = read(tmp_path)
    assert list(data.label_names) == ["cold", "warm", "wet"]
    expected = np.float32([[0, 1, 0], [0.5, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(data.train.targets_NL.toarray(), expected if relevance else expected > 0)
    np.testing.assert_array_equal(data.test.targets_NL.toarray(), [[2 if relevance else 1, 0, 0]])


def test_relevances(tmp_path: Path) -> None:
    records = [{"query": "red", "labels": ["a", "b"], "relevances": [1, 0.25]}, {"query": "blue", "labels": ["b"]}]
    write_csv(tmp_path / "train.jsonl", *map(json.dumps, records))
    write_csv(tmp_path / "test.csv", "query,labels,relevances", "green,b|a,0.5|2")
    data = read(tmp_path)
    np.testing.assert_array_equal(data.train.targets_NL.toarray(), [[1, 0.25], [0, 1]])
    np.testing.assert_array_equal(data.test.targets_NL.toarray(), [[2, 0.5]])


def test_chosen_columns_and_separator(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "title,query,labels,topics", 'no,red,x,"a, b + c"')
    write_csv(tmp_path / "test.csv", "title,query,labels,topics", "no,blue,x,c")
    data = read(tmp_path, labels="topics", separator="+")
    assert (list(data.train.texts), list(data.label_names)) == (["red"], ["a, b", "c"])
    assert list(read(tmp_path, query="title").train.texts) == ["no"]


@pytest.mark.parametrize(
    "lines",
    [(",query,labels", "0,red,a|b", "1,blue,b"), ("query,labels,", "red,a|b,", "blue,b,")],
    ids=["the index of a data frame", "a comma at the end"],
)
def test_a_column_without_a_name_is_ignored(tmp_path: Path, lines: tuple[str, ...]) -> None:
    data = read(write_csv(tmp_path / "own.csv", *lines), test_share=0.5)
    assert (all_queries(data), list(data.label_names)) == ({"red": [1, 1], "blue": [0, 1]}, ["a", "b"])
    message = error_of(write_csv(tmp_path / "own.csv", ",frage,tags", "0,red,a"))
    assert "no column for the queries: expected query or title or text (columns: 'frage', 'tags';" in message


def test_cells_over_several_lines_long_cells_and_a_byte_order_mark(tmp_path: Path) -> None:
    long = "word " * 200_000
    content = f'query,labels\r\n"two\r\nlines\r\n\r\nand ""quotes""",a\r\n{long},b\r\n\r\n'
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbf" + content.encode())
    write_csv(tmp_path / "test.csv", "query,labels", "x,a")
    assert list(read(tmp_path).train.texts) == ['two\r\nlines\r\n\r\nand "quotes"', long]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("red,a,b", "3 cells where the header has 2: put cells that contain a comma in double quotes"),
        ("red", "1 cells where the header has 2: an empty cell still needs its comma"),
        ('"red"x,a', "malformed row: ',' expected after '\"'"),
        ('red,"[a"', None),
        ('red,"[a]"', "not a list: '[a]'"),
        ('red,"[1.5]"', "neither a name nor an integer: '1.5'"),
        ('red,"open', "malformed row: unexpected end of data"),
    ],
)
def test_bad_rows_of_csv(tmp_path: Path, line: str, message: str | None) -> None:
    write_csv(tmp_path / "train.csv", "query,labels", "ok,a", line)
    write_csv(tmp_path / "test.csv", "query,labels", "x,a")
    if message is None:
        assert list(read(tmp_path).label_names) == ["a", "[a"]
    else:
        assert f"{tmp_path / 'train.csv'}:3: {message}" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON: '{'"),
        ("[]", "not a JSON object"),
        ('{"labels": ["a"]}', "lacks 'query'"),
        ('{"query": 3, "labels": ["a"]}', "'query' is not text: '3'"),
        ('{"query": "\\ud800", "labels": ["a"]}', "'query' contains an unpaired surrogate"),
        ('{"query": "q", "labels": [null]}', "neither a name nor an integer: 'None'"),
        ('{"query": "q", "labels": [true]}', "neither a name nor an integer: 'True'"),
        ('{"query": "q", "labels": ["a"], "relevances": [1, 2]}', "2 relevances for 1 labels"),
        ('{"query": "q", "labels": ["a"], "relevances": ["x"]}', "relevances are not numbers"),
        ('{"query": "q", "labels": ["a"], "relevances": [0]}', "relevance 0.0 is not a positive float32 number"),
        ("", "blank line"),
    ],
)
def test_bad_rows_of_json_lines(tmp_path: Path, line: str, message: str) -> None:
    good = json.dumps({"query": "ok", "labels": ["a"], "relevances": [1]})
    write_csv(tmp_path / "train.jsonl", good, line, good)
    write_csv(tmp_path / "test.jsonl", good)
    assert f"{tmp_path / 'train.jsonl'}:2: {message}" in error_of(tmp_path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "own.csv", "frage,antwort", "red,a")
    message = error_of(file)
    assert "no column for the queries: expected query or title or text (columns: 'frage', 'antwort'" in message
    assert "; choose one with reader.query=NAME)" in message
    assert "no column for the labels: expected labels or label or targets or tags" in message
    assert "no column for the labels: expected b (" in error_of(file, query="frage", labels="b")


@pytest.mark.parametrize("sign", [";", "\t"])
def test_another_sign_between_the_cells(tmp_path: Path, sign: str) -> None:
    file = write_csv(tmp_path / "own.csv", f"query{sign}labels", f"red{sign}a,b", f"blue{sign}c")
    hint = "save the table with commas, or with tabs as .tsv"
    assert error_of(file) == f"{file}: cells seem to be separated by {sign!r}, not by commas ({hint})"


@pytest.mark.parametrize("name", ["own.csv", "own.tsv", "own.jsonl"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert "no column for the queries: expected query or title or text (no header" in error_of(tmp_path / name)


def test_a_header_alone(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "own.csv", "query,labels")
    assert error_of(file) == f"{file}: has no lines"


def test_no_labels_at_all(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "own.csv", "query,labels", "red,", "blue,")
    assert error_of(file) == f"{file}: no query has a label"


def test_one_query_is_too_few_to_hold_one_out(tmp_path: Path) -> None:
    message = error_of(write_csv(tmp_path / "own.csv", "query,labels", "red,a"))
    assert "cannot hold out test queries from 1 queries" in message


def test_unknown_labels_and_queries(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "id,query", "1,red", "2,blue")
    write_csv(tmp_path / "test.csv", "id,query", "3,green")
    write_csv(tmp_path / "labels.csv", "name", "cold", "cold", "warm")
    assert f"{tmp_path / 'labels.csv'}:3: duplicate label name 'cold'" in error_of(tmp_path)
    write_csv(tmp_path / "labels.csv", "name", "cold", "warm")
    write_csv(tmp_path / "pairs.csv", "query,label", "1,cold", "9,cold", "2,wet")
    message = error_of(tmp_path)
    assert f"{tmp_path / 'pairs.csv'}:3: query '9' is not in any table of queries" in message
    assert f"{tmp_path / 'pairs.csv'}:4: label 'wet' is not in labels.csv" in message
    write_csv(tmp_path / "test.csv", "id,query", "2,green")
    assert f"{tmp_path / 'test.csv'}: two queries are named '2'" in error_of(tmp_path)


def test_a_pair_without_a_label(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", "id,query", "1,red", "2,blue")
    write_csv(tmp_path / "pairs.csv", "query,label", "1,cold", "2,")
    assert f"{tmp_path / 'pairs.csv'}:3: lacks 'label'" in error_of(tmp_path)


def test_warnings_name_the_lines_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = ['"two\nlines",a', "", ",a", "red,", "blue,a|a|b|a", *["grey,"] * 5]
    file = write_csv(tmp_path / "train.csv", "query,labels", *rows)
    write_csv(tmp_path / "test.csv", "query,labels", "x,a")
    write_csv(tmp_path / "labels.csv", "uid,title", 'a,"A\n"', "b,")
    read(tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: ignored 2 duplicate labels of a query (line 7)",
        f"{file}: 6 queries have no label (line 6, 8, 9, 10, 11, …)",
        f"{tmp_path / 'labels.csv'}: 1 empty texts (line 4)",
        f"{file}: 1 empty texts (line 5)",
    ]


def test_duplicate_pairs_are_named_where_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_csv(tmp_path / "train.csv", "id,query", "1,red", "2,blue")
    write_csv(tmp_path / "test.csv", "id,query", "3,green")
    pairs = ["1,a", "3,b", "2,b", "1,a", "2,a", "3,b", "1,a"]
    write_csv(tmp_path / "pairs.csv", "query,label", *pairs)
    read(tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'pairs.csv'}: ignored 2 duplicate labels of a query (line 5, 8)",
        f"{tmp_path / 'pairs.csv'}: ignored 1 duplicate labels of a query (line 7)",
    ]


def test_two_tables_of_one_name(tmp_path: Path) -> None:
    for name in ("train.csv", "train.jsonl"):
        (tmp_path / name).touch()
    assert "two tables of the same name: train.csv and train.jsonl" in error_of(tmp_path)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(b"query,labels\ncaf\xe9,a\nok,b\n")
    message = error_of(tmp_path / "own.csv")
    assert f"{tmp_path / 'own.csv'}:2: not UTF-8: byte 0xe9 at offset 16" in message
    assert "iconv -f latin1 -t utf-8" in message


def test_a_truncated_archive(tmp_path: Path) -> None:
    lines = ["query,labels", *(f"text {number * 7919 % 1009},a" for number in range(300))]
    packed = gzip.compress("".join(f"{line}\n" for line in lines).encode())
    left = zlib.decompressobj(wbits=31).decompress(packed[:-400]).count(b"\n")
    file = tmp_path / "own.csv.gz"
    file.write_bytes(packed[:-400])
    assert left > 100
    assert error_of(file) == f"{file}: truncated: the archive ends after {left} lines (download the file again)"


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "own.parquet").write_text("plain")
    assert f"{tmp_path / 'own.parquet'}: not a valid Parquet file" in error_of(tmp_path / "own.parquet")


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    file = make(tmp_path, "parquet")
    content = bytearray(file.read_bytes())
    content[4:120] = bytes(116)  # the first page; the footer is as it was
    file.write_bytes(content)
    assert f"{file}: not a valid Parquet file" in error_of(file)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make(tmp_path, "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(PluginError, match=r'pip install "xmclab\[parquet\]"'):
        read(file)


def test_which_paths_are_tables(tmp_path: Path) -> None:
    assert not Table().matches(tmp_path)
    for name in ("notes.txt", "own.parquet.gz", "data.json"):
        (tmp_path / name).touch()
        assert not Table().matches(tmp_path / name)
    (tmp_path / "own.csv").touch()
    assert not Table().matches(tmp_path)  # a folder has a train table
    (tmp_path / "train.csv.gz").touch()
    assert Table().matches(tmp_path)


def test_filter_files_of_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_csv(tmp_path / "train.csv", "query,labels", *(f"q{row},a|b" for row in range(10)))
    (tmp_path / "filter_labels_train.txt").write_text("".join(f"{row} 1\n" for row in range(0, 10, 2)))
    data = read(tmp_path, test_share=0.5)
    for half in (data.train, data.test):
        rows = [int(text[1:]) % 2 == 0 for text in half.texts]
        np.testing.assert_array_equal(half.filter_NL.toarray()[:, 1], rows)
    assert caplog.records == []  # no filter for a table is nothing to warn of


def test_what_was_decided_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_csv(tmp_path / "own.csv", "query,labels", 'red,"a, b;c"', "blue,c")
    with caplog.at_level(logging.INFO, logger="xmclab.data"):
        assert list(read(file, test_share=0.5).label_names) == ["a, b", "c"]
    assert any("labels are separated by ';'" in record.getMessage() for record in caplog.records)
    assert any("no test table" in record.getMessage() for record in caplog.records)


def test_the_fingerprint_depends_on_the_choices(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "own.csv", "query,title,labels", "red,x,a|b;c", "blue,y,c")
    options: list[dict[str, Any]] = [{}, {"query": "title"}, {"separator": ";"}, {"test_share": 0.5}]
    assert len({read(file, **some).fingerprint for some in options}) == 4


def further(folder: Path, lines: list[str], **options: Any) -> Dataset:
    """The table `valid.csv` beside a data set."""
    file = write_csv((folder if folder.is_dir() else folder.parent) / "valid.csv", *lines)
    return Table(**options).read_queries(file, Table(**options).read(folder), folder)


def test_a_further_table_has_the_labels_and_the_separator_of_the_data(tmp_path: Path) -> None:
    data = write_csv(
        tmp_path / "shop.csv", "query,labels", "bun,bread", "brie,soft; french|fruit", "pie,fruit", "jam,x"
    )
    found = further(data, ["query,labels", "brioche,soft; french"])  # on its own, this looks like two labels
    labels = list(found.label_texts)
    assert labels == list(Table().read(data).label_texts)
    assert [labels[label] for label in found.test.targets_NL.indices] == ["soft; french"]
    with pytest.raises(DataError, match=r"valid\.csv:2: label 'butter' is not in shop\.csv"):
        further(data, ["query,labels", "croissant,butter"])


def test_a_further_table_refers_to_the_table_of_labels(tmp_path: Path) -> None:
    """Also where the queries of the data have their labels in a table of pairs."""
    write_csv(tmp_path / "train.csv", "uid,title", "q1,bun", "q2,brie")
    write_csv(tmp_path / "test.csv", "uid,title", "q3,jam")
    write_csv(tmp_path / "labels.csv", "uid,title", "A1,bread", "A2,cheese", "A3,fruit")
    write_csv(tmp_path / "pairs.csv", "query,label", "q1,A1", "q2,A2", "q3,A3")
    found = further(tmp_path, ["query,labels,relevances", "pie,A1|A3,0.5|1"])
    assert found.test.targets_NL.toarray().tolist() == [[0.5, 0, 1]]
    assert list(found.label_texts) == ["bread", "cheese", "fruit"]
    valid, reader = write_csv(tmp_path / "valid.csv", "query,labels,content", "pie,A1,"), Table(query_text="content")
    with pytest.raises(DataError, match=r"valid\.csv: no query has a 'content'"):
        reader.read_queries(valid, found, tmp_path)
    with pytest.raises(DataError, match=r"label 'A4' is not in labels\.csv"):
        further(tmp_path, ["query,labels", "pie,A4"])
    with pytest.raises(DataError, match="no column for the labels"):
        further(tmp_path, ["uid,title", "q4,pie"])


def test_a_folder_of_further_queries_needs_a_test_table(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "shop.csv", "query,labels", "bun,bread", "brie,cheese")
    with pytest.raises(DataError, match="no table of test queries"):
        Table().read_queries(tmp_path, Table().read(data), data)
