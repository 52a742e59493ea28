"""Predictions of any program: the same ranking from every format, and what is wrong with a file, by line or row."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xmclab.data.sparse import read_matrix
from xmclab.errors import DataError
from xmclab.system.messages import kept
from xmclab_datatools.rankings import read_ranking


def as_text(matrix: sp.csr_array) -> str:
    rows = []
    for row in range(matrix.shape[0]):
        entries = range(matrix.indptr[row], matrix.indptr[row + 1])
        rows.append(" ".join(f"{matrix.indices[entry]}:{float(matrix.data[entry])!r}" for entry in entries))
    return "\n".join([f"{matrix.shape[0]} {matrix.shape[1]}", *rows, ""])


def stored(scores: np.ndarray) -> sp.csr_array:
    """A matrix of all numbers, zeros among them."""
    rows, columns = np.nonzero(~np.isnan(scores))
    return sp.csr_array((scores[rows, columns], (rows, columns)), shape=scores.shape)


def naive(scores: np.ndarray, filtered: np.ndarray, k: int) -> list[list[int]]:
    ranked = []
    for row, hidden in zip(scores, filtered, strict=True):
        labels = [label for label in range(len(row)) if not np.isnan(row[label]) and not hidden[label]]
        ranked.append(sorted(labels, key=lambda label: (-row[label], label))[:k])
    return ranked


def without_padding(ids: np.ndarray) -> list[list[int]]:
    for row in ids:
        count = int((row >= 0).sum())
        assert (row[:count] >= 0).all()  # -1 comes last
    return [[label for label in row if label >= 0] for row in ids.tolist()]


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.sampled_from([np.nan, -1, 0, 2.5])
    ),
    st.integers(1, 9),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_every_format_gives_the_same_ranking(
    tmp_path_factory: pytest.TempPathFactory, scores: np.ndarray, k: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(seed)
    filtered = rng.random(scores.shape) < 0.3
    matrix = stored(scores)
    (folder / "p.txt").write_text(as_text(matrix))
    (folder / "p.txt.gz").write_bytes(gzip.compress(as_text(matrix).encode()))
    sp.save_npz(folder / "p.npz", matrix)
    labels = rng.permuted(np.tile(np.arange(scores.shape[1]), (len(scores), 1)), axis=1)
    known = ~np.isnan(np.take_along_axis(scores, labels, axis=1))
    indices = np.where(known, labels, -1)
    np.savez(folder / "top.npz", indices=indices, scores=np.take_along_axis(scores, labels, axis=1))
    width = scores.shape[1]
    ordered = [row + [-1] * (width - len(row)) for row in naive(scores, np.zeros_like(filtered), width)]
    np.save(folder / "top.npy", np.array(ordered, dtype=np.int32))
    for name in ("p.txt", "p.txt.gz", "p.npz", "top.npz", "top.npy"):
        plain = read_ranking(folder / name, scores.shape, k)
        assert without_padding(plain.ids_NK) == naive(scores, np.zeros_like(filtered), k), name
        kept = read_ranking(folder / name, scores.shape, k, sp.csr_array(filtered))
        assert without_padding(kept.ids_NK) == naive(scores, filtered, k), name


def test_close_scores_keep_their_order(tmp_path: Path) -> None:
    """Two scores that are one number in float32."""
    np.savez(tmp_path / "top.npz", indices=np.array([[0, 1]]), scores=np.array([[0.5, 0.5 + 1e-12]]))
    assert read_ranking(tmp_path / "top.npz", (1, 2), 2).ids_NK.tolist() == [[1, 0]]


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "out of range": ({"indices": [[0, 1], [2, 5]]}, r"1 of 2 rows have an index out of range .*\(row 1\)"),
    "negative": ({"indices": [[0, -2], [2, 1]]}, r"out of range .*\(row 0\)"),
    "twice": ({"indices": [[0, 1], [2, 2]]}, r"a label twice \(row 1\)"),
    "no number": (
        {"indices": [[0, 1], [2, -1]], "scores": [[1, np.nan], [1, np.nan]]},
        r"1 of 2 .*not a number \(row 0\)",
    ),
    "other shape": ({"indices": [[0, 1], [2, 3]], "scores": [[1.0], [2.0]]}, r"`scores` is \[2, 1\]"),
    "no scores": ({"indices": [[0, 1], [2, 3]], "scores": [["a", "b"], ["c", "d"]]}, "`scores` is"),
    "floats": ({"indices": [[0.0, 1.0], [2.0, 3.0]]}, "of float64, not label indices"),
    "flat": ({"indices": [0, 1]}, r"an array \[2\]"),
    "rows": ({"indices": [[0, 1]]}, "has 1 rows, but the truth has 2"),
    "other names": ({"ids": [[0, 1], [2, 3]]}, "contains ids"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(tmp_path: Path, case: str) -> None:
    arrays, message = ARRAYS[case]
    np.savez(tmp_path / "top.npz", **{name: np.array(value) for name, value in arrays.items()})
    with pytest.raises(DataError, match=message):
        read_ranking(tmp_path / "top.npz", (2, 4), 5)


def test_a_matrix_with_a_label_twice_is_no_prediction(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("2 4\n0:1\n3:1 1:2 3:4\n")
    with pytest.raises(DataError, match=r"a label twice \(row 1\)"):
        read_ranking(tmp_path / "p.txt", (2, 4), 5)


def test_shapes_must_agree(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("1 4\n0:1\n")
    with pytest.raises(DataError, match="has 1 rows, but the truth has 2"):
        read_ranking(tmp_path / "p.txt", (2, 4), 5)
    with pytest.raises(DataError, match="has 4 labels, but the truth has 9"):
        read_matrix(tmp_path / "p.txt", labels=9)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    np.save(tmp_path / "p.npy", np.array([Harmful()], dtype=object))
    np.savez(tmp_path / "p.npz", indices=np.array([Harmful()], dtype=object))
    np.savez(tmp_path / "m.npz", format=np.array([Harmful()], dtype=object))
    for name in ("p.npy", "p.npz", "m.npz"):
        with pytest.raises(DataError):
            read_ranking(tmp_path / name, (1, 1), 1)
    with pytest.raises(DataError):
        read_matrix(tmp_path / "m.npz")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["m.npz", "top.npz", "top.npy", "m.txt.gz"])
def test_truncated_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(DataError, match="cannot be read"):
        read_ranking(path, (30, 30), 5)
    indices = np.tile(np.arange(30), (30, 1))
    if name == "m.npz":
        sp.save_npz(path, sp.csr_array(np.random.default_rng(0).random((30, 30))))
    elif name == "top.npz":
        np.savez(path, indices=indices)
    elif name == "top.npy":
        np.save(path, indices)
    else:
        path.write_bytes(gzip.compress(as_text(sp.csr_array(np.random.default_rng(0).random((30, 30)))).encode()))
    read_ranking(path, (30, 30), 5)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=name):
        read_ranking(path, (30, 30), 5)


@pytest.mark.parametrize(("listed", "k", "noted"), [(3, 3, 1), (3, 2, 0), (4, 3, 0), (6, 6, 0)])
def test_filtered_labels_that_take_places_are_noted(tmp_path: Path, listed: int, k: int, noted: int) -> None:
    """Unless enough others are listed, or there are no others."""
    np.save(tmp_path / "best.npy", np.tile(np.arange(listed), (2, 1)))
    hidden = sp.csr_array(([1.0], ([1], [0])), shape=(2, 6))
    with kept("xmclab") as records:
        read_ranking(tmp_path / "best.npy", (2, 6), k, hidden)
    told = [record.getMessage() for record in records]
    reason = "1 of 2 queries list filtered labels, which leaves them fewer than 3"
    remedy = "a run ranks 1 more for them: predict as many more"
    assert told == [f"{tmp_path / 'best.npy'}: {reason}; {remedy}"] * noted
