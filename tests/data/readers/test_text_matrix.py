"""The layouts of text files and label matrices: what is read, and what users are told about bad files."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.data.readers.dexml import Dexml
from xmclab.data.readers.pecos import Pecos
from xmclab.data.readers.raw_text import RawText
from xmclab.data.readers.text_matrix import TextMatrixReader
from xmclab.errors import DataError
from xmclab.host.registry import default_registry

TRAIN, TEST, LABELS = ["fruit", "", "bakery"], ["sandwich"], ["apple", "bread", "cheese"]
TRAIN_NL, TEST_NL = np.float32([[1, 0, 0.5], [0, 0, 0], [0, 1, 0]]), np.float32([[0, 1, 1]])
READERS: dict[str, type[TextMatrixReader]] = {"raw_text": RawText, "dexml": Dexml, "pecos": Pecos}


def sparse_text(matrix: np.ndarray, header: bool) -> str:
    rows = [" ".join(f"{label}:{row[label]:g}" for label in np.flatnonzero(row)) for row in matrix]
    return "\n".join([f"{matrix.shape[0]} {matrix.shape[1]}"] * header + rows) + "\n"


def write(file: Path, content: str | np.ndarray) -> None:
    file.parent.mkdir(exist_ok=True)
    if isinstance(content, str):
        file.write_text(content)
    elif file.suffix == ".npz":
        sp.save_npz(file, sp.csr_matrix(content))
    else:
        file.write_text(sparse_text(content, header=True))


def make(folder: Path, reader: type[TextMatrixReader], choice: int = 0) -> Path:
    """A set whose files have the first names that a reader knows, or the last (-1)."""
    for names, texts in ((reader.train_texts, TRAIN), (reader.test_texts, TEST), (reader.label_texts, LABELS)):
        write(folder / names[choice], "".join(f"{text}\n" for text in texts))
    for names, matrix in ((reader.train_labels, TRAIN_NL), (reader.test_labels, TEST_NL)):
        write(folder / names[choice], matrix)
    (folder / "filter_labels_trn.txt").write_text("0 1\n")
    (folder / "test_filter_labels.txt").write_text("0 0\n")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return make(tmp_path, RawText)


def check(data: Dataset) -> None:
    assert (list(data.train.texts), list(data.test.texts), list(data.label_texts)) == (TRAIN, TEST, LABELS)
    assert (list(data.train.names), list(data.label_names)) == (["0", "1", "2"], LABELS)
    np.testing.assert_array_equal(data.train.targets_NL.toarray(), TRAIN_NL)
    np.testing.assert_array_equal(data.test.targets_NL.toarray(), TEST_NL)
    np.testing.assert_array_equal(data.train.filter_NL.toarray(), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.test.filter_NL.toarray(), [[1, 0, 0]])


def error_of(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_dataset(str(folder), "title", default_registry())
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.parametrize("choice", [0, -1])
@pytest.mark.parametrize("name", READERS)
def test_every_layout_is_found_and_read(tmp_path: Path, name: str, choice: int) -> None:
    make(tmp_path, READERS[name], choice)
    assert [other for other, reader in READERS.items() if reader().matches(tmp_path)] == [name]
    check(open_dataset(str(tmp_path), "title", default_registry()))
    assert READERS[name](text="title+content").read(tmp_path).test.texts == TEST
    with pytest.raises(DataError) as caught:
        READERS[name](query_text="content").read(tmp_path)
    problem = f"{tmp_path}: a query is a line of text here, without a 'content' (data.query_text=title reads the lines)"
    assert str(caught.value) == problem
    with pytest.raises(DataError, match=r"a label is a line of text here.*data\.label_text=title"):
        READERS[name](label_text="content").read(tmp_path)


@pytest.mark.parametrize(
    "lines",
    ["0:1 2:0.5\n\n1:1\n", "3 3\r\n0:1 2:0.5\r\n\r\n1:1\r\n", "3 3\n2:0.5 0:1\n \n1:1.0", "0:1\t2:0.5\n\n1\n"],
    ids=["no header", "CRLF", "no line end", "tabs and plain indices"],
)
def test_forms_of_sparse_text(raw: Path, lines: str) -> None:
    (raw / "trn_X_Y.txt").write_bytes(lines.encode())
    check(RawText().read(raw))


def test_indices_between_commas(tmp_path: Path) -> None:
    make(tmp_path, Pecos)
    (tmp_path / "Y.tst.npz").unlink()
    (tmp_path / "Y.tst.txt").write_text("1,2\n")
    check(Pecos().read(tmp_path))


def test_gzipped_files(raw: Path) -> None:
    for name in ("trn_X.txt", "trn_X_Y.txt"):
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    check(RawText().read(raw))


def test_byte_order_mark_and_crlf(raw: Path) -> None:
    (raw / "Y.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*LABELS, ""]).encode())
    check(RawText().read(raw))


def test_latin_1_is_read_and_mentioned(raw: Path, caplog: pytest.LogCaptureFixture) -> None:
    (raw / "Y.txt").write_bytes("crème\nCAFÉ®\nfrappé\n".encode("latin-1"))  # the second is UTF-8 by chance
    with caplog.at_level(logging.WARNING, logger="xmclab.data"):
        assert list(RawText().read(raw).label_texts) == ["crème", "CAFÉ®", "frappé"]
    assert any("Y.txt: not UTF-8; reading it as latin-1" in record.getMessage() for record in caplog.records)


def test_a_damaged_byte_of_utf_8_is_an_error(raw: Path) -> None:
    (raw / "Y.txt").write_bytes("crème\nfrappé\n".encode() + b"bl\xe9\n")
    assert f"{raw / 'Y.txt'}:3: not UTF-8: byte 0xe9 at offset 17" in error_of(raw)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "4 3\n0:1\n\n1:1\n",
            ":1: the header says 4 rows and 3 columns, but there are 3 rows below it and 3 labels in Y",
        ),
        (
            "3 5\n0:1\n\n1:1\n",
            ":1: the header says 3 rows and 5 columns, but there are 3 rows below it and 3 labels in Y",
        ),
        ("0:1\n1:1\n", ": has 2 rows, but trn_X.txt has 3 lines"),
        ("0:1\n3:1\n\n", ":2: label index 3 is out of range: Y.txt has 3 labels"),
        ("0:1\n-1:1\n\n", ":2: label index -1 is out of range"),
        ("0:1\n1:0\n\n", ":2: relevance '0' is not a positive float32 number"),
        ("0:1\n1:nan\n\n", ":2: relevance 'nan' is not a positive float32 number"),
        ("0:1\n1:x\n\n", ":2: relevance 'x' is not a positive float32 number"),
        ("0:1\nred\n\n", ":2: not `label:relevance`: 'red'"),
    ],
)
def test_bad_label_files(raw: Path, lines: str, message: str) -> None:
    (raw / "trn_X_Y.txt").write_text(lines)
    assert f"{raw / 'trn_X_Y.txt'}{message}" in error_of(raw)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0:1\n9:1\n", "has 2 rows, but trn_X.txt has 3 lines"),
        ("4 3\n0:1\n9:1\n\n", "the header says 4 rows and 3 columns, but there are 3 rows below it"),
        ("3 3\n0:1\n9:1\n\n", None),
    ],
)
def test_rows_are_counted_beside_bad_ones(raw: Path, lines: str, message: str | None) -> None:
    (raw / "trn_X_Y.txt").write_text(lines)
    found = error_of(raw)
    assert "label index 9 is out of range" in found
    assert message in found if message else len(found.splitlines()) == 1


@pytest.fixture
def dexml(tmp_path: Path) -> Path:
    return make(tmp_path, Dexml)


def test_a_matrix_of_another_size(dexml: Path) -> None:
    sp.save_npz(dexml / "Y.trn.npz", sp.csr_matrix(np.ones((2, 4))))
    message = error_of(dexml)
    assert f"{dexml / 'Y.trn.npz'}: has 4 columns, but Y.txt has 3 lines" in message
    assert "has 2 rows" not in message  # one trouble at a time: the file is not what it should be


def test_a_matrix_with_too_few_rows(dexml: Path) -> None:
    sp.save_npz(dexml / "Y.trn.npz", sp.csr_matrix(np.ones((2, 3))))
    assert f"{dexml / 'Y.trn.npz'}: has 2 rows, but trn_X.txt has 3 lines" in error_of(dexml)


@pytest.mark.parametrize("index", [3, -1])
def test_a_matrix_with_an_index_out_of_range(dexml: Path, index: int) -> None:
    matrix = sp.csr_matrix(TRAIN_NL)
    matrix.indices[0] = index
    sp.save_npz(dexml / "Y.trn.npz", matrix)
    assert f"{dexml / 'Y.trn.npz'}: not a scipy sparse matrix" in error_of(dexml)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_matrix_with_a_bad_relevance(dexml: Path, value: float) -> None:
    matrix = sp.csr_matrix(TRAIN_NL)
    matrix.data[2] = value
    sp.save_npz(dexml / "Y.trn.npz", matrix)
    assert f"{dexml / 'Y.trn.npz'}:3: relevance {value} is not a positive float32 number" in error_of(dexml)


def test_stored_zeros_are_no_labels(dexml: Path, caplog: pytest.LogCaptureFixture) -> None:
    matrix = sp.csr_matrix(np.float32([[1, 7, 0.5], [0, 0, 0], [0, 1, 0]]))
    matrix.data[1] = 0
    sp.save_npz(dexml / "Y.trn.npz", matrix)
    check(Dexml().read(dexml))
    assert any("ignored 1 stored zeros" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"plain"])
def test_a_matrix_that_is_none(dexml: Path, content: bytes) -> None:
    (dexml / "Y.tst.npz").write_bytes(content)
    assert f"{dexml / 'Y.tst.npz'}: not a scipy sparse matrix" in error_of(dexml)


def test_a_truncated_matrix(dexml: Path) -> None:
    content = (dexml / "Y.tst.npz").read_bytes()
    (dexml / "Y.tst.npz").write_bytes(content[: len(content) // 2])
    assert f"{dexml / 'Y.tst.npz'}: not a scipy sparse matrix" in error_of(dexml)


def test_nothing_is_unpickled(dexml: Path) -> None:
    np.savez(dexml / "Y.trn.npz", format=np.array("csr"), data=np.array([print], dtype=object))
    assert f"{dexml / 'Y.trn.npz'}: not a scipy sparse matrix" in error_of(dexml)


def test_all_missing_files_are_named(raw: Path) -> None:
    for name in ("tst_X.txt", "Y.txt", "trn_X_Y.txt"):
        (raw / name).unlink()
    message = error_of(raw)
    assert f"{raw / 'tst_X.txt'}: missing" in message
    assert f"{raw / 'Y.txt'}: missing" in message
    assert f"{raw / 'trn_X_Y.txt'}: missing (trn_X_Y.npz works too)" in message


def test_duplicate_entries_count_once(raw: Path, caplog: pytest.LogCaptureFixture) -> None:
    (raw / "trn_X_Y.txt").write_text("0:1 2:0.5 2:0.25 0:1\n\n1:1\n")
    check(RawText().read(raw))
    assert any("ignored 2 duplicate labels of a query" in record.getMessage() for record in caplog.records)
