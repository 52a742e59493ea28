"""The label-feature reader: what it reads, and what users are told about bad files."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmclab.api import Dataset
from xmclab.data.readers.lf_json import LabelFeatureJson
from xmclab.errors import DataError

LABELS = [{"uid": "a", "title": "apple"}, {"uid": "b", "title": "bread"}, {"uid": "c", "title": "cheese"}]
TRAIN = [
    {"uid": "x", "title": "fruit", "content": "that keeps", "target_ind": [0, 2], "target_rel": [1.0, 0.5]},
    {"uid": "y", "title": "bakery", "target_ind": [1]},
]
TEST = [{"uid": "z", "title": "sandwich", "target_ind": [2, 1], "target_rel": [1.0, 1.0]}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "trn.json.gz", TRAIN)
    write_lines(tmp_path / "tst.json.gz", TEST)
    write_lines(tmp_path / "lbl.json.gz", LABELS)
    (tmp_path / "filter_labels_train.txt").write_text("0 1\n")
    (tmp_path / "filter_labels_test.txt").write_text("0 0\n0 0\n")
    return tmp_path


def write_lines(file: Path, records: list[Any]) -> None:
    text = "".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records)
    write_bytes(file, text.encode())


def write_bytes(file: Path, content: bytes) -> None:
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def read(folder: Path, **options: Any) -> Dataset:
    return LabelFeatureJson(**options).read(folder)


def error_of(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(folder)
    assert caught.value.exit_code == 3
    return str(caught.value)


def warnings_of(folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="xmclab.data"):
        read(folder, **options)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_reads_texts_names_targets_and_filters(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = read(folder)
    assert data.name == folder.name
    assert (list(data.train.texts), list(data.train.names)) == (["fruit", "bakery"], ["x", "y"])
    assert (list(data.label_texts), list(data.label_names)) == (["apple", "bread", "cheese"], ["a", "b", "c"])
    np.testing.assert_array_equal(data.train.targets_NL.toarray(), np.float32([[1, 0, 0.5], [0, 1, 0]]))
    np.testing.assert_array_equal(data.test.targets_NL.toarray(), [[0, 1, 1]])
    np.testing.assert_array_equal(data.train.filter_NL.toarray(), [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.test.filter_NL.toarray(), [[1, 0, 0]])
    assert data.test.targets_NL.dtype == np.float32
    assert data.test.targets_NL.has_sorted_indices
    assert caplog.records == []


def test_title_and_content(folder: Path) -> None:
    assert list(read(folder, text="title+content").train.texts) == ["fruit that keeps", "bakery"]


def test_the_texts_of_queries_and_labels_are_chosen_apart(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, records in (("trn", TRAIN), ("tst", TEST), ("lbl", LABELS)):
        full = [{**record, "content": f"all about {record['title']}"} for record in records]
        write_lines(folder / f"{name}.json.gz", full)
    titles, contents = ["apple", "bread", "cheese"], ["all about apple", "all about bread", "all about cheese"]
    data = read(folder, query_text="content")
    assert (data.train.texts, data.test.texts) == (["all about fruit", "all about bakery"], ["all about sandwich"])
    assert data.label_texts == titles
    data = read(folder, text="content", query_text="title")
    assert (data.test.texts, data.label_texts) == (["sandwich"], contents)
    data = read(folder, query_text="title+content", label_text="content")
    assert (data.test.texts, data.label_texts) == (["sandwich all about sandwich"], contents)
    assert caplog.records == []


def test_a_title_stands_in_for_a_missing_content_and_is_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(folder / "trn.json.gz", [*TRAIN, {"title": "blank", "content": " ", "target_ind": [0]}])
    write_lines(folder / "tst.json.gz", [TEST[0] | {"content": "two slices"}])
    assert read(folder, query_text="content").train.texts == ["that keeps", "bakery", "blank"]
    caplog.clear()
    assert warnings_of(folder, caplog, query_text="content") == [
        f"{folder / 'trn.json.gz'}: 2 queries have no 'content'; reading the title instead (line 2, 3)"
    ]


def test_content_without_any_is_refused(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(folder, text="content")
    assert [str(problem) for problem in caught.value.problems] == [
        f"{folder / 'lbl.json.gz'}: no label has a 'content' (data.label_text=title reads the title)",
        f"{folder / 'tst.json.gz'}: no query has a 'content' (data.query_text=title reads the title)",
    ]
    assert caught.value.exit_code == 3
    write_lines(folder / "lbl.json.gz", [*LABELS, "nonsense"])
    with pytest.raises(DataError) as caught:
        read(folder, label_text="content")
    assert "'content'" not in str(caught.value)  # of a file with bad lines, nobody knows


def test_plain_files_and_the_other_filter_names(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    packed = read(folder)
    for name in ("trn", "tst", "lbl"):
        file = folder / f"{name}.json.gz"
        (folder / f"{name}.json").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    for half, short in (("train", "trn"), ("test", "tst")):
        (folder / f"filter_labels_{half}.txt").rename(folder / f"{short}_filter_labels.txt")
    plain = read(folder)
    np.testing.assert_array_equal(plain.train.targets_NL.toarray(), packed.train.targets_NL.toarray())
    np.testing.assert_array_equal(plain.test.filter_NL.toarray(), packed.test.filter_NL.toarray())
    assert caplog.records == []


def test_fingerprint_depends_on_bytes_names_and_text(folder: Path) -> None:
    before = read(folder).fingerprint
    assert before == read(folder).fingerprint
    some = [("title+content", None), (None, "title+content"), ("title+content", "title+content")]
    sides = [read(folder, query_text=queries, label_text=labels).fingerprint for queries, labels in some]
    assert len({before, *sides}) == 4
    assert read(folder, text="title+content").fingerprint == sides[-1]
    assert read(folder, query_text="title").fingerprint == before
    (folder / "filter_labels_train.txt").write_text("0 2\n")
    changed = read(folder).fingerprint
    assert changed != before
    (folder / "filter_labels_train.txt").rename(folder / "trn_filter_labels.txt")
    assert read(folder).fingerprint != changed


@pytest.mark.parametrize("name", ["trn.json.gz", "tst.json.gz", "lbl.json.gz"])
def test_looks_at_any_of_its_files_and_names_the_missing_one(folder: Path, name: str) -> None:
    assert LabelFeatureJson().matches(folder)
    (folder / name).unlink()
    assert LabelFeatureJson().matches(folder)
    assert f"{folder / name}: missing" in error_of(folder)


def test_does_not_match_other_folders(tmp_path: Path) -> None:
    assert not LabelFeatureJson().matches(tmp_path)


def test_truncated_archive(folder: Path) -> None:
    records = [{"title": f"query {number * 7919 % 10007}", "target_ind": [0]} for number in range(20_000)]
    write_lines(folder / "trn.json.gz", records)
    packed = (folder / "trn.json.gz").read_bytes()
    (folder / "trn.json.gz").write_bytes(packed[: len(packed) // 2])
    message = error_of(folder)
    assert message.startswith(f"{folder / 'trn.json.gz'}: truncated: the archive ends after ")
    lines = int(message.split(" after ")[1].split(" lines")[0].replace(",", ""))
    assert 1000 < lines < 20_000


def test_damaged_archive(folder: Path) -> None:
    packed = bytearray((folder / "tst.json.gz").read_bytes())
    packed[-8] ^= 0xFF  # the checksum
    (folder / "tst.json.gz").write_bytes(packed)
    assert "tst.json.gz: damaged archive" in error_of(folder)


def test_archive_that_is_none(folder: Path) -> None:
    (folder / "lbl.json.gz").write_text("plain")
    assert "lbl.json.gz: damaged archive" in error_of(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "not JSON: '{broken'"),
        ("[" * 100_000, "not JSON: '[[[["),
        ("[1]", "not a JSON object: '[1]'"),
        ('{"target_ind": [0]}', "lacks 'title'"),
        ('{"title": 7, "target_ind": [0]}', "'title' is not a string: '7'"),
        ('{"title": "\\ud800", "target_ind": [0]}', "'title' contains an unpaired surrogate"),
        ('{"title": "t"}', "'target_ind' is missing"),
        ('{"title": "t", "target_ind": 1}', "'target_ind' is not a list"),
        ('{"title": "t", "target_ind": [3]}', "label index 3 is out of range: lbl.json.gz has 3 labels"),
        ('{"title": "t", "target_ind": [-1]}', "label index -1 is out of range"),
        ('{"title": "t", "target_ind": [99999999999999999999]}', "label index 99999999999999999999 is out of range"),
        ('{"title": "t", "target_ind": [1.0]}', "label index '1.0' is not an integer"),
        ('{"title": "t", "target_ind": [true]}', "label index 'true' is not an integer"),
        ('{"title": "t", "target_ind": [1], "target_rel": []}', "'target_rel' needs 1 values, as many as 'target_ind'"),
        ('{"title": "t", "target_ind": [1], "target_rel": [NaN]}', "relevance 'NaN' is not a positive float32 number"),
        ('{"title": "t", "target_ind": [1], "target_rel": [0]}', "relevance '0' is not a positive float32 number"),
        (
            '{"title": "t", "target_ind": [1], "target_rel": [1e300]}',
            "relevance '1e+300' is not a positive float32 number",
        ),
        ("", "blank line"),
    ],
)
def test_bad_lines_are_named(folder: Path, line: str, message: str) -> None:
    write_lines(folder / "trn.json.gz", [TRAIN[0], line, TRAIN[1]])
    assert f"{folder / 'trn.json.gz'}:2: {message}" in error_of(folder)


def test_all_bad_lines_are_counted_and_five_shown(folder: Path) -> None:
    write_lines(folder / "trn.json.gz", [TRAIN[0], *["{"] * 7])
    write_lines(folder / "tst.json.gz", [TEST[0], *["{"] * 3])
    message = error_of(folder)
    assert message.count("not JSON") == 5
    assert "10 bad lines in total (7 in trn.json.gz, 3 in tst.json.gz); the first 5 of each kind are shown" in message


def test_bad_labels_do_not_make_targets_out_of_range(folder: Path) -> None:
    write_lines(folder / "lbl.json.gz", [LABELS[0], "{", LABELS[2]])
    message = error_of(folder)
    assert "lbl.json.gz:2: not JSON" in message
    assert "out of range" not in message


def test_bytes_that_are_not_utf8(folder: Path) -> None:
    first = json.dumps(TRAIN[0]).encode() + b"\n"
    write_bytes(folder / "trn.json.gz", first + b'{"title": "caf\xe9", "target_ind": [0]}\n')
    offset = len(first) + len(b'{"title": "caf')
    assert f"{folder / 'trn.json.gz'}:2: not UTF-8: byte 0xe9 at offset {offset}" in error_of(folder)


def test_byte_order_mark_crlf_long_lines_and_blank_end(folder: Path) -> None:
    long = {"title": "word " * 200_000, "target_ind": [1]}
    content = "\r\n".join(json.dumps(record) for record in [*TRAIN, long]) + "\r\n\r\n"
    write_bytes(folder / "trn.json.gz", b"\xef\xbb\xbf" + content.encode())
    (folder / "filter_labels_train.txt").write_bytes(b"\xef\xbb\xbf0 1\r\n1 2\r\n")
    train = read(folder).train
    assert (train.texts[0], len(train.texts[2])) == ("fruit", 1_000_000)
    assert train.filter_NL.nnz == 2


def test_missing_uids_become_line_numbers(folder: Path) -> None:
    write_lines(
        folder / "tst.json.gz", [{"title": "t", "target_ind": [0]}, {"uid": 17, "title": "u", "target_ind": [0]}]
    )
    assert list(read(folder).test.names) == ["0", "17"]


def test_duplicate_labels_count_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = {"title": "t", "target_ind": [2, 0, 2, 2], "target_rel": [0.5, 1, 2, 1]}
    write_lines(folder / "trn.json.gz", [record, *TRAIN])
    assert any("trn.json.gz: ignored 2 duplicate labels of a query" in line for line in warnings_of(folder, caplog))
    np.testing.assert_array_equal(read(folder).train.targets_NL.toarray()[0], [1, 0, 2])


def test_duplicate_and_empty_texts_and_queries_without_labels(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(folder / "lbl.json.gz", [*LABELS, LABELS[0], {"title": " "}])
    write_lines(folder / "trn.json.gz", [*TRAIN, {"title": "", "target_ind": []}])
    assert warnings_of(folder, caplog) == [
        f"{folder / 'trn.json.gz'}: 1 queries have no label (line 3)",
        f"{folder / 'lbl.json.gz'}: 1 empty texts (line 5)",
        f"{folder / 'trn.json.gz'}: 1 empty texts (line 3)",
        f"{folder / 'lbl.json.gz'}: 1 labels share their text with another label "
        "(data.merge_same_text=true keeps them from being each other's negatives)",
    ]


def test_content_asked_for_but_absent(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(folder / "trn.json.gz", TRAIN[1:])
    for options in ({"text": "title+content"}, {"query_text": "title+content"}):
        assert any("no line has a 'content'" in line for line in warnings_of(folder, caplog, **options))
        caplog.clear()
    write_lines(folder / "lbl.json.gz", [record | {"content": "food"} for record in LABELS])
    assert warnings_of(folder, caplog, text="title+content") == []
    assert warnings_of(folder, caplog, query_text="title+content") != []


def test_missing_filter_file_warns(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "filter_labels_test.txt").unlink()
    (warning,) = warnings_of(folder, caplog)
    assert warning == (
        f"{folder}: no filter_labels_test.txt or tst_filter_labels.txt; reciprocal pairs are ranked and scored "
        "(fine unless queries are also labels)"
    )
    assert read(folder).test.filter_NL.nnz == 0


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("2 0", "query 2 is out of range: trn.json.gz has 2 lines"),
        ("0 3", "label 3 is out of range: lbl.json.gz has 3 lines"),
        ("-1 0", "query -1 is out of range"),
        ("0", "not a pair `query label`: '0'"),
        ("0 1 2", "not a pair"),
        ("0 x", "not a pair"),
    ],
)
def test_bad_filter_pairs(folder: Path, pair: str, message: str) -> None:
    (folder / "filter_labels_train.txt").write_text(f"0 0\n{pair}\n")
    assert f"{folder / 'filter_labels_train.txt'}:2: {message}" in error_of(folder)


def test_indices_are_checked_beside_bad_lines(folder: Path) -> None:
    write_lines(folder / "lbl.json.gz", [*LABELS[:2], {"uid": "lacks a title"}])
    write_lines(folder / "trn.json.gz", [{"title": "t", "target_ind": [3]}, {"title": "t", "target_ind": [2]}])
    (folder / "filter_labels_train.txt").write_text("1 2\n2 0\n")
    message = error_of(folder)
    assert "lbl.json.gz:3: lacks 'title'" in message
    assert "trn.json.gz:1: label index 3 is out of range: lbl.json.gz has 3 labels" in message
    assert "filter_labels_train.txt:2: query 2 is out of range: trn.json.gz has 2 lines" in message
    assert len(message.splitlines()) == 3


def test_what_points_into_a_file_without_an_end_is_not_judged(folder: Path) -> None:
    (folder / "lbl.json.gz").write_bytes((folder / "lbl.json.gz").read_bytes()[:-12])
    write_lines(folder / "trn.json.gz", [{"title": "t", "target_ind": [1000]}])
    assert "out of range" not in error_of(folder)


@pytest.mark.parametrize("name", ["trn.json.gz", "tst.json.gz", "lbl.json.gz"])
def test_empty_files(folder: Path, name: str) -> None:
    write_lines(folder / name, [])
    assert f"{folder / name}: has no lines" in error_of(folder)


def test_no_training_query_with_a_label(folder: Path) -> None:
    write_lines(folder / "trn.json.gz", [{"title": "t", "target_ind": []}] * 2)
    assert "trn.json.gz: no query has a label" in error_of(folder)


def test_one_query_and_one_label(folder: Path) -> None:
    write_lines(folder / "lbl.json.gz", LABELS[:1])
    for name in ("trn", "tst"):
        write_lines(folder / f"{name}.json.gz", [{"title": "t", "target_ind": [0]}])
    (folder / "filter_labels_train.txt").write_text("")
    data = read(folder)
    assert data.train.targets_NL.shape == (1, 1)
    assert data.train.filter_NL.nnz == 0


def test_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("xmclab.data.readers.lines.opened", refuse)
    assert "trn.json.gz: cannot be read: Permission denied" in error_of(folder)
