"""Attention within packed texts on a GPU: which kernel is chosen, and what it is called with."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from xmclab.errors import ConfigError
from xmclab.model.encoders import packed, varlen
from xmclab.model.encoders.varlen import fused_attention, has_window, road_of

GPU = torch.device("cuda:0")
LENGTHS = [2, 2, 5, 9]
GROUPS = ((2, 2), (1, 5), (1, 9))
OFFSETS = torch.tensor([0, 2, 4, 9, 18], dtype=torch.int32)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: request.param)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)


@pytest.mark.parametrize(
    ("card", "dtype", "width", "road"),
    [
        ((8, 0), torch.bfloat16, 64, "varlen"),
        ((9, 0), torch.float16, 256, "varlen"),
        ((8, 0), torch.bfloat16, 320, "efficient"),
        ((8, 0), torch.float32, 64, "efficient"),
        ((7, 5), torch.float16, 64, "efficient"),
    ],
    indirect=["card"],
)
@pytest.mark.usefixtures("card")
def test_the_road_follows_from_the_card_the_type_and_the_width(dtype: torch.dtype, width: int, road: str) -> None:
    assert road_of(GPU, dtype, width) == road
    assert road_of(torch.device("cpu"), dtype, width) == "grouped"


@pytest.mark.parametrize("card", [(8, 0)], indirect=True)
@pytest.mark.usefixtures("card")
def test_versions_of_torch_without_the_function_call_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "_varlen", lambda: None)
    assert road_of(GPU, torch.bfloat16, 64) == "flash"
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert road_of(GPU, torch.bfloat16, 64) == "efficient"


@pytest.mark.parametrize("card", [(8, 0)], indirect=True)
@pytest.mark.usefixtures("card")
@pytest.mark.filterwarnings("ignore:Flash attention kernel not used", "ignore:Both fused kernels")
def test_plain_products_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no fused attention in float64 .*precision=auto.*encoder\.packing=off"):
        road_of(GPU, torch.float64, 64)
    with pytest.raises(ConfigError, match=r"no fused attention kernel.*encoder\.packing=off"), varlen.math_refused():
        raise RuntimeError("No available kernel. Aborting execution.")
    with pytest.raises(RuntimeError, match="another"), varlen.math_refused():
        raise RuntimeError("another error")
    wide = torch.randn(1, 1, 4, 8)
    with pytest.raises(ConfigError), varlen.math_refused():
        torch.nn.functional.scaled_dot_product_attention(wide, wide, wide, dropout_p=0.5)  # only products have it


def test_the_private_operators_are_those_that_are_called() -> None:
    """Their arguments by position, up to the last one that is passed."""
    flash = [a.name for a in torch.ops.aten._flash_attention_forward.default._schema.arguments]
    both = ["cum_seq_q", "cum_seq_k", "max_q", "max_k"]
    assert flash[:11] == ["query", "key", "value", *both, "dropout_p", "is_causal", "return_debug_mask", "scale"]
    efficient = [a.name for a in torch.ops.aten._efficient_attention_forward.default._schema.arguments]
    both = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    more = ["dropout_p", "custom_mask_type", "compute_log_sumexp", "scale"]
    assert efficient[:12] == ["query", "key", "value", "bias", *both, *more]
    assert has_window("flash")
    assert has_window("varlen")
    assert not has_window("efficient")
    function = varlen._varlen()
    assert function is None or "dropout_p" not in inspect.signature(function).parameters  # its dropout is 0


@pytest.mark.parametrize(
    ("road", "dtype", "width"),
    [  # what torch knows of the gradient of the last one is wrong if there is a scale, as with other widths
        ("varlen", torch.bfloat16, 16),
        ("varlen", torch.bfloat16, 6),
        ("flash", torch.bfloat16, 16),
        ("flash", torch.bfloat16, 6),
        ("efficient", torch.float32, 16),
    ],
)
def test_every_kernel_follows_the_shapes_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, road: varlen.Road, dtype: torch.dtype, width: int
) -> None:
    monkeypatch.setattr(varlen, "road_of", lambda *_: road)
    q, k, v = (torch.empty(18, 2, width, dtype=dtype, device="meta", requires_grad=True) for _ in range(3))
    y = fused_attention(q, k, v, OFFSETS.to("meta"), 9, width**-0.5)
    assert y.shape == q.shape
    y.sum().backward()
    assert q.grad is not None
    assert q.grad.shape == q.shape


def by_formula(q: Tensor, k: Tensor, v: Tensor, offset: Tensor, longest: int, scale: float | None, near: int) -> Tensor:
    """What the kernels compute of their arguments."""
    assert offset.dtype == torch.int32
    assert q.shape[-1] % 8 == 0
    lengths = offset.diff()
    assert longest == int(lengths.max())
    text_T = torch.arange(len(lengths)).repeat_interleave(lengths)
    place_T = torch.arange(len(q))
    seen_TT = text_T == text_T[:, None]
    if near >= 0:
        seen_TT &= (place_T - place_T[:, None]).abs() <= near
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    scores = (q @ k.transpose(1, 2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (scores.masked_fill(~seen_TT, -torch.inf).softmax(-1) @ v).transpose(0, 1)


@pytest.mark.parametrize("window", [None, 9, 3])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("width", [16, 6])
def test_arguments_mean_what_they_mean_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, width: int, scale: float | None, window: int | None
) -> None:
    monkeypatch.setattr(varlen, "road_of", lambda *_: "varlen")
    monkeypatch.setitem(varlen._CALLS, "varlen", by_formula)
    torch.manual_seed(0)
    q, k, v = (torch.randn(18, 2, width, dtype=torch.float64) for _ in range(3))
    expected = packed.grouped_attention(q, k, v, GROUPS, 0.0, scale, window or 100)
    torch.testing.assert_close(fused_attention(q, k, v, OFFSETS, 9, scale, window), expected)


def test_half_precision_comes_from_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    monkeypatch.setattr(varlen, "road_of", lambda *_: "flash")
    monkeypatch.setitem(varlen._CALLS, "flash", lambda q, *_: seen.append(q.dtype) or q)
    q = torch.randn(18, 2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        fused_attention(q, q, q, OFFSETS, 9)
    fused_attention(q, q, q, OFFSETS, 9)
    assert seen == [torch.bfloat16, torch.float32]
