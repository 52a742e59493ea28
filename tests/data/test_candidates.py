"""Files of negatives: each format in its own words, rows that follow the training queries, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data.candidates import candidates_file, with_candidates
from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError, DataError
from xmclab.host.config import Config

LISTED = [[2, 0], [], [1], [3, 2]]


@pytest.fixture(scope="module")
def data() -> Dataset:
    none = sp.csr_array((4, 5), dtype=np.float32)
    names = ["first", "second", "third", "same"]
    train = Split(names, names, none, none)
    return Dataset("small", train, train, list("abcde"), ["a", "b", "c", "d", "d"], "")


def lists(data: Dataset) -> list[list[int]]:
    listed = data.train.candidates_NL
    assert listed is not None
    return [sorted(listed.indices[a:b].tolist()) for a, b in zip(listed.indptr, listed.indptr[1:], strict=False)]


def written(folder: Path, kind: str) -> Path:
    file = folder / f"negatives.{kind}"
    if kind == "txt":
        file.write_text("4 5\n2:1.5 0:-3\n\n1:0\n3:1 2:1\n")
    elif kind == "npz":
        rows = [row for row, labels in enumerate(LISTED) for _ in labels]
        columns = [label for labels in LISTED for label in labels]
        sp.save_npz(file, sp.csr_array(sp.coo_array((np.ones(5), (rows, columns)), shape=(4, 5))))
    else:
        lines: list[Any] = [("third", [1]), ("first", ["c"]), ("same", [3, "c"]), ("first", [0])]
        file.write_text("".join(json.dumps({"query": q, "negatives": n}) + "\n" for q, n in lines))
    return file


@pytest.mark.parametrize("kind", ["txt", "npz", "jsonl"])
def test_each_format_lists_the_same(tmp_path: Path, data: Dataset, kind: str) -> None:
    file = written(tmp_path, kind)
    found, fingerprint = with_candidates(data, file)
    assert lists(found) == [sorted(labels) for labels in LISTED]
    assert found.fingerprint == data.fingerprint
    assert data.train.candidates_NL is None
    file.touch()
    assert with_candidates(data, file)[1] == fingerprint
    assert with_candidates(data, None) == (data, "")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "3 5\n1:1\n\n2:1\n", "a.txt: has 3 rows, but small has 4 training queries (a row for each"),
        ("a.txt", "4 6\n1:1\n\n2:1\n\n", "a.txt: has 6 labels, but small has 5 labels"),
        ("a.txt", "4 5\n1:1\n5:1\n2:1\n\n", "a.txt:3: label index 5 is out of range: the header says 5 labels"),
        ("a.txt", "4 5\n1:1\n-1:1\n2:1\n\n", "a.txt:3: label index -1 is out of range"),
        ("a.txt", "4 5\n1:1\n1;1\n2:1\n\n", "a.txt:3: not `label:value`: '1;1'"),
        ("a.txt", "4 5\n1:1\n", "the header says 4 rows, but there are 1"),
        ("a.txt", "1:1\n", "a.txt:1: not a header `rows labels`"),
        ("a.npz", "1:1\n", "a.npz: not a scipy sparse matrix"),
        ("a.jsonl", '{"query": "first", "negatives": [5]}\n', "a.jsonl:1: label index 5 is out of range: small has 5"),
        ("a.jsonl", '\n{"query": "first", "negatives": [-1]}\n', "a.jsonl:2: label index -1 is out of range"),
        ("a.jsonl", '{"query": "first", "negatives": [true]}\n', "no label has this name: 'True'"),
        ("a.jsonl", '{"query": "first", "negatives": ["e"]}\n', "a.jsonl:1: no label has this name: 'e'"),
        ("a.jsonl", '{"query": "first", "negatives": ["d"]}\n', "more than one label has this name: 'd'"),
        ("a.jsonl", '{"query": "fourth", "negatives": []}\n', "no training query has this name: 'fourth'"),
        ("a.jsonl", '{"query": "first"}\n', 'a.jsonl:1: not {"query": ..., "negatives": [...]}'),
        ("a.jsonl", "{\n", "a.jsonl:1: "),
        ("a.npy", "", "use sparse text or a sparse .npz"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, data: Dataset, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        with_candidates(data, tmp_path / name)
    assert message in str(caught.value)


def test_a_matrix_that_would_be_unpickled_is_refused(tmp_path: Path, data: Dataset) -> None:
    np.savez(tmp_path / "a.npz", data=np.array([{}], dtype=object), shape=np.array([4, 5]))
    with pytest.raises(DataError, match="not a scipy sparse matrix"):
        with_candidates(data, tmp_path / "a.npz")


def test_a_name_of_two_queries_is_refused(tmp_path: Path, data: Dataset) -> None:
    train = dataclasses.replace(data.train, names=["x", "x", "y", "z"])
    (tmp_path / "a.jsonl").write_text('{"query": "y", "negatives": [1]}\n{"query": "x", "negatives": [1]}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: more than one training query has this name: 'x'"):
        with_candidates(dataclasses.replace(data, train=train), tmp_path / "a.jsonl")


def test_a_file_is_needed_only_where_negatives_are_drawn(small_config: Callable[..., Config], tmp_path: Path) -> None:
    assert candidates_file(small_config()) is None
    assert candidates_file(small_config("miner=file", "pool.eta=0")) is None
    with pytest.raises(ConfigError, match=r"miner=file: needs a file of negatives \(set miner.file=PATH\)"):
        candidates_file(small_config("miner=file"))
    missing = f"miner.file={tmp_path / 'none.txt'}"
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        candidates_file(small_config("miner=file", missing))


def test_with_validation_queries_keep_their_own_lists(small_config: Callable[..., Config], tmp_path: Path) -> None:
    """A row for each training query as the files have them; those set aside take their rows along."""
    whole = open_with_validation(small_config()).training
    rows = np.arange(len(whole.train))
    one_NL = sp.csr_array(
        (np.ones(len(rows)), rows % whole.num_labels, np.arange(len(rows) + 1)), shape=(len(rows), 922)
    )
    sp.save_npz(tmp_path / "a.npz", one_NL)
    config = small_config("miner=file", f"miner.file={tmp_path / 'a.npz'}", "validate.share=0.2")
    opened = open_with_validation(config)
    label_of = {name: row % whole.num_labels for row, name in enumerate(whole.train.names)}
    assert len(label_of) == len(rows) > len(opened.training.train)
    assert lists(opened.training) == [[label_of[name]] for name in opened.training.train.names]
