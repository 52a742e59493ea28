"""Batches are prepared ahead, in order."""

from __future__ import annotations

import pytest

from xmclab.training.batches import ahead


def test_ahead_keeps_order_and_passes_errors_on() -> None:
    assert list(ahead(lambda x: x * x, range(5))) == [0, 1, 4, 9, 16]

    def fail(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    results = ahead(fail, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
