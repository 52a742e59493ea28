"""Words on the command line are texts or a file, and never in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmclab.cli.queries import given, is_file
from xmclab.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("queries.csv", "music", "my texts.jsonl.gz"):
        Path(name).write_text("")
    Path("docs").mkdir()
    return tmp_path


@pytest.mark.parametrize("word", ["queries.csv", "./queries.csv", "music", "my texts.jsonl.gz", "-"])
def test_what_exists_is_a_file(word: str) -> None:
    assert is_file(word)


@pytest.mark.parametrize(
    "word", ["plot functions", "how to open data.csv", "and/or not", "node.js", "docs", "", "a\0b"]
)
def test_anything_else_is_a_text(word: str) -> None:
    assert not is_file(word)


@pytest.mark.parametrize("word", ["other.csv", "other.parquet", "other.JSON.gz", "TCP/IP", "data/queries"])
def test_what_looks_like_a_file_must_be_one(word: str) -> None:
    with pytest.raises(DataError, match=rf"^{word}: no such file \(if it is a text: --text {word}\)$"):
        is_file(word)
    assert given([], [word], None) == ([word], None)


def test_a_folder_is_not_a_file() -> None:
    with pytest.raises(DataError, match="docs/: is a folder, not a file of queries"):
        is_file("docs/")


def test_texts_come_in_order_and_a_file_alone() -> None:
    assert given(["a", "b"], ["c"], None) == (["a", "b", "c"], None)
    assert given(["queries.csv"], [], None) == ([], Path("queries.csv"))
    with pytest.raises(ConfigError, match=r"several files: queries.csv, music, x.txt"):
        given(["queries.csv", "music"], [], Path("x.txt"))
    with pytest.raises(ConfigError, match=r"both texts and a file, music \(if it is a text: --text music\)"):
        given(["music", "a song"], [], None)
