"""Records of a JSON file, in an array or one after the other, in pieces of any size."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from xmclab.data.readers import json_records
from xmclab.data.readers.json_records import read_json_records
from xmclab.data.readers.lines import Problems
from xmclab.errors import DataError

RECORDS = [{"title": f"größe {number}", "labels": [1, {"a": "]"}]} for number in range(7)]


def read(file: Path) -> list[Any]:
    problems = Problems()
    found = list(read_json_records(file, problems))
    problems.raise_if_any()
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    return [record for _, record in found]


@pytest.mark.parametrize("piece", [1, 10, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_in_pieces(
    tmp_path: Path, piece: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_records, "PIECE", piece)
    file = tmp_path / "q.json"
    file.write_text(f"\ufeff {json.dumps(RECORDS, indent=indent, ensure_ascii=False)}\r\n", encoding="utf-8")
    assert read(file) == RECORDS
    file.write_text("\n".join(json.dumps(record, indent=indent) for record in RECORDS))
    assert read(file) == RECORDS
    (tmp_path / "q.json.gz").write_bytes(gzip.compress(json.dumps(RECORDS).encode()))
    assert read(tmp_path / "q.json.gz") == RECORDS


def test_an_array_of_texts_is_one_of_records(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('["one", "two"]')
    assert read(tmp_path / "q.json") == [{"text": "one"}, {"text": "two"}]
    (tmp_path / "q.json").write_text("[ ]")
    assert read(tmp_path / "q.json") == []


def test_little_is_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record of an array is there before the second piece is read."""
    monkeypatch.setattr(json_records, "PIECE", 100)
    stream = io.StringIO(json.dumps([{"text": "x" * 20}] * 1000))
    next(json_records._values(stream))
    assert stream.tell() == 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1}, {"b": ', "record 2: not JSON"),
        ('[{"a": 1} {"b": 2}]', "record 2: no comma before '{\"b\": 2}]'"),
        ('[{"a": 1},', "record 2: the array has no end"),
        ('[{"a": 1}] 3', "record 2: something follows the end of the array"),
        ('[{"a": 1}, 3]', "q.json:2: not a JSON object: '3'"),
        ('[{"a": "\\x"}]', "record 1: not JSON"),
        ("[" * 100_000, "record 1: nested too deeply"),
        (b'{"a": "\xe4"}', "not UTF-8, after 0 records"),
    ],
)
def test_what_is_wrong_is_said_by_record(tmp_path: Path, content: str | bytes, message: str) -> None:
    file = tmp_path / "q.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError) as error:
        read(file)
    assert message in str(error.value)


def test_a_record_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCLAB_LIMITS", "line=1K")
    monkeypatch.setattr(json_records, "PIECE", 500)
    (tmp_path / "q.json").write_text(json.dumps([{"a": "x" * 3000}]))
    with pytest.raises(
        DataError, match=r"a record of more than 1,000 characters, after 0 records \(XMCLAB_LIMITS=line="
    ):
        read(tmp_path / "q.json")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "nowhere.json")
