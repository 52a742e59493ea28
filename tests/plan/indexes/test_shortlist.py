"""Shortlists: the ids of exact search, and doubt wherever a label might be missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from xmclab.plan.indexes import shortlist
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.shortlist import Shortlist


def searched(q_QD: Tensor, z_LD: Tensor, k: int, **options: Any) -> tuple[Tensor, Tensor]:
    index = Exact(**{"shortlist": "float16", "query_block": 7, "label_block": 50, **options})
    index.build(z_LD)
    return index.search(q_QD, k)


def plain(q_QD: Tensor, z_LD: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """In float64, where these vectors have no near ties; equal labels first by id."""
    s_QL = q_QD.double() @ z_LD.double().T
    scores, ids = s_QL.sort(dim=1, descending=True, stable=True)
    return ids[:, :k], scores[:, :k].float()


def unit(rows: int, width: int, seed: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortlists with few more labels than are wanted."""
    monkeypatch.setattr(shortlist, "LEAST", 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_ids_are_those_of_exact_search(k: int, scale: float) -> None:
    q, z = unit(40, 24, 0), scale * unit(900, 24, 1)
    ids, scores = searched(q, z, k)
    expected, expected_scores = plain(q, z, k)
    assert torch.equal(ids, expected)
    torch.testing.assert_close(scores, expected_scores, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.usefixtures("small")
@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_equal_scores_are_ordered_by_id_whatever_the_blocks(
    naive_top: Callable[..., Any], seed: int, k: int, query_block: int, label_block: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, z = (torch.randint(-2, 3, (n, 2), generator=generator).float() for n in (5, 10))  # many equal scores
    ids, scores = searched(q, z, k, query_block=query_block, label_block=label_block)
    assert (ids.shape, ids.dtype, scores.dtype) == ((5, k), torch.int64, torch.float32)
    assert ids[:, :10].tolist() == naive_top(q, z, k)
    assert torch.equal(scores[:, :10], (q @ z.T).gather(1, ids[:, :10]))
    assert (ids[:, 10:] == -1).all()
    assert (scores[:, 10:] == -torch.inf).all()


@pytest.mark.parametrize("copies", [3, 200])
def test_labels_with_the_same_vector_are_ordered_by_id(copies: int) -> None:
    """With 3 copies the shortlist has all that tie for the last place; with 200 it cannot."""
    q, z = unit(9, 16, 0), unit(300, 16, 1).repeat(copies, 1)
    ids, scores = searched(q, z, 31)
    nearest = (q @ z[:300].T).argsort(dim=1, descending=True)
    expected = (nearest[:, :, None] + 300 * torch.arange(copies)).flatten(1)[:, :31]
    assert torch.equal(ids, expected)
    assert torch.equal(scores[:, : min(copies, 31)], scores[:, :1].expand(-1, min(copies, 31)))


def doubts(q_QD: Tensor, z_LD: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(ids_QK, whether a label may be missing) of a shortlist alone."""
    (found,) = Shortlist(z_LD, z_LD.shape[1:], 50).search(q_QD, k)
    return found.ids_QK, ~found.sure_Q


@pytest.mark.usefixtures("small")
def test_wherever_float16_hides_a_label_there_is_doubt() -> None:
    """Scores that differ by less than float16 can say: some shortlists are wrong, and all of these are doubted."""
    generator = torch.Generator().manual_seed(0)
    q, centre = unit(200, 32, 2), unit(1, 32, 3)
    z = torch.nn.functional.normalize(centre + 2e-4 * torch.randn(500, 32, generator=generator))
    found, doubted = doubts(q, z, 3)
    expected, _ = plain(q, z, 3)
    wrong = (found != expected).any(dim=1)
    assert 0 < wrong.sum() < len(q)
    assert doubted[wrong].all()
    assert (searched(q, z, 3)[0] == expected).float().mean() > 0.99  # but for ties within the rounding of float32


def test_there_is_no_doubt_about_vectors_that_differ() -> None:
    _, doubted = doubts(unit(300, 64, 0), unit(5000, 64, 1), 10)
    assert not doubted.any()
    _, doubted = doubts(unit(3, 64, 0), unit(60, 64, 1), 10)  # all of them in the shortlist
    assert not doubted.any()


def test_the_error_of_float16_is_below_its_bound_and_near_it() -> None:
    q, z = 3.0 * unit(50, 48, 0), torch.cat([40 * unit(200, 48, 1), 1e-7 * unit(200, 48, 2)])
    made = Shortlist(z, [48], 50)
    scaled_q, scaled_z = q / 4, z * made._scale
    bound_Q = made._error(scaled_q, made._parts[0])
    errors_QL = scaled_q.half().double() @ scaled_z.half().double().T - scaled_q.double() @ scaled_z.double().T
    assert (errors_QL.abs().amax(dim=1) <= bound_Q).all()
    assert (errors_QL.abs().amax(dim=1) > bound_Q / 50).all()


def test_parts_and_their_sum_are_found_as_by_indexes_of_their_own() -> None:
    widths, q, z = [16, 9], unit(30, 25, 0), unit(400, 25, 1)
    index = Exact(shortlist="float16", query_block=8, label_block=64)
    index.build(z)
    found = index.search_parts(q, widths, 6)
    assert len(found) == 3
    for (ids, scores), of in zip(found, (slice(0, 16), slice(16, 25), slice(0, 25)), strict=True):
        alone = searched(q[:, of], z[:, of], 6)
        assert torch.equal(ids, alone[0])
        assert torch.equal(scores, alone[1])
        assert torch.equal(ids, plain(q[:, of], z[:, of], 6)[0])


def test_parts_that_are_doubted_are_compared_in_their_own_columns() -> None:
    z = torch.cat([unit(300, 8, 0), unit(1, 8, 1).expand(300, 8)], dim=1)  # the second part ties everywhere
    q = unit(11, 16, 2)
    index = Exact(shortlist="float16")
    index.build(z)
    (first, _), (second, scores), (both, _) = index.search_parts(q, [8, 8], 4)
    assert second.tolist() == [[0, 1, 2, 3]] * 11
    torch.testing.assert_close(scores, (q[:, 8:] @ z[:4, 8:].T))
    assert torch.equal(first, both)


def test_a_device_decides_about_shortlists(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        device = torch.device("cuda")

    for options, like, expected in (
        ({}, torch.Tensor, False),
        ({}, OnGpu, True),
        ({"shortlist": "none"}, OnGpu, False),
        ({"shortlist": "float16"}, torch.Tensor, True),
    ):
        index = Exact(**options)
        index.build(torch.ones(3, 2).as_subclass(like))
        assert index.shares_products == expected
