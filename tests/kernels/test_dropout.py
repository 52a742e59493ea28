"""Compiled dropout drops what the plain one does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from xmclab.kernels import dispatch
from xmclab.kernels import dropout as loops
from xmclab.model import dropout
from xmclab.model.dropout import drop, drop_items, place_keys, text_keys

KEY_B = text_keys(5, torch.arange(6))
KEY_BT = place_keys(KEY_B[:, None], torch.arange(7))
NEGATIVE, LARGE = -(1 << 62) - 12345, (1 << 63) - 1


def both(call: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """(plain, compiled) results."""
    results = []
    for worth in (1 << 62, 0):
        monkeypatch.setattr(dispatch, "WORTH_LOADING", worth)
        results.append(call())
    return results[0], results[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("worth", [1 << 62, 1])
@pytest.mark.parametrize(
    ("shape", "key"),
    [
        ((6, 33), KEY_B),
        ((6, 7, 64), KEY_BT),
        ((1, 42, 5), KEY_BT.view(1, 42)),
        ((6, 4, 7, 7), KEY_BT),
        ((6, 1, 7, 9), KEY_BT),
        ((6, 3, 7, 2), KEY_BT[:, None].expand(6, 3, 7)),
        ((0, 7, 3), KEY_BT[:0]),
        ((6, 7, 0), KEY_BT),
    ],
)
@pytest.mark.parametrize(("site", "rate"), [(0, 0.1), (NEGATIVE, 0.5), (LARGE, 0.999)])
def test_rows(
    shape: tuple[int, ...],
    key: torch.Tensor,
    site: int,
    rate: float,
    dtype: torch.dtype,
    worth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "WORTH_A_THREAD", worth)
    monkeypatch.setattr(dropout, "PIECE", min(worth, 50))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    plain, compiled = both(lambda: drop(x, key, site, rate), monkeypatch)
    assert torch.equal(plain, compiled)
    assert plain.dtype == dtype
    transposed = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert torch.equal(drop(transposed, key, site, rate), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offsets", [[0, 3, 3, 20, 40, 40], [0, 0, 0, 0, 0, 0], [0, 40, 40, 40, 40, 40]])
def test_lists(offsets: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x_T = torch.randn(40, dtype=dtype, generator=torch.Generator().manual_seed(0))
    number_T = torch.arange(40, dtype=torch.int32) * 997
    offset_B = torch.tensor(offsets, dtype=torch.int32)
    plain, compiled = both(lambda: drop_items(x_T, KEY_B, offset_B, number_T, NEGATIVE, 0.4), monkeypatch)
    assert torch.equal(plain, compiled)


def test_numbers_that_are_not_finite_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf]]).expand(6, 3)
    for y in both(lambda: drop(x, KEY_B, 1, 0.5), monkeypatch):
        assert not y.isfinite().any()
