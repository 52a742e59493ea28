"""Where `kernels=triton` serves, and what it says where it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_triton import fused
from xmclab_triton.fused import Tiles, Triton, interpreted


class OnCard:
    """As much of a tensor on a GPU as `declines` looks at."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.device = dtype, torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("dtype", "capability", "reason"),
    [
        (torch.bfloat16, (8, 0), ""),
        (torch.float16, (12, 0), ""),
        (torch.float32, (9, 0), "kernels=triton needs operands of half precision, not float32"),
        (torch.float16, (7, 5), "kernels=triton needs compute capability 8.0, not 7.5"),
    ],
)
def test_it_serves_half_precision_on_cards_that_multiply_it(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], reason: str
) -> None:
    monkeypatch.setattr(fused, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert Triton().declines(OnCard(dtype)) == reason  # type: ignore[arg-type]


def test_it_leaves_a_cpu_to_torch() -> None:
    pytest.importorskip("triton")
    assert not interpreted()
    assert Triton().declines(torch.zeros(1, 2)) == "kernels=triton needs a GPU, not cpu"


def test_without_triton_the_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as caught:
        resolve(["recipe=unidec", "kernels=triton"], default_registry())
    assert str(caught.value) == 'kernels=triton: needs triton (pip install "xmclab[triton]")'
    assert resolve(["recipe=unidec"], default_registry()).parts["kernels"] is None


def test_it_declines_while_triton_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise ImportError("libtriton.so: cannot open shared object file")

    monkeypatch.setattr(fused, "interpreted", broken)
    monkeypatch.setattr(fused, "find_spec", lambda _: object())
    declined = Triton().declines(torch.zeros(1, 2))
    assert declined == "triton cannot be imported: libtriton.so: cannot open shared object file"


@pytest.mark.parametrize(("width", "padded"), [(64, 64), (65, 128)])
def test_vectors_are_padded_to_whole_steps(width: int, padded: int) -> None:
    x_BD = torch.ones(3, width)
    found: Tensor = fused._padded(x_BD, Tiles().inner)
    assert found.shape == (3, padded)
    assert found.sum() == x_BD.sum()
    assert (found.data_ptr() == x_BD.data_ptr()) == (width == padded)  # no copy where none is needed
