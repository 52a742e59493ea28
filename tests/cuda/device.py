"""A CUDA device without a GPU: tensors on cuda:0 have a shape, a dtype and a device, but no numbers.

Autograd follows them with `shim.cpp` loaded. Operations among host tensors run; those with a tensor of the device are
left to torch's fake tensors, which know the result's shape and raise where devices do not match. What is copied to the
host is all ones.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

DEVICE = torch.device("cuda:0")
MEMORY = 80 << 30
HALF = (torch.float16, torch.bfloat16)
aten = torch.ops.aten


def on_device(x: object) -> bool:
    return isinstance(x, Tensor) and x.device.type == "cuda"


@cache
def _composite(func: Any) -> bool:
    key = "CompositeImplicitAutograd"
    return func.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


class Device(TorchDispatchMode):
    """Runs what stays on the host; subclasses learn of the rest from the methods that are empty here."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: weakref.WeakSet[Any] = weakref.WeakSet()  # storages of the host

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and its wrapper costs time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        kwargs = kwargs or {}
        if any(issubclass(kind, Tensor) and kind not in (Tensor, FakeTensor, nn.Parameter) for kind in types):
            return NotImplemented  # a nested tensor: what it consists of comes here next
        if _composite(func):  # of inference tensors; others come here in parts
            with self:
                return func.decompose(*args, **kwargs)
        flat, _ = tree_flatten((args, kwargs))
        fake = any(isinstance(x, FakeTensor) for x in flat)
        if not fake and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return self._on_host(func, args, kwargs)
        if func is aten.record_stream.default:
            return None
        if (read := self._read(func, args, kwargs)) is not None:
            behind = func is aten.copy_.default and len(args) > 2 and args[2] and self.is_pinned(args[0])
            if not behind:  # in its stream, and the host goes on
                self.waits(func, args)
            return read
        found = self._answered(func, args, kwargs)
        if found is NotImplemented:
            found = func(*self._with_rows(func, args), **kwargs)
        self.ran(func, args, kwargs, found)
        return found

    def ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation with a tensor of the device; the host did not wait for its result."""

    def waits(self, func: Any, args: Any) -> None:
        """The host waits for the device: it needs numbers, or the size of a result that depends on them."""

    def is_pinned(self, x: Tensor) -> bool:
        """Whether a host tensor is in pinned memory."""
        return x.untyped_storage() in self.pinned

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.is_pinned.default:
            return self.is_pinned(args[0])
        pins = func is aten._pin_memory.default or kwargs.get("pin_memory")
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        with unset_fake_temporarily():
            out = args[0].clone() if func is aten._pin_memory.default else func(*args, **kwargs)
        if pins:
            self.pinned.add(out.untyped_storage())
        return out

    @staticmethod
    def _read(func: Any, args: Any, kwargs: Any) -> Any:
        """What the host sees of a tensor that it reads: ones."""
        x = args[0] if args else None
        if func is aten._local_scalar_dense.default:
            return True if x.dtype == torch.bool else 1.0 if x.is_floating_point() else 1
        if func is aten.equal.default:
            return True
        to_host = func is aten._to_copy.default and torch.device(kwargs.get("device") or x.device).type == "cpu"
        if to_host:
            with unset_fake_temporarily():
                return torch.ones(x.shape, dtype=kwargs.get("dtype") or x.dtype)
        if func is aten.copy_.default and x.device.type == "cpu" and on_device(args[1]):
            with unset_fake_temporarily():
                return x.fill_(1)
        return None

    def _answered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result where fake tensors have none: all numbers are different, or nothing is known of them."""
        x = args[0] if args else None
        if not on_device(x):
            return NotImplemented
        ids = {"dtype": torch.int64, "device": DEVICE}
        found: Any = NotImplemented
        if func is aten.nonzero.default:
            found = torch.empty(x.numel(), x.ndim, **ids)
        elif func is aten.masked_select.default:
            found = x.new_empty(x.numel())
        elif func is aten.bincount.default:
            found = torch.empty(max(args[2] if len(args) > 2 else kwargs.get("minlength", 0), 1), **ids)
        elif func is aten._unique2.default:
            found = x.new_empty(x.numel()), torch.empty(x.shape, **ids), torch.empty(x.numel(), **ids)
        elif func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            found = torch.empty(x.numel(), **ids)
        if found is not NotImplemented:
            self.waits(func, args)
        return found

    def _with_rows(self, func: Any, args: Any) -> Any:
        """The arguments with ids in place of a mask: those of all its cells, as their number depends on it."""
        if func.overloadpacket not in (aten.index, aten.index_put, aten.index_put_):
            return args
        found: list[Tensor | None] = []
        for ids in args[1]:
            if ids is not None and ids.dtype == torch.bool:
                if func.overloadpacket is aten.index or args[2].numel() > 1:  # one number fills without a wait
                    self.waits(func, args)
                found += [torch.empty(ids.numel(), dtype=torch.int64, device=ids.device)] * ids.ndim
            else:
                found.append(ids)
        return args[0], found, *args[2:]


def move(module: nn.Module) -> None:
    """Replace all parameters and buffers by those of the device."""
    moved: dict[int, Tensor] = {}

    def there(x: Tensor) -> Tensor:
        if id(x) not in moved:
            y = torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
            if isinstance(x, nn.Parameter):
                y = nn.Parameter(y, requires_grad=x.requires_grad)
                if getattr(x, "grad_dtype", None) not in (None, x.dtype):
                    y.grad_dtype = x.grad_dtype
            moved[id(x)] = y
        return moved[id(x)]

    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            tensors.update({name: there(x) for name, x in tensors.items() if x is not None})


def _to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """`nn.Module.to`, which cannot put a fake tensor in place of a real one."""
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    assert dtype is None, "only devices change here"
    if device is not None and device.type == "cuda":
        move(module)
    return module


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel that torch would choose; a CPU build would fall back to products."""
    if attn_mask is None and q.dtype in HALF:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(attn_mask.logical_not(), -torch.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*q.shape[:-1], k.shape[-2])
    wanted = q.requires_grad or k.requires_grad
    return aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, wanted, dropout_p, is_causal, scale=scale)[
        0
    ]


def _attention(plain: Any) -> Any:
    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (fused_attention if type(query) is FakeTensor else plain)(query, *args, **kwargs)

    return attend


class Stream:
    """A stream or an event: the order of things is not looked at, but the host may wait for them."""

    device: Device  # of the class that `pretended` makes

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is asked for."""

    def synchronize(self) -> None:
        self.device.waits("synchronize", ())

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Stream) -> float:
        return 1.0

    def record_event(self, event: Stream | None = None) -> Stream:
        return event or type(self)()

    def record(self, stream: Stream | None = None) -> None:
        """Nothing runs."""

    wait = wait_stream = wait_event = record

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was entered."""


def _properties(capability: tuple[int, int]) -> Any:
    names = {"name": "fake", "total_memory": MEMORY, "major": capability[0], "minor": capability[1]}
    return mock.Mock(spec_set=[*names, "multi_processor_count"], multi_processor_count=108, **names)


def _answers(mode: Device, capability: tuple[int, int]) -> dict[str, Any]:
    """What `torch.cuda` has; other values than functions and classes are returned by a function."""
    stream = type("Stream", (Stream,), {"device": mode})
    return {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability >= (8, 0),
        "is_current_stream_capturing": False,
        "get_device_capability": capability,
        "get_device_name": "fake",
        "get_device_properties": _properties(capability),
        "get_arch_list": [f"sm_{10 * capability[0] + capability[1]}"],
        "mem_get_info": (MEMORY, MEMORY),
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "reset_peak_memory_stats": None,
        "empty_cache": None,
        "manual_seed_all": None,
        "manual_seed": None,
        "synchronize": lambda *_: mode.waits("synchronize", ()),
        "Stream": stream,
        "Event": stream,
        "current_stream": lambda *_: stream(),
        "default_stream": lambda *_: stream(),
        "stream": contextlib.nullcontext,
        "_lazy_init": None,
    }


@contextlib.contextmanager
def pretended(mode: Device, capability: tuple[int, int] = (8, 0)) -> Iterator[None]:
    """Within, torch has one CUDA device, and `mode` sees what is done with it."""

    def constantly(answer: Any) -> Callable[..., Any]:
        return answer if inspect.isroutine(answer) or isinstance(answer, type) else lambda *_, **__: answer

    with contextlib.ExitStack() as stack:

        def replace(where: Any, name: str, by: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, by))

        for name, answer in _answers(mode, capability).items():
            replace(torch.cuda, name, constantly(answer))
        replace(nn.Module, "to", _to)
        replace(Tensor, "record_stream", lambda *_: None)
        replace(FakeTensorMode, "may_turn_const", lambda *_: False)
        replace(FakeTensorMode, "avoid_device_init", True)  # or it would really copy from the host
        replace(FakeTensor, "tolist", lambda x: x.cpu().tolist())  # its own reads one number after the other
        replace(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        replace(F, "scaled_dot_product_attention", _attention(F.scaled_dot_product_attention))
        kinds = _foreach_utils._foreach_supported_types
        replace(_foreach_utils, "_foreach_supported_types", [*kinds, FakeTensor])
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # backward has the caller's frames
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()))
        yield stack.enter_context(mode)
