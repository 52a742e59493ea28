"""None"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from xmclab.kernels import layers as sublayers


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several slices and two threads for a small matrix."""
    monkeypatch.setattr(sublayers, "CELLS_OF_SLICE", 60)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def kept(drop: sublayers.Drop, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places stay, by numpy."""
    mask = np.uint64(0xFFFFFFFF)
    h = (places.astype(np.uint64) * np.uint64(0x9E3779B9) + np.uint64(drop.low)) & mask
    h = ((h ^ (h >> np.uint64(17))) * np.uint64(0xED5AD4BB) + np.uint64(drop.high)) & mask
    h = ((h ^ (h >> np.uint64(11))) * np.uint64(0xAC4C1B51)) & mask
    h = ((h ^ (h >> np.uint64(15))) * np.uint64(0x31848BAB)) & mask
    return (h ^ (h >> np.uint64(14))) >= np.uint64(drop.below)


def factors(drop: sublayers.Drop, *shape: int, start: int = 0) -> Tensor:
    """What dropout multiplies by, in float64."""
    places = start + np.arange(math.prod(shape)).reshape(shape)
    return torch.from_numpy(kept(drop, places) * float(drop.scale))


def make_drop(rate: float, seed: int = 7) -> sublayers.Drop:
    torch.manual_seed(seed)
    return sublayers.Drop.draw(rate)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_draws_look_independent(rate: float) -> None:
    rows, columns = 1000, 384
    low = make_drop(rate, seed=1)
    flipped = [low._replace(low=low.low ^ np.uint32(1 << bit)) for bit in (0, 7, 31)]
    flipped += [low._replace(high=low.high ^ np.uint32(1 << bit)) for bit in (0, 7, 31)]
    places = np.arange(rows * columns).reshape(rows, columns)
    first = kept(low, places)
    sigma = math.sqrt(rate * (1 - rate))
    standard = (first - (1 - rate)) / sigma
    assert abs(standard.mean()) < 4 / math.sqrt(first.size)
    assert np.abs(standard.mean(axis=0)).max() < 5 / math.sqrt(rows)
    assert np.abs(standard.mean(axis=1)).max() < 5 / math.sqrt(columns)
    assert standard.mean(axis=0).std() < 1.2 / math.sqrt(rows)
    others = [np.roll(standard, lag, axis) for axis in (0, 1) for lag in (1, 2, 3, 8, 64)]
    others += [(kept(drop, places) - (1 - rate)) / sigma for drop in [*flipped, make_drop(rate, seed=2)]]
    others += [(kept(low, places + 2**shift) - (1 - rate)) / sigma for shift in (20, 26, 31)]
    for other in others:
        assert abs((standard * other).mean()) < 5 / math.sqrt(first.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_scales_what_it_keeps_and_stores_nothing(rate: float) -> None:
    module, x_TD = nn.Dropout(rate), torch.randn(30, 11, requires_grad=True)
    stored: list[Tensor] = []
    torch.manual_seed(7)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: stored.append(x), lambda x: x):
        y_TD = sublayers.dropout(x_TD, module)
    expected = factors(make_drop(rate), 30, 11).float()
    assert 0 < expected.eq(0).sum() < expected.numel()
    torch.testing.assert_close(y_TD, x_TD * expected)
    grad_TD = torch.randn(11, 30).T
    torch.testing.assert_close(torch.autograd.grad(y_TD, x_TD, grad_TD)[0], grad_TD * expected)
    assert not stored
    assert sublayers.dropout(x_TD, module.eval()) is x_TD


def test_gelu_and_its_slope() -> None:
    u_TU = torch.linspace(-12, 12, 40_001).reshape(-1, 1)
    exact = u_TU.double().requires_grad_()
    value = F.gelu(exact)
    (slope,) = torch.autograd.grad(value.sum(), exact)
    found = sublayers.Gelu().forward(u_TU, torch.zeros(1))
    torch.testing.assert_close(found.double(), value.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(u_TU.double(), slope, rtol=0, atol=3e-7)


def make_weights(width: int, inner: int, first: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {"first_UD": (first, width), "first_bias_U": (first,), "second_DA": (width, inner)}
    shapes |= {"second_bias_D": (width,), "gain_D": (width,), "shift_D": (width,)}
    return {name: (0.4 * torch.randn(shape)).requires_grad_() for name, shape in shapes.items()}


def run_sublayer(weights: dict[str, Tensor], inner: Any, drop: sublayers.Drop, x_TD: Tensor) -> list[Tensor]:
    y_TD = sublayers.sublayer(x_TD, sublayers.Weights(**weights, eps=1e-6), inner, drop)
    direction = torch.linspace(-1, 2, y_TD.numel()).reshape(y_TD.shape)
    return [y_TD, *torch.autograd.grad((y_TD * direction).sum(), [x_TD, *weights.values()])]


def expected_of(
    weights: dict[str, Tensor], inner: Callable[[Tensor], Tensor], drop: sublayers.Drop, x_TD: Tensor
) -> list[Tensor]:
    """The same in float64 by autograd."""
    w = {name: weight.detach().double().requires_grad_() for name, weight in weights.items()}
    x = x_TD.detach().double().requires_grad_()
    a = inner(x @ w["first_UD"].T + w["first_bias_U"])
    h = (a @ w["second_DA"].T + w["second_bias_D"]) * factors(drop, *x.shape)
    y = F.layer_norm(x + h, x.shape[1:], w["gain_D"], w["shift_D"], 1e-6)
    direction = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape)
    return [y, *torch.autograd.grad((y * direction).sum(), [x, *w.values()])]


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = b.abs().max()
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_feed_forward_with_its_draws(rate: float) -> None:
    weights, drop = make_weights(10, 24, 24), make_drop(rate)
    x_TD = torch.randn(33, 10, requires_grad=True)
    assert_near(run_sublayer(weights, sublayers.Gelu(), drop, x_TD), expected_of(weights, F.gelu, drop, x_TD))


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention_with_its_draws(rate: float) -> None:
    lengths, heads, depth = [0, 1, 2, 2, 5, 5, 9, 12], 2, 5
    offsets = np.cumsum([0, *lengths])
    drop, inner_drop = make_drop(rate), make_drop(rate, seed=8)
    weights = make_weights(10, 10, 30)
    x_TD = torch.randn(sum(lengths), 10, requires_grad=True)

    def attend(u_TU: Tensor) -> Tensor:
        mixed = []
        for begin, end in pairwise(offsets):
            q, k, v = u_TU[begin:end].unflatten(1, (3, heads, depth)).permute(1, 2, 0, 3)
            w = torch.softmax(q @ k.transpose(1, 2) / depth**0.5, dim=-1)
            w = w * factors(inner_drop, *w.shape, start=int(begin) * heads * max(lengths))
            mixed.append((w @ v).transpose(0, 1).flatten(1))
        return torch.cat(mixed)

    inner = sublayers.Attention(offsets, max(lengths), heads, inner_drop)
    assert_near(run_sublayer(weights, inner, drop, x_TD), expected_of(weights, attend, drop, x_TD))
