"""Holding out test queries."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from xmclab.data.holdout import drawn

CODE = "from xmclab.data.holdout import drawn; print(drawn([str(i) for i in range(50)], 0.2, 3).nonzero()[0].tolist())"


@given(st.lists(st.text(max_size=2)), st.floats(0.01, 0.99), st.integers(0, 9))
def test_equal_texts_stay_together_and_the_share_is_met(texts: list[str], share: float, seed: int) -> None:
    chosen = drawn(texts, share, seed)
    assert len({(text, bool(one)) for text, one in zip(texts, chosen, strict=True)}) == len(set(texts))
    if texts:
        largest = max(map(texts.count, texts))
        wanted = max(round(share * len(texts)), 1)
        assert wanted <= chosen.sum() < wanted + largest


def test_the_seed_decides() -> None:
    texts = [str(number) for number in range(50)]
    assert drawn(texts, 0.2, 3).sum() == 10
    assert not np.array_equal(drawn(texts, 0.2, 3), drawn(texts, 0.2, 4))


def test_another_process_draws_the_same() -> None:
    here = drawn([str(number) for number in range(50)], 0.2, 3).nonzero()[0].tolist()
    there = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)
