"""Sparse text and sparse matrices: what is read, and what is wrong with a file, by line or row."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.data.readers.lines import Problems
from xmclab.data.sparse import Extent, SparseText, read_filter, read_matrix, read_pairs
from xmclab.errors import DataError


def as_text(matrix: sp.csr_array) -> str:
    rows = []
    for row in range(matrix.shape[0]):
        entries = range(matrix.indptr[row], matrix.indptr[row + 1])
        rows.append(" ".join(f"{matrix.indices[entry]}:{float(matrix.data[entry])!r}" for entry in entries))
    return "\n".join([f"{matrix.shape[0]} {matrix.shape[1]}", *rows, ""])


def test_sparse_text_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_bytes(b"3 4\r\n1:0.25 3:1e-3\r\n\r\n  0:-2   2:0 \r\n")
    matrix = read_matrix(tmp_path / "m.txt")
    assert matrix.shape == (3, 4)
    assert matrix.indptr.tolist() == [0, 2, 2, 4]
    assert matrix.indices.tolist() == [1, 3, 0, 2]
    assert matrix.data.tolist() == [0.25, 1e-3, -2, 0]  # a stored zero stays a prediction


def test_many_lines_are_read_by_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    matrix = sp.random_array((50, 30), density=0.2, rng=rng, format="csr")
    (tmp_path / "m.txt").write_text(as_text(sp.csr_array(matrix)))
    for lines in (1, 7, 1000):
        monkeypatch.setattr("xmclab.data.sparse.LINES", lines)
        assert (read_matrix(tmp_path / "m.txt") != matrix).nnz == 0


TEXTS = {
    "no header": ("0:1 1:1\n", ["m.txt:1: not a header"]),
    "features": ("3 10 4\n", ["a header of three numbers belongs to a feature file"]),
    "empty": ("", ["m.txt:1: not a header"]),
    "too few rows": ("3 4\n0:1\n\n", ["m.txt: the header says 3 rows, but there are 2"]),
    "too many rows": ("1 4\n0:1\n\n", ["m.txt: the header says 1 rows, but there are 2"]),
    "out of range": (
        "2 4\n0:1 4:1\n-1:2\n",
        ["m.txt:2: label index 4 is out of range: the header says 4 labels", "m.txt:3: label index -1 is out"],
    ),
    "no pair": (
        "3 4\n0:1\n2\n1:x\n",
        ["m.txt:3: not `label:value`: '2'", "m.txt:4: the value of label 1 is not a number: '1:x'"],
    ),
    "three in one": ("2 40\n1:23:4\n1:2:3 4\n", ["m.txt:2: not `label:value`", "m.txt:3: not `label:value`"]),
    "underscores": ("2 40\n1_0:2\n1:2_0\n", ["m.txt:2: not `label:value`", "m.txt:3: not `label:value`"]),
    "no number": ("1 4\n0:nan\n", ["m.txt:2: the value of label 0 is not a number"]),
}


@pytest.mark.parametrize("case", TEXTS)
def test_bad_sparse_text(tmp_path: Path, case: str) -> None:
    text, messages = TEXTS[case]
    (tmp_path / "m.txt").write_text(text)
    with pytest.raises(DataError) as caught:
        read_matrix(tmp_path / "m.txt")
    for message in messages:
        assert message in str(caught.value)
    assert len(caught.value.problems) == len(messages)


def test_indices_outside_a_sparse_matrix_are_refused(tmp_path: Path) -> None:
    matrix = sp.csr_array((np.ones(1), np.array([0]), np.array([0, 1])), shape=(1, 2))
    matrix.indices[0] = 7
    sp.save_npz(tmp_path / "m.npz", matrix)
    with pytest.raises(DataError, match="not a scipy sparse matrix"):
        read_matrix(tmp_path / "m.npz")


def test_filter_pairs(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("0 2\n1 0\n0 2\n")
    assert read_filter(tmp_path / "f.txt", (2, 3)).astype(bool).toarray().tolist() == [[0, 0, 1], [1, 0, 0]]
    (tmp_path / "empty.txt").write_text("")
    assert read_filter(tmp_path / "empty.txt", (2, 3)).nnz == 0
    (tmp_path / "bad.txt").write_text("0 3\n2 0\nx\n-1 0\n")
    with pytest.raises(DataError) as caught:
        read_filter(tmp_path / "bad.txt", (2, 3))
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["1", "2", "3", "4"]


def relevances(path: Path, labels: int | None = 4) -> tuple[list[list[tuple[int, float]]], Problems]:
    """The rows of a file of relevances, and what was wrong with it."""
    problems = Problems()
    rows: list[list[tuple[int, float]]] = []
    for block in SparseText(path, problems, True, Extent(labels, "Y.txt has 4 labels")).blocks():
        entries = iter(zip(block.columns_E.tolist(), block.values_E.tolist(), strict=True))
        rows += [[next(entries) for _ in range(length)] for length in block.lengths_Q.tolist()]
    return rows, problems


@pytest.mark.parametrize("lines", [1, 2, 1000])
@pytest.mark.parametrize("header", ["", "4 4\n"])
def test_regular_and_irregular_relevances_are_the_same(
    tmp_path: Path, header: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label alone counts 1, commas separate; such lines are parsed one by one, the others by the block."""
    monkeypatch.setattr("xmclab.data.sparse.LINES", lines)
    for text in ("0:1 2:0.1\n\n3:1\n1:1 2:1\n", "0, 2:0.1\n\n3\n1,2\n", "0:1\t2:1e-1\r\n \r\n3\n1:1.0 2\n"):
        (tmp_path / "y.txt").write_text(header + text)
        rows, problems = relevances(tmp_path / "y.txt")
        assert rows == [[(0, 1.0), (2, 0.1)], [], [(3, 1.0)], [(1, 1.0), (2, 1.0)]]
        assert not problems.about(tmp_path / "y.txt")


def test_two_labels_between_tabs_are_no_header(tmp_path: Path) -> None:
    (tmp_path / "y.txt").write_text("1\t3\n")
    assert relevances(tmp_path / "y.txt")[0] == [[(1, 1.0), (3, 1.0)]]
    (tmp_path / "m.txt").write_text("1\t3\n2:1\n")  # scores have a header always
    assert read_matrix(tmp_path / "m.txt").shape == (1, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("4:1", "label index 4 is out of range: Y.txt has 4 labels, counted from 0"),
        ("-1", "label index -1 is out of range"),
        ("1:0", "relevance '0' is not a positive float32 number"),
        ("1:-2", "relevance '-2' is not a positive float32 number"),
        ("1:1e-60", "relevance '1e-60' is not a positive float32 number"),
        ("1:1e60", "relevance '1e60' is not a positive float32 number"),
        ("1:inf", "relevance 'inf' is not a positive float32 number"),
        ("1:x", "relevance 'x' is not a positive float32 number"),
        ("1:2_0", "not `label:relevance`: '1:2_0'"),
        ("1:\u0661", "not `label:relevance`"),
        ("1:2:3", "not `label:relevance`: '1:2:3'"),
        ("red", "not `label:relevance`: 'red'"),
    ],
)
def test_bad_relevances_leave_the_other_rows(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "y.txt").write_text(f"0:1\n{line}\n2:1\n", encoding="utf-8")
    rows, problems = relevances(tmp_path / "y.txt")
    assert rows == [[(0, 1.0)], [(2, 1.0)]]
    assert [problem.where for problem in problems.shown] == [f"{tmp_path / 'y.txt'}:2"]
    assert problems.shown[0].message.startswith(message)


def test_an_unknown_number_of_labels_bounds_what_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "y.txt").write_text(f"7:1\n{10**30}:1\n")
    rows, problems = relevances(tmp_path / "y.txt", None)
    assert rows == [[(7, 1.0)]]
    assert problems.shown[0].message.startswith(f"label index {10**30} is out of range")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_rows(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "y.txt").write_bytes(content)
    assert not any(relevances(tmp_path / "y.txt")[0])
    with pytest.raises(DataError, match="not a header"):
        read_matrix(tmp_path / "y.txt")


def test_encodings_and_archives_of_scores(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf1 2\n1:3\n")
    assert read_matrix(tmp_path / "bom.txt").toarray().tolist() == [[0, 3]]
    (tmp_path / "latin.txt").write_bytes(b"1 2\n1:3 \xe9\n")
    with pytest.raises(DataError, match=r"latin.txt:2: not UTF-8: byte 0xe9 at offset 8"):
        read_matrix(tmp_path / "latin.txt")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"1 2\n1:3\n")[:-6])
    with pytest.raises(DataError, match=r"truncated: the archive ends after 2 lines"):
        read_matrix(tmp_path / "cut.txt.gz")


def test_pairs_of_an_unknown_size_are_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("5 2\n\n")
    problems = Problems()
    rows, columns = read_pairs(tmp_path / "f.txt", Extent(), Extent(3, "Y.txt has 3 lines"), problems)
    assert (rows.tolist(), columns.tolist(), problems.bad_lines.total()) == ([5], [2], 0)
