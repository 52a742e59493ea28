"""Products of half operands: sums in float32, by a kernel of the device or of widened operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xmclab.objectives import products
from xmclab.objectives.products import add_product_, inner_products, multiply, operands_in, summed_in


def half(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def test_sums_of_half_operands_are_those_of_float32() -> None:
    a, b, total = half(5, 300), half(300, 7), torch.ones(5, 7)
    exact = a.double() @ b.double()
    torch.testing.assert_close(multiply(a, b, torch.empty(5, 7), 3.0).double(), 3 * exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(add_product_(total, a, b).double(), 1 + exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mixed", [True, False])
def test_elsewhere_than_on_a_cpu_one_kernel_takes_half_operands(monkeypatch: pytest.MonkeyPatch, mixed: bool) -> None:
    """Unless this version of torch has none: then they are widened."""
    monkeypatch.setattr(products, "MIXED", mixed)
    given: list[set[torch.dtype]] = []
    addmm = torch.addmm

    def record(total: Tensor, a: Tensor, b: Tensor, **others: Any) -> Tensor:
        given.append({a.dtype, b.dtype})
        return addmm(total, a, b, **others)

    monkeypatch.setattr(torch, "addmm", record)
    a, b, out = half(5, 8).to("meta"), half(8, 7).to("meta"), torch.empty(5, 7, device="meta")
    assert multiply(a, b, out, 3.0).dtype == add_product_(out, a, b).dtype == torch.float32
    assert given == 2 * [{torch.bfloat16 if mixed else torch.float32}]


def test_half_vectors_have_scores_in_float32_and_gradients_of_their_own() -> None:
    q, z = (half(rows, 16).requires_grad_() for rows in (4, 6))
    wide = [x.detach().double().requires_grad_() for x in (q, z)]
    weights = torch.linspace(-1, 1, 24).view(4, 6)
    found, exact = inner_products(q, z), wide[0] @ wide[1].T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
    (found * weights).sum().backward(), (exact * weights).sum().backward()
    for a, b in zip((q, z), wide, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.dtype == torch.bfloat16
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0.01, atol=0.02)


def test_operands_are_those_of_autocast() -> None:
    assert operands_in(torch.float32, "cpu") == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert operands_in(torch.float32, "cpu") == torch.bfloat16
        assert operands_in(torch.float64, "cpu") == torch.float64
        assert operands_in(torch.float32, "meta") == torch.float32
    assert summed_in(torch.bfloat16) == torch.float32
    assert summed_in(torch.float64) == torch.float64
