"""Labels as extra training queries, with themselves as targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from xmclab.data.validation import open_with_validation
from xmclab.runs.run import run


def test_every_label_is_a_query_with_itself_as_its_target(small_config: Callable[..., Any]) -> None:
    plain = open_with_validation(small_config())
    opened = open_with_validation(small_config("transform=labels_as_queries"))
    data, train = opened.training, opened.training.train
    rows, labels = len(plain.training.train), data.num_labels
    assert len(train) == rows + labels
    assert list(train.texts) == [*plain.training.train.texts, *data.label_texts]
    assert list(train.names) == [*plain.training.train.names, *data.label_names]
    assert (train.targets_NL[:rows] != plain.training.train.targets_NL).nnz == 0
    assert np.array_equal(train.targets_NL[rows:].toarray(), np.eye(labels, dtype=np.float32))
    assert (train.filter_NL[:rows] != plain.training.train.filter_NL).nnz == train.filter_NL[rows:].nnz == 0
    assert opened.whole.train.texts == plain.whole.train.texts


def test_a_run_measures_the_same_queries_by_the_same_frequencies(
    small_run: Path, small_config: Callable[..., Any], tmp_path: Path, capsys: Any
) -> None:
    result = run(small_config("epochs=1", "transform=labels_as_queries"), tmp_path / "out")
    assert "transform=labels_as_queries: 2184 training queries, made from 1262" in capsys.readouterr().err
    assert result.document["data"] == {**result.document["data"], "train": 1262, "test": 399, "labels": 922}
    assert result.document["config"]["transform"] == {"name": "labels_as_queries"}


def test_labels_of_the_same_text_are_spared_as_negatives_of_label_queries_too(
    small_config: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "lbl.json").write_text('{"title": "plum"}\n{"title": "pear"}\n{"title": "plum"}\n')
    for name in ("trn.json", "tst.json"):
        (tmp_path / name).write_text('{"title": "a pear", "target_ind": [1]}\n{"title": "fruit", "target_ind": [0]}\n')
    words = f"data={tmp_path}", "transform=labels_as_queries", "data.merge_same_text=true"
    train = open_with_validation(small_config(*words)).training.train
    assert train.filter_NL.toarray().astype(bool).tolist() == [
        [False, False, False],
        [False, False, True],
        [False, False, True],
        [False, False, False],
        [True, False, False],
    ]


def test_negatives_from_a_file_stay_those_of_the_real_queries(small_config: Callable[..., Any], tmp_path: Path) -> None:
    whole = open_with_validation(small_config()).whole
    rows, labels = whole.train.targets_NL.shape
    listed = sp.csr_array((np.ones(rows), (np.arange(rows), np.arange(rows) % labels)), shape=(rows, labels))
    sp.save_npz(tmp_path / "listed.npz", listed)
    chosen = ["transform=labels_as_queries", "miner=file", f"miner.file={tmp_path / 'listed.npz'}"]
    found = open_with_validation(small_config(*chosen)).training.train.candidates_NL
    assert found is not None
    assert found.shape == (rows + labels, labels)
    assert (found[:rows].indices == np.arange(rows) % labels).all()
    assert found[rows:].nnz == 0
