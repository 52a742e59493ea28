"""Large pages hold the same numbers."""

from __future__ import annotations

import pytest
import torch

from xmclab.kernels import pages


def test_large_pages_hold_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "WORTH_LARGE_PAGES", 0)
    numbers = torch.arange(100_000)
    assert pages.in_large_pages(numbers) is numbers
    assert torch.equal(numbers, torch.arange(100_000))
