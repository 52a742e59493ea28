"""Holding out test queries."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from xmclab.data import open_dataset
from xmclab.data.holdout import drawn, filter_answers, key_of, same_text
from xmclab.host.registry import default_registry


def keys(texts: list[str], seed: int) -> np.ndarray:
    return np.array([key_of(text, seed) for text in texts], dtype=np.uint64)


@given(st.lists(st.text(max_size=2)), st.floats(0.01, 0.99), st.integers(0, 9))
def test_equal_texts_stay_together_and_the_share_is_met(texts: list[str], share: float, seed: int) -> None:
    chosen = drawn(keys(texts, seed), share)
    assert len({(text, bool(one)) for text, one in zip(texts, chosen, strict=True)}) == len(set(texts))
    if texts:
        largest = max(map(texts.count, texts))
        wanted = max(round(share * len(texts)), 1)
        assert wanted <= chosen.sum() < wanted + largest


def test_the_seed_decides() -> None:
    texts = [str(number) for number in range(50)]
    assert drawn(keys(texts, 3), 0.2).sum() == 10
    assert not np.array_equal(drawn(keys(texts, 3), 0.2), drawn(keys(texts, 4), 0.2))


def test_another_process_has_the_same_keys() -> None:
    code = "from xmclab.data.holdout import key_of; print(key_of('é', 3))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(there.stdout) == key_of("é", 3)


@pytest.mark.parametrize("name", ["tiny", "debian"])
def test_the_filter_files_of_the_embedded_sets_come_out_the_same(name: str) -> None:
    data = open_dataset(name, "title", default_registry())
    bare = dataclasses.replace(data.test, filter_NL=sp.csr_array(data.test.filter_NL.shape, dtype=np.float32))
    found = filter_answers(data.train, bare, data.label_texts)
    assert (same_text(data.train.texts, data.label_texts) != data.train.filter_NL).nnz == 0
    assert (found.filter_NL != data.test.filter_NL).nnz == 0
    assert (found.targets_NL != data.test.targets_NL).nnz == 0
