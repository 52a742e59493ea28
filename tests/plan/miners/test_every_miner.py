"""What every miner promises: nothing that is excluded, no label twice, and draws by the generator alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Dataset, Keys, Miner, Split, View
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.miners.ann import AnnMiner
from xmclab.plan.miners.bm25 import Bm25Miner
from xmclab.plan.miners.file import FileMiner
from xmclab.plan.miners.none import NoMiner
from xmclab.plan.miners.random import RandomMiner

KEYS = Keys(0)


def ready(miner: Miner, view: View, exclude: sp.csr_array, depth: int) -> Miner:
    """A miner before a step, of texts with a common word and a file that lists all labels, some of them twice."""
    texts = [[f"a common word {n}" for n in range(size)] for size in exclude.shape]
    ones = sp.csr_array(np.ones(exclude.shape))
    listed = sp.csr_array((np.ones(2 * ones.nnz), np.tile(ones.indices, 2), 2 * ones.indptr), shape=ones.shape)
    listed.indices[:] = np.tile(np.arange(exclude.shape[1]), 2 * exclude.shape[0])
    train = Split(texts[0], texts[0], exclude, exclude, listed)
    miner.index = Exact()
    miner.prepare(Dataset("", train, train, texts[1], texts[1], ""), exclude, KEYS)
    miner.refresh(view, exclude, depth, KEYS)
    return miner


@pytest.mark.parametrize("kind", ["none", "random", "ann", "file", "bm25"])
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 8))
def test_nothing_excluded_is_ever_drawn_and_no_label_twice(
    random_case: Callable[..., Any], kind: str, seed: int, n: int
) -> None:
    rng, view, exclude = random_case(seed)
    kinds = {"none": NoMiner, "random": RandomMiner, "ann": AnnMiner, "file": FileMiner, "bm25": Bm25Miner}
    miner: Miner = ready(kinds[kind](), view, exclude, 4)
    rows = rng.permutation(exclude.shape[0])
    drawn = miner.sample(rows, n, exclude, rng)
    assert drawn.shape == (len(rows), 0 if kind == "none" else n)
    assert drawn.dtype == np.int64
    allowed = exclude.shape[1] - exclude.toarray()[rows].sum(axis=1)
    for row, labels, most in zip(rows, drawn, allowed, strict=True):
        real = labels[labels >= 0]
        assert not exclude.toarray()[row, real].any()
        assert len(set(real.tolist())) == len(real)
        if kind != "none":
            assert len(real) == min(n, most, 4 if kind == "ann" else n)


@pytest.mark.parametrize("miner", [RandomMiner(), AnnMiner(), FileMiner(), Bm25Miner()])
def test_draws_are_pure_in_the_generator(miner: Miner, random_case: Callable[..., Any]) -> None:
    _, view, _ = random_case(1)
    exclude = sp.csr_array((len(view.queries_ND), len(view.labels_LD)), dtype=bool)
    ready(miner, view, exclude, 5)
    rows = np.arange(exclude.shape[0])
    one, two, other = (miner.sample(rows, 2, exclude, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
