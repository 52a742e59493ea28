"""Dropout as a pure function: whether a number is dropped depends on its key alone, not on a generator's state.

key       (seed of the step and side, id of the text or label), then the place of a token in its text
site      the dropout within the model, and how often it was called before for these texts
number    the column of an element; in attention also its head

So neither chunks nor their order, padding, blocks of a table or the number of processes change what is dropped. The
trainer enters `keyed` around what it encodes; elsewhere these modules are torch's own.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from xmclab.kernels.dispatch import accelerated_by, accelerated_on_gpu_by, large_floats

PIECE = 1 << 18  # numbers
HEAD_BITS = 20  # columns of a head beyond 2^20, or heads beyond 2^12, repeat draws of others
STRIDE, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64
FIRST32, SECOND32 = 0x7FEB352D, 0x846CA68B  # of lowbias32


def signed(x: int, bits: int = 64) -> int:
    """The number that has the lowest bits of `x` as its two's complement."""
    return (x + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def limit_of(rate: float) -> int:
    """Draws, which are uniform 32-bit integers, are dropped below it."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31


# Keys


def text_keys(seed: int, ids_B: Tensor) -> Tensor:
    """key_B of texts (or labels) by their ids; the seed is that of a step and a side."""
    return _mixed(ids_B * signed(STRIDE) + signed(seed))


def place_keys(key: Tensor, place: Tensor) -> Tensor:
    """Keys of places within what has these keys; the two are broadcast."""
    return _mixed(key + (place + 1) * signed(STRIDE))


def draws(key: Tensor, number: Tensor) -> Tensor:
    """Uniform 32-bit integers for 64-bit keys and 32-bit numbers, which are broadcast."""
    x = key.to(torch.int32) + number * ((key >> 32) | 1).to(torch.int32)  # a start and an odd stride
    x = (x ^ _shifted(x, 16)) * FIRST32
    x = (x ^ _shifted(x, 15)) * signed(SECOND32, 32)
    return x ^ _shifted(x, 16)


def _mixed(x: Tensor) -> Tensor:
    """A permutation of 64-bit integers that lets every bit depend on all others."""
    x = (x ^ _shifted(x, 30)) * signed(FIRST)
    x = (x ^ _shifted(x, 27)) * signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """The bits moved to the right, with zeros from the left."""
    return (x >> by) & ((1 << (8 * x.dtype.itemsize - by)) - 1)


# What is being encoded


@dataclass
class Keyed:
    """The keys of what passes through the model."""

    key: Tensor  # [B] of texts, or [B, T] of their tokens, [1, T] where texts are packed
    calls: dict[int, int] = field(default_factory=dict)  # of each site so far

    def site(self, site: int) -> int:
        """The site of this call: a module that is called several times drops something else each time."""
        self.calls[site] = call = self.calls.get(site, -1) + 1
        return signed(site + call * STRIDE)

    def of(self, x: Tensor) -> Tensor | None:
        """The keys of the rows of `x`, as `drop` takes them; None if its numbers do not belong to texts."""
        shape = tuple(x.shape)
        rows = shape[:1] + shape[2:3] if len(shape) == 4 else shape[:-1]  # attention has heads between
        if self.key.ndim == 2:
            return self.key if tuple(self.key.shape) == rows else None
        if len(shape) < 2 or shape[0] != len(self.key):
            return None
        key = self.key
        for size in shape[1:-1]:
            key = place_keys(key.unsqueeze(-1), torch.arange(size, device=x.device))
        return key


_entered: list[Keyed | None] = [None]  # a list, unlike a ContextVar, can be traced by torch.compile


@contextlib.contextmanager
def keyed(key: Tensor | None) -> Iterator[None]:
    """Let dropout within draw by these keys, and its sites count their calls from 0; None: by torch's generator.

    Args:
        key: [B] of the texts, if that is the first dimension of what modules see, or [B, T] of their tokens.
    """
    _entered.append(None if key is None else Keyed(key))
    try:
        yield
    finally:
        _entered.pop()


def current() -> Keyed | None:
    """What the trainer entered; None: dropout draws from torch's generator."""
    return _entered[-1]


# Dropping


@accelerated_on_gpu_by("dropout_triton")
@accelerated_by("dropout", when=large_floats)
def drop(x: Tensor, key: Tensor, site: int, rate: float) -> Tensor:
    """`x` with a share `rate` of its numbers at 0, the others divided by 1 - rate; its gradient is dropped alike.

    Args:
        key: of each row: those of `x.shape[:-1]`, or [B, T] where `x` is [B, H, T, C].
    """
    number = torch.arange(x.shape[-1], device=x.device, dtype=torch.int32)
    key, y = _mixed(key ^ site).unsqueeze(-1), x
    if key.ndim < x.ndim:
        head = torch.arange(x.shape[1], device=x.device, dtype=torch.int32)
        key, number = key.unsqueeze(1), number + (head << HEAD_BITS)[:, None, None]
    else:
        key, y = key.flatten(0, -2), x.flatten(0, -2)
    # In pieces that fit the cache; compiled code, and other devices, need none.
    whole = x.device.type != "cpu" or torch.compiler.is_compiling()
    size = max(1, len(y) if whole else PIECE * len(y) // max(y.numel(), 1))
    limit, factor = limit_of(rate), 1 / (1 - rate)
    pieces = zip(y.split(size), key.split(size), strict=True)
    return torch.cat([part * (draws(keys, number) >= limit) * factor for part, keys in pieces]).view(x.shape)


@accelerated_by("dropout", when=large_floats)
def drop_items(x_T: Tensor, key_B: Tensor, offset_B: Tensor, number_T: Tensor, site: int, rate: float) -> Tensor:
    """The same for lists of different lengths, which get no gradient.

    Args:
        offset_B: where the list of each text begins in `x_T`; the next one begins where it ends.
        number_T: int32, of each item, distinct within a list.
    """
    end = offset_B.new_full((1,), len(x_T))
    lengths_B = torch.diff(offset_B, append=end)
    key_T = torch.repeat_interleave(_mixed(key_B ^ site), lengths_B, output_size=len(x_T))
    return x_T * (draws(key_T, number_T) >= limit_of(rate)) * (1 / (1 - rate))


class KeyedDropout(nn.Dropout):
    """nn.Dropout by the keys of `keyed`, where the rows of its input are texts or their tokens; else torch's own.

    Args:
        site: any number, another one for each dropout of a model.
    """

    def __init__(self, p: float = 0.5, site: int = 0) -> None:
        super().__init__(p)
        self.site = site

    def forward(self, input: Tensor) -> Tensor:
        now = current()
        if not self.training or not self.p or now is None:
            return super().forward(input)
        key = now.of(input)
        return super().forward(input) if key is None else drop(input, key, now.site(self.site), self.p)


def key_dropouts(model: nn.Module) -> None:
    """Replace every nn.Dropout within the model by a `KeyedDropout`, each with the hash of its name as its site."""
    made: dict[nn.Module, KeyedDropout] = {}
    for name, parent in list(model.named_modules()):
        for child_name, child in parent.named_children():
            if type(child) is nn.Dropout and child not in made:
                made[child] = KeyedDropout(child.p).train(child.training)
            if child in made:
                child = made[child]
                setattr(parent, child_name, child)
            if type(child) is KeyedDropout:
                digest = hashlib.blake2b(f"{name}.{child_name}".encode(), digest_size=8).digest()
                child.site = int.from_bytes(digest, "big", signed=True)
