"""What crosses between the host and the device of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from xmclab.training.transfer import ALIGNMENT, Fetched, Shipping, packed, replaced, view


class Pair(NamedTuple):
    x: Tensor
    name: str


@dataclass(frozen=True)
class Record:
    x: Tensor
    rest: Any


def tree() -> Any:
    there = torch.empty(3, device="meta")
    return [Pair(torch.arange(3), "a"), {"k": torch.ones(2, 2), "n": 5}], Record(torch.zeros(0), (None, there)), "text"


def test_a_tree_keeps_its_shape_and_only_host_tensors_change() -> None:
    seen: list[Tensor] = []
    first, second, third = replaced(tree(), lambda x: seen.append(x) or x + 1)
    assert [x.numel() for x in seen] == [3, 4, 0]
    assert isinstance(first[0], Pair)
    assert first[0].x.tolist() == [1, 2, 3]
    assert first[1]["k"].tolist() == [[2, 2], [2, 2]]
    assert (first[0].name, first[1]["n"], third) == ("a", 5, "text")
    assert isinstance(second, Record)
    assert second.rest[1].device.type == "meta"


def test_tensors_of_all_kinds_are_read_back_from_one_buffer() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(5, 3, generator=generator),
        torch.arange(7, dtype=torch.int32),
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.tensor([True, False, True]),
        torch.randn(4, 6, generator=generator).bfloat16().T,
        torch.from_numpy(np.arange(12).reshape(3, 4)[:, ::2]),
    ]
    buffer, starts = packed(parts, pinned=False)
    assert all(start % ALIGNMENT == 0 for start in starts)
    for part, start in zip(parts, starts, strict=True):
        found = view(buffer, start, part)
        assert found.dtype == part.dtype
        assert torch.equal(found, part)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tree_is_sent_to_the_device_of_the_run(device: str) -> None:
    (first, second, _), shipment = Shipping(torch.device(device))(tree())
    assert {first[0].x.device.type, first[1]["k"].device.type, second.x.device.type} == {device}
    assert shipment is None, "only a copy beside the computation has to be waited for"


def test_what_was_fetched_is_what_it_was() -> None:
    x = torch.tensor([1.0, 2.0])
    fetched = Fetched(x)
    x.zero_()
    assert fetched.tolist() == [1.0, 2.0]
