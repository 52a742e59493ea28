"""Writing data sets: what is written is read back as it was."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmclab.api import Dataset, Split
from xmclab.data import open_dataset
from xmclab.data.readers.columns import content_of, join
from xmclab.errors import DataError, StorageError
from xmclab.host.registry import default_registry
from xmclab.system.files import new_folder
from xmclab_datatools.write import WRITERS, Contents, with_contents


def read_all(path: Path) -> tuple[Dataset, Contents]:
    return with_contents(lambda text: open_dataset(str(path), text, default_registry()))


def assert_same(one: tuple[Dataset, Contents], other: tuple[Dataset, Contents], names: bool = True) -> None:
    (data, contents), (data2, contents2) = one, other
    assert (list(data.label_texts), contents) == (list(data2.label_texts), contents2)
    assert not names or list(data.label_names) == list(data2.label_names)
    for half, half2 in ((data.train, data2.train), (data.test, data2.test)):
        assert list(half.texts) == list(half2.texts)
        assert not names or list(half.names) == list(half2.names)
        for matrix, matrix2 in ((half.targets_NL, half2.targets_NL), (half.filter_NL, half2.filter_NL)):
            assert matrix2.dtype == np.float32
            np.testing.assert_array_equal(matrix.toarray(), matrix2.toarray())


def rich(seed: int = 0) -> tuple[Dataset, Contents]:
    """A small set with everything that a set can have: contents, names, relevances, filters, line ends, no labels."""
    rng = np.random.default_rng(seed)
    odd = ["é\u2028", "two\nlines", "", " space ", '"quoted" \\', "plain", "[a]", "a|b", "tab\there", "\u0085"]

    def matrix(rows: int, relevant: bool) -> sp.csr_array:
        dense = (rng.random((rows, 5)) < 0.4) * (rng.random((rows, 5)) if relevant else 1.0)
        return sp.csr_array(dense.astype(np.float32))

    def texts(rows: int) -> list[str]:
        return [str(text) for text in rng.choice(odd, rows)]

    def half(rows: int, letter: str) -> Split:
        names = [f"{letter}{row} ü" for row in range(rows)]
        return Split(texts(rows), names, matrix(rows, relevant=True), matrix(rows, relevant=False))

    data = Dataset("rich", half(12, "q"), half(6, "t"), texts(5), ["a|b", "[x]", "ü", "d e", "7"], "")
    return data, Contents(texts(12), texts(6), texts(5))


def plain() -> tuple[Dataset, Contents]:
    """What a text per line can hold: names are texts or rows."""
    data, _ = rich()

    def texts(rows: int, word: str) -> list[str]:
        return [f"{word} é {row}" for row in range(rows - 1)] + [""]

    def half(split: Split, word: str) -> Split:
        rows = len(split)
        return Split(texts(rows, word), list(map(str, range(rows))), split.targets_NL, split.filter_NL)

    train, test, labels = half(data.train, "train"), half(data.test, "test"), texts(5, "label")
    return Dataset("plain", train, test, labels, labels, ""), Contents([""] * 12, [""] * 6, [""] * 5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", ["lf_json", "table"])
def test_nothing_is_lost(tmp_path: Path, layout: str, seed: int) -> None:
    WRITERS[layout](tmp_path, *rich(seed))
    assert_same(rich(seed), read_all(tmp_path))


@pytest.mark.parametrize("layout", ["raw_text", "dexml", "pecos"])
def test_layouts_of_a_text_per_line_hold_texts_and_pairs(tmp_path: Path, layout: str) -> None:
    WRITERS[layout](tmp_path, *plain())
    assert_same(plain(), read_all(tmp_path))


@pytest.mark.parametrize("layout", [name for name in WRITERS if name != "lf_json"])
def test_there_and_back(tmp_path: Path, layout: str) -> None:
    """From any layout to label-feature JSON and back to the same bytes."""
    for name in ("first", "middle", "last"):
        (tmp_path / name).mkdir()
    WRITERS[layout](tmp_path / "first", *plain())
    WRITERS["lf_json"](tmp_path / "middle", *read_all(tmp_path / "first"))
    WRITERS[layout](tmp_path / "last", *read_all(tmp_path / "middle"))
    first, last = (
        {file.relative_to(folder): content_of_file(file) for file in folder.rglob("*") if file.is_file()}
        for folder in (tmp_path / "first", tmp_path / "last")
    )
    assert first == last


def content_of_file(file: Path) -> Any:
    return sp.load_npz(file).toarray().tolist() if file.suffix == ".npz" else file.read_bytes()


@pytest.mark.parametrize("layout", ["raw_text", "dexml", "pecos"])
def test_what_is_lost_is_said(tmp_path: Path, layout: str, caplog: pytest.LogCaptureFixture) -> None:
    data, _ = rich()
    texts = Dataset("x", *(Split(["t"] * len(s), s.names, s.targets_NL, s.filter_NL) for s in (data.train, data.test)),
                    ["l"] * 5, data.label_names, "")  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="xmclab.data"):
        WRITERS[layout](tmp_path, texts, Contents(["c"] * 12, [""] * 6, [""] * 5))
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == ["contents are dropped", "label names are dropped", "query names are dropped"]


@pytest.mark.parametrize("layout", ["raw_text", "dexml", "pecos"])
def test_line_ends_in_texts_are_refused_where_they_cannot_be(tmp_path: Path, layout: str) -> None:
    data, contents = plain()
    broken = Dataset("x", data.train, data.test, ["a", "b\nc", "d", "e", "f"], list("abdef"), "")
    with pytest.raises(DataError, match="the text of row 1 contains a line break"):
        WRITERS[layout](tmp_path, broken, contents)


@pytest.mark.parametrize("names", [["a", "a", "b", "c", "d"], ["", "a", "b", "c", "d"], [" a", "a", "b", "c", "d"]])
def test_labels_of_a_table_are_numbered_if_their_names_do_not_tell_them_apart(tmp_path: Path, names: list[str]) -> None:
    data, contents = rich()
    WRITERS["table"](tmp_path, Dataset("x", data.train, data.test, data.label_texts, names, ""), contents)
    found = read_all(tmp_path)
    assert list(found[0].label_names) == list("01234")
    np.testing.assert_array_equal(found[0].train.targets_NL.toarray(), data.train.targets_NL.toarray())


@pytest.mark.parametrize("name", ["tiny"])
def test_an_embedded_set_survives(tmp_path: Path, name: str) -> None:
    WRITERS["lf_json"](tmp_path, *read_all(Path(name)))
    assert_same(read_all(Path(name)), read_all(tmp_path))


def test_relevances_are_written_only_where_they_say_something(tmp_path: Path) -> None:
    data, contents = plain()
    ones = Split(data.train.texts, data.train.names, data.train.filter_NL, data.train.filter_NL)
    WRITERS["lf_json"](tmp_path, Dataset("x", ones, data.test, data.label_texts, data.label_names, ""), contents)
    lines = gzip.decompress((tmp_path / "trn.json.gz").read_bytes()).decode().splitlines()
    assert all(set(json.loads(line)) == {"uid", "title", "target_ind"} for line in lines)
    assert "target_rel" in gzip.decompress((tmp_path / "tst.json.gz").read_bytes()).decode()


@given(st.text(), st.text())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_content_can_be_told_from_its_title(title: str, content: str) -> None:
    assert content_of(join(title, content), title) == content


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        WRITERS["lf_json"](tmp_path / name, *rich())
    assert (tmp_path / "one" / "trn.json.gz").read_bytes() == (tmp_path / "two" / "trn.json.gz").read_bytes()


def test_a_new_folder_is_whole_or_absent(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out") as folder:
        fail(folder)
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a" / "out") as folder:
        (folder / "whole").touch()
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["out", "whole"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    for path in (tmp_path, tmp_path / "mine"):
        with pytest.raises(StorageError, match="exists and is not an empty folder"), new_folder(path):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as folder:
        (folder / "whole").touch()
    assert (tmp_path / "empty" / "whole").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"), new_folder(tmp_path / "file" / "out"):
        raise AssertionError


def test_reading_what_was_written_finds_its_layout(tmp_path: Path) -> None:
    for layout, write in WRITERS.items():
        (tmp_path / layout).mkdir()
        write(tmp_path / layout, *plain())
        found = open_dataset(str(tmp_path / layout), "title", default_registry())
        assert found.num_labels == 5
