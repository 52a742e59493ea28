"""Texts from files: the same texts from every format, and what is wrong with a file, by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from xmclab.errors import ConfigError, DataError
from xmclab.serve.texts import TextFile

TEXTS = ["red shoes", "", 'a "quoted", comma', "größe"]
FORMATS = {
    "q.txt": "".join(f"{text}\n" for text in TEXTS),
    "no-end.txt": "\n".join(TEXTS),
    "windows.txt": "\ufeff" + "".join(f"{text}\r\n" for text in TEXTS),
    "q.csv": 'id,query\n1,red shoes\n2,\n3,"a ""quoted"", comma"\n4,größe\n',
    "single.csv": 'words\nred shoes\n""\n"a ""quoted"", comma"\ngröße\n',
    "q.tsv": 'text\tid\nred shoes\t1\n\t2\n"a ""quoted"", comma"\t3\ngröße\t4\n',
    "q.jsonl": "".join(json.dumps({"title": text, "target_ind": [3]}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_texts(tmp_path: Path, name: str, zipped: bool) -> None:
    content = FORMATS[name].encode()
    path = tmp_path / (f"{name}.gz" if zipped else name)
    path.write_bytes(gzip.compress(content) if zipped else content)
    file = TextFile(path)
    assert file.check() == len(TEXTS)
    assert [record.text for record in file] == TEXTS
    assert [record.text for record in file] == TEXTS  # from the start again


def test_a_parquet_file_gives_them_too(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3, 4], "query": TEXTS}), tmp_path / "q.parquet")
    file = TextFile(tmp_path / "q.parquet")
    assert file.check() == len(TEXTS)
    assert [record.text for record in file] == TEXTS


def test_a_field_may_hold_lines_and_be_long(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(f'text\n"two\nlines"\n{"long " * 100_000}\n')
    assert [len(record.text) for record in TextFile(path)] == [9, 500_000]


def test_the_named_column_is_read_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("query,wanted\nno,yes\n")
    assert [record.text for record in TextFile(path, "wanted")] == ["yes"]
    with pytest.raises(DataError, match=r"no column other .*columns: 'query', 'wanted'.*--column"):
        TextFile(path, "other").check()
    (tmp_path / "one.csv").write_text("words\nno\n")
    with pytest.raises(DataError, match="no column other"):
        TextFile(tmp_path / "one.csv", "other").check()


def test_labels_have_names(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("name,text\nA1,red shoes\n0,blue shoes\n")
    (tmp_path / "l.jsonl").write_text('{"uid": 0, "title": "red shoes"}\n')
    (tmp_path / "l.txt").write_text("red shoes\n")
    records = [
        (record.name, record.text)
        for file in ("l.csv", "l.txt", "l.jsonl")
        for record in TextFile(tmp_path / file, of_labels=True)
    ]
    shoes = [("A1", "red shoes"), ("0", "blue shoes"), ("red shoes", "red shoes"), ("0", "red shoes")]
    assert records == shoes


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.csv", "name,text\n ,red shoes\nA2,blue shoes\n"),
        ("l.csv", 'text\n""\nblue shoes\n'),
        ("l.jsonl", '\n{"text": "red shoes"}\n{"uid": 2, "text": "blue shoes"}\n'),
        ("l.txt", "red shoes\n\nblue shoes\n"),
    ],
)
def test_a_label_without_a_name_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=rf"{name}:2: label without a name"):
        TextFile(tmp_path / name, of_labels=True).check()


def test_a_table_of_labels_without_a_text_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("code,words\n1,red\n")
    with pytest.raises(DataError, match=r"no column title or text .*'code', 'words'; rename the one with the text"):
        TextFile(tmp_path / "l.csv", of_labels=True).check()


def test_content_follows_the_title_where_the_model_reads_both(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"title": "red", "content": "shoes"}\n{"title": "blue"}\n')
    assert [record.text for record in TextFile(path)] == ["red", "blue"]
    assert [record.text for record in TextFile(path, fields="title+content")] == ["red shoes", "blue"]


def test_content_alone_where_the_model_reads_no_title(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"title": "red", "content": "shoes"}\n{"title": "blue"}\n')
    file = TextFile(path, fields="content")
    assert file.check() == 2
    assert file.notes == [f"{path}: 1 of 2 texts have no 'content'; reading the title instead"]
    assert [record.text for record in file] == ["shoes", "blue"]
    path.write_text('{"id": 1, "content": "shoes"}\n')
    assert [(record.text, record.name) for record in TextFile(path, fields="content")] == [("shoes", "1")]
    assert [record.text for record in TextFile(path, "content", fields="content")] == ["shoes"]


def test_what_a_model_of_contents_reads_from_a_file_without_any(tmp_path: Path) -> None:
    """A line, a single column and a column that was chosen are the text; a title is not."""
    for name, lines in (("q.txt", "red\n"), ("single.csv", "title\nred\n"), ("q.csv", "id,title\n1,red\n")):
        (tmp_path / name).write_text(lines)
    for file in (
        TextFile(tmp_path / "q.txt", fields="content"),
        TextFile(tmp_path / "single.csv", fields="content"),
        TextFile(tmp_path / "q.csv", "title", fields="content"),
    ):
        assert (file.check(), file.notes) == (1, [])
        assert [record.text for record in file] == ["red"]
    reason = "has a 'content', which the model was trained on (columns: 'id', 'title';"
    for of_labels, problem in (
        (False, f"no query {reason} choose one with --column)"),
        (True, f"no label {reason} rename the one with the text to 'content')"),
    ):
        with pytest.raises(DataError) as caught:
            TextFile(tmp_path / "q.csv", of_labels=of_labels, fields="content").check()
        assert str(caught.value) == f"{tmp_path / 'q.csv'}: {problem}"


BAD = {
    "q.jsonl": (b'{"query": "good"}\n{"query": 3}\nnonsense\n[1]\n{"words": "x"}\n', [2, 3, 4, 5]),
    "q.txt": (b"good\n\xff\xfe bad\ngood\n", [2]),
    "q.csv": (b"query,id\ngood,1\n\xffbad,2\n", [3]),
}


@pytest.mark.parametrize("name", BAD)
def test_all_bad_lines_are_reported_at_once(tmp_path: Path, name: str) -> None:
    content, lines = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        TextFile(tmp_path / name).check()
    assert [problem.where for problem in caught.value.problems] == [f"{tmp_path / name}:{line}" for line in lines]


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"query": "\\ud800"}\n')
    with pytest.raises(DataError, match="surrogate"):
        TextFile(tmp_path / "q.jsonl").check()


BAD_FILES = {
    "none.txt": (None, "cannot be read: No such file"),
    "empty.txt": (b"", "has no texts"),
    "header.csv": (b"query\n", "has no texts"),
    "quote.csv": (b'query,id\n"open,1\n', "quote.csv:2: malformed row"),
    "cut.txt.gz": (gzip.compress(b"red\n" * 1000)[:-12], "truncated"),
    "no.txt.gz": (b"red\n", "damaged archive"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_bad_as_a_whole(tmp_path: Path, name: str) -> None:
    content, message = BAD_FILES[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        TextFile(tmp_path / name).check()


def test_the_format_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known: \.txt, \.csv"):
        TextFile(tmp_path / "q.xml")
