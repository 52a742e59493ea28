"""Compiled halves of layers are torch's modules: values, gradients, and dropout by draws that a seed gives again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tests.encoders.test_packed import PADDING, make_network, make_tokens, packed_states, padded_states
from xmclab import accelerator
from xmclab.api import Ragged
from xmclab.encoders import pack_loops, packed, sublayers

LENGTHS = [5, 2, 9, 5, 1, 2, 0, 12]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled loops, several slices and two threads for a small network."""
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 1)
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
    lengths, heads, depth = sorted(LENGTHS), 2, 5
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


def float_network(family: str) -> Any:
    return make_network(family).float()


@pytest.mark.parametrize("family", sorted(packed.LAYERS))
@pytest.mark.parametrize("lengths", [LENGTHS, [*LENGTHS, packed.SHORT + 6]], ids=["short", "long"])
def test_states_and_gradients_equal_those_of_the_padded_network(family: str, lengths: list[int]) -> None:
    network, tokens = float_network(family), make_tokens(lengths)
    found = torch.cat(packed_states(network, tokens))
    direction = torch.linspace(-1, 1, found.numel()).reshape(found.shape)
    (found * direction).sum().backward()
    exact = make_network(family)
    expected = torch.cat(padded_states(exact, tokens))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    (expected * direction).sum().backward()
    largest = max(p.grad.abs().max() for p in exact.parameters() if p.grad is not None)
    for (name, p), q in zip(network.named_parameters(), exact.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            scale = q.grad.abs().max().clamp(min=0.1 * largest)
            torch.testing.assert_close(p.grad.double() / scale, q.grad / scale, rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize("family", sorted(packed.LAYERS))
def test_dropout_is_applied_where_the_network_applies_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = float_network(family).train(), make_tokens([4, 4])
    no_drop, rates = make_drop(0.0), list[float]()

    def record(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        rates.append(p)
        return x

    def record_draw(rate: float) -> sublayers.Drop:
        rates.extend([rate] if rate else [])
        return no_drop

    monkeypatch.setattr(F, "dropout", record)
    monkeypatch.setattr(sublayers.Drop, "draw", record_draw)
    padded_states(network, tokens)
    expected, rates[:] = list(rates), []
    packed_states(network, tokens)
    assert rates == expected
    assert set(rates) == {0.2, 0.3}


def outputs(network: Any, seed: int) -> list[Tensor]:
    """The vectors of a chunk, and the gradients."""
    torch.manual_seed(seed)
    network.zero_grad()
    x_BD = packed.encode(network, packed.pack(make_tokens(LENGTHS)), "mean")
    x_BD.square().sum().backward()
    return [x_BD.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_seed_gives_the_same_again_without_a_graph_and_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    network = float_network("bert").train()
    first = outputs(network, 1)
    assert same(outputs(network, 1), first)
    assert not torch.allclose(outputs(network, 2)[0], first[0])
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(packed.encode(network, packed.pack(make_tokens(LENGTHS)), "mean"), first[0])
    # torch's own products stay in two threads: their sums may differ by rounding
    monkeypatch.setattr(sublayers, "in_threads", lambda work, items: [work(item) for item in items])
    assert same(outputs(network, 1), first)
    network.eval()
    assert same(outputs(network, 1), outputs(network, 2))


def test_evaluation_draws_nothing() -> None:
    network = float_network("bert")
    before = torch.get_rng_state()
    packed_states(network, make_tokens(LENGTHS))
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_weights_get_no_gradient_and_the_others_the_same() -> None:
    network = float_network("bert")
    expected = {name: p.grad for name, p in network.named_parameters() if outputs(network, 0) and p.grad is not None}
    for part in (network.embeddings, network.encoder.layer[0]):
        part.requires_grad_(False)
    network.encoder.layer[1].output.dense.weight.requires_grad_(False)
    outputs(network, 0)
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert found.keys() == {
        name
        for name in expected
        if name.startswith("encoder.layer.1") and name != "encoder.layer.1.output.dense.weight"
    }
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


class Doubled(nn.Linear):
    """As adapters are: a layer in the place of another."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_modules_that_are_not_torchs_own_or_have_hooks_are_called() -> None:
    network = float_network("bert")
    layer, other = network.encoder.layer
    calls: list[str] = []
    layer.output.LayerNorm.register_forward_hook(lambda *_: calls.append("norm"))
    layer.attention.self.query.register_full_backward_hook(lambda *_: calls.append("query"))
    other.attention.output.dense.__class__ = Doubled
    other.intermediate.intermediate_act_fn = nn.ReLU()
    tokens = make_tokens(LENGTHS[:6])
    found = torch.cat(packed_states(network, tokens))
    torch.testing.assert_close(found, torch.cat(padded_states(network, tokens)), rtol=0, atol=1e-5)
    assert calls == ["norm", "norm"]
    found.sum().backward()
    assert "query" in calls


def test_without_numba_or_in_lower_precision_torch_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x_TD = torch.zeros(4, 4)
    assert accelerator.sublayers_for(x_TD) is sublayers
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert accelerator.sublayers_for(x_TD) is None
    assert accelerator.sublayers_for(x_TD.double()) is None
    assert accelerator.sublayers_for(x_TD.to("meta")) is None
    network = float_network("bert")
    compiled = outputs(network, 0)[0]
    monkeypatch.setattr(accelerator, "numba_works", lambda: False)
    monkeypatch.setattr(sublayers, "sublayer", None)
    monkeypatch.setattr(pack_loops, "arrange", None)
    torch.testing.assert_close(outputs(network, 0)[0], compiled, rtol=0, atol=1e-5)
    assert not torch.allclose(outputs(network.train(), 0)[0], outputs(network, 1)[0])


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=9), st.sampled_from([None, PADDING]))
def test_packing_is_that_of_numpy(texts: list[list[int]], padding: int | None) -> None:
    ids = np.array(list(chain.from_iterable(texts)), np.int32)
    tokens = Ragged(ids, np.cumsum([0, *map(len, texts)], dtype=np.int64))
    *expected, counts = packed._arrange(tokens, padding)
    *found, found_counts = pack_loops.arrange(tokens, padding)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found_counts[: len(counts)], counts)
    assert not found_counts[len(counts) :].any()
