"""Keyed dropout: a fair draw for every element, which depends on its key alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from xmclab.kernels import dispatch
from xmclab.model.dropout import (
    Keyed,
    KeyedDropout,
    current,
    draws,
    drop,
    drop_items,
    key_dropouts,
    keyed,
    place_keys,
    text_keys,
)

TEXTS, WIDTH = 2000, 64
SIGMAS = 5.0


def kept(seed: int = 0, site: int = 1, rate: float = 0.3, first: int = 0) -> Tensor:
    """1.0 where an element of a matrix of texts and columns is kept."""
    key_B = text_keys(seed, torch.arange(first, first + TEXTS))
    return (drop(torch.ones(TEXTS, WIDTH), key_B, site, rate) > 0).double()


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate_in_all_in_rows_and_in_columns(rate: float) -> None:
    drawn = 1 - kept(rate=rate)
    for mean, size in ((drawn.mean()[None], drawn.numel()), (drawn.mean(0), TEXTS), (drawn.mean(1), WIDTH)):
        z = (mean - rate) / (rate * (1 - rate) / size) ** 0.5
        assert z.abs().max() < SIGMAS + 2 * (len(z) > 1)
        if len(z) > WIDTH:  # the spread of rows is that of independent draws
            assert z.square().mean().item() == pytest.approx(1, abs=SIGMAS * (2 / len(z)) ** 0.5)


def test_the_mean_stays() -> None:
    x = drop(torch.full((TEXTS, WIDTH), 2.0, dtype=torch.float64), text_keys(0, torch.arange(TEXTS)), 1, 0.3)
    assert x.unique().tolist() == [0.0, 2.0 / 0.7]
    assert x.mean().item() == pytest.approx(2.0, abs=0.02)


def correlation(a: Tensor, b: Tensor, rate: float = 0.3) -> float:
    """In standard deviations of independent draws."""
    a, b = (a - 1 + rate).flatten(), (b - 1 + rate).flatten()
    return float((a * b).mean() / (rate * (1 - rate)) * len(a) ** 0.5)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "step": lambda: kept(seed=1),
    "far seed": lambda: kept(seed=-(1 << 62)),
    "site": lambda: kept(site=2),
    "far site": lambda: kept(site=1 << 62),
    "texts": lambda: kept(first=TEXTS),
    "next text": lambda: kept(first=1),
    "next column": lambda: kept().roll(1, dims=1),
    "far column": lambda: kept().roll(WIDTH // 2, dims=1),
}


@pytest.mark.parametrize("other", OTHERS)
def test_draws_are_independent(other: str) -> None:
    assert abs(correlation(kept(), OTHERS[other]())) < SIGMAS


def test_columns_are_independent_of_each_other() -> None:
    centred = (kept() - 0.7) / (0.3 * 0.7 * TEXTS) ** 0.5
    products = (centred.T @ centred - torch.eye(WIDTH)) * TEXTS**0.5
    products.fill_diagonal_(0)
    assert products.abs().max() < SIGMAS + 1


def test_any_bit_of_a_key_or_a_number_turns_half_of_the_draws() -> None:
    # Strides are odd, and odd numbers keep all of their bits.
    key, number = text_keys(3, torch.arange(4000)), torch.arange(1, 8001, 2, dtype=torch.int32)
    before = draws(key, number)
    for bit in set(range(64)) - {32}:
        changed = [draws(key ^ (1 << bit if bit < 63 else -(1 << 63)), number)]
        changed += [draws(key, number ^ (1 << bit))] if bit < 31 else []
        for after in changed:
            assert ((after > 0) != (before > 0)).double().mean().item() == pytest.approx(0.5, abs=0.05)
    single = [text_keys(0, torch.arange(4000) ^ (1 << bit)) for bit in range(62)]
    assert all(((keys > 0) != (text_keys(0, torch.arange(4000)) > 0)).double().mean() > 0.45 for keys in single)


def test_heads_draw_apart_and_padding_changes_nothing() -> None:
    """[B, H, T, C] by tokens: a longer padding, or other texts beside, and the same numbers."""
    key_BT = place_keys(text_keys(1, torch.arange(5))[:, None], torch.arange(9))
    wide = drop(torch.ones(5, 4, 9, 9), key_BT, 7, 0.5)
    narrow = drop(torch.ones(2, 4, 6, 6), key_BT[3:, :6], 7, 0.5)
    assert torch.equal(wide[3:, :, :6, :6], narrow)
    for a, b in itertools.combinations(range(4), 2):
        assert (wide[:, a] != wide[:, b]).double().mean().item() == pytest.approx(0.5, abs=0.15)
    states = drop(torch.ones(5, 9, 16), key_BT, 7, 0.5)
    packed = torch.cat([key_BT[2, :4], key_BT[0, :9]])[None]
    assert torch.equal(drop(torch.ones(1, 13, 16), packed, 7, 0.5)[0], torch.cat([states[2, :4], states[0]]))


def test_lists_draw_by_text_and_number() -> None:
    key_B, x_T = text_keys(0, torch.arange(3)), torch.ones(6000)
    offset_B, number_T = torch.tensor([0, 1000, 5000], dtype=torch.int32), torch.arange(6000, dtype=torch.int32)
    found = drop_items(x_T, key_B, offset_B, number_T, 1, 0.2)
    assert (found == 0).double().mean().item() == pytest.approx(0.2, abs=0.03)
    alone = drop_items(x_T[:4000], key_B[1:2], offset_B[:1], number_T[1000:5000], 1, 0.2)
    assert torch.equal(found[1000:5000], alone)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_is_dropped_alike(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "WORTH_LOADING", 0 if compiled else 1 << 62)
    key_B = text_keys(0, torch.arange(4))
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: drop(x, key_B, 3, 0.4), x)
    (gradient,) = torch.autograd.grad(drop(x, key_B, 3, 0.4).sum(), x)
    assert torch.equal(gradient, drop(torch.ones_like(x), key_B, 3, 0.4))


@pytest.mark.parametrize("shape", [(6, 8), (6, 5, 8), (6, 3, 5, 5), (6, 2, 3, 4, 5)])
def test_a_module_draws_by_the_texts_in_its_first_dimension(shape: tuple[int, ...]) -> None:
    """In any shape, in any order of the texts, in any chunks; padding any dimension changes nothing."""
    module, key_B, x = KeyedDropout(0.5), text_keys(0, torch.arange(6)), torch.ones(shape)
    with keyed(key_B):
        whole = module(x)
    order = torch.tensor([4, 0, 5])
    with keyed(key_B[order]):
        assert torch.equal(module(x[order]), whole[order])
    padded = torch.ones(6, *(size + 2 for size in shape[1:]))
    with keyed(key_B):
        assert torch.equal(module(padded)[tuple(slice(0, size) for size in shape)], whole)
    assert 0.2 < (whole == 0).double().mean() < 0.8


def test_a_module_that_is_called_again_draws_anew_and_repeats_itself_for_the_same_texts() -> None:
    module, key_B, x = KeyedDropout(0.5), text_keys(0, torch.arange(6)), torch.ones(6, 32)
    with keyed(key_B):
        first = [module(x) for _ in range(3)]
    with keyed(key_B):
        again = [module(x) for _ in range(3)]
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_without_keys_or_for_other_shapes_a_module_is_torchs_own() -> None:
    module, x = KeyedDropout(0.5), torch.ones(6, 32)

    def by_generator(call: Callable[[], Tensor]) -> bool:
        torch.manual_seed(3)
        found = call()
        torch.manual_seed(3)
        return torch.equal(found, nn.functional.dropout(x, 0.5))

    assert by_generator(lambda: module(x))
    with keyed(text_keys(0, torch.arange(6))):
        assert not by_generator(lambda: module(x))
        with keyed(None):
            assert by_generator(lambda: module(x))
    with keyed(text_keys(0, torch.arange(7))):
        assert by_generator(lambda: module(x))
    with keyed(place_keys(text_keys(0, torch.arange(6))[:, None], torch.arange(31))):
        assert by_generator(lambda: module(x))


def test_outside_training_and_at_rate_0_nothing_is_drawn() -> None:
    x, state = torch.ones(6, 32), torch.get_rng_state()
    with keyed(text_keys(0, torch.arange(6))):
        assert KeyedDropout(0.5).eval()(x) is x
        assert torch.equal(KeyedDropout(0.0)(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_keys_end_with_their_block() -> None:
    seen: list[Keyed | None] = []

    def fail() -> None:
        seen.append(current())
        raise KeyError

    with pytest.raises(KeyError), keyed(text_keys(0, torch.arange(6))):
        fail()
    assert isinstance(seen[0], Keyed)
    assert current() is None


def test_every_dropout_of_a_model_becomes_keyed_with_a_site_of_its_own() -> None:
    shared = nn.Dropout(0.4)
    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), shared), shared, nn.Dropout2d(0.3)).eval()
    key_dropouts(model)
    found = [module for module in model.modules() if isinstance(module, KeyedDropout)]
    assert [module.p for module in found] == [0.1, 0.4]
    assert len({module.site for module in found}) == 2
    assert model[1][1] is model[2]
    assert type(model[3]) is nn.Dropout2d
    assert not any(module.training for module in found)
    sites = [module.site for module in found]
    key_dropouts(model)
    assert [module.site for module in found] == sites


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_drops_the_same_elements(dtype: torch.dtype) -> None:
    key_B, x = text_keys(0, torch.arange(6)), torch.ones(6, 32)
    low = drop(x.to(dtype), key_B, 1, 0.25)
    assert low.dtype == dtype
    assert torch.equal(low, drop(x, key_B, 1, 0.25).to(dtype))
