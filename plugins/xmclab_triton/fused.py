"""`kernels=triton`: where the kernels serve, and what they are called with."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from xmclab.api import Block, Kernels
from xmclab.errors import ConfigError, Problem

CAPABILITY = (8, 0)  # below, Triton's products do not use tensor cores
HALF = (torch.float16, torch.bfloat16)
PROGRAMS = 1024  # of the first pass, at least, where there are labels enough: several for each multiprocessor


@dataclass(frozen=True)
class Tiles:
    """How scores are cut into the tiles of programs."""

    queries: int = 128
    labels: int = 128
    inner: int = 64
    warps: int = 8
    stages: int = 3

    @property
    def launch(self) -> dict[str, int | bool]:
        """Options of the compiler."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    def of(self, block: Block) -> tuple[int, int]:
        """Tiles of queries and of labels."""
        return -(-len(block.q_QD) // self.queries), -(-len(block.z_BD) // self.labels)


INTERPRETED = Tiles(16, 16, 16)  # of tests


def passes() -> Any:
    """The kernels; Triton decides at the import whether they are compiled or interpreted."""
    return importlib.import_module("xmclab_triton.passes")


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, as TRITON_INTERPRET=1 asks for."""
    return bool(importlib.import_module("triton").knobs.runtime.interpret)


@dataclass
class Triton(Kernels):
    """Fused log-sum-exps and gradients for `ds`, `bce` and other closed forms; half precision, capability 8.0 on.

    On a GPU for which nobody has measured it: `xmclab doctor --bench` compares it with torch.
    """

    def __post_init__(self) -> None:
        if find_spec("triton") is None:
            raise ConfigError(Problem("kernels=triton", "needs triton", 'pip install "xmclab[triton]"'))

    def declines(self, q_QD: Tensor) -> str:
        dtype = str(q_QD.dtype).removeprefix("torch.")
        try:
            by_interpreter = interpreted()
        except ImportError as error:
            return f"triton cannot be imported: {error}"
        if by_interpreter:
            fits = q_QD.device.type == "cpu" and q_QD.dtype in (torch.float32, torch.float16)
            return "" if fits else f"Triton's interpreter takes float32 on a CPU, not {dtype} on {q_QD.device}"
        if q_QD.device.type != "cuda":
            return f"kernels=triton needs a GPU, not {q_QD.device}"
        if (capability := torch.cuda.get_device_capability(q_QD.device)) < CAPABILITY:
            return f"kernels=triton needs compute capability 8.0, not {'.'.join(map(str, capability))}"
        return "" if q_QD.dtype in HALF else f"kernels=triton needs operands of half precision, not {dtype}"

    def log_sums(self, block: Block, by_label: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        call = _Call(block)
        row_tiles, column_tiles = call.tiles.of(block)
        splits = max(min(-(-PROGRAMS // row_tiles), column_tiles), 1)
        tiles_of_split = -(-column_tiles // splits)
        sums_SQ = call.floats(splits, len(block.q_QD)).fill_(-torch.inf)
        sums_TB = call.floats(row_tiles, len(block.z_BD)) if by_label else sums_SQ
        call(
            "log_sums",
            (row_tiles, splits),
            (sums_SQ, sums_TB, block.scale, *call.sizes, column_tiles, tiles_of_split),
            BY_LABEL=by_label,
        )
        return sums_SQ.logsumexp(0), sums_TB.logsumexp(0) if by_label else None, call.found()

    def gradient(
        self,
        block: Block,
        queries: tuple[Tensor, Tensor] | None,
        labels: tuple[Tensor, Tensor] | None,
        softplus: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        call = _Call(block)
        row_tiles, column_tiles = call.tiles.of(block)
        g_QB = block.q_QD.new_empty(len(block.q_QD), len(block.z_BD))
        values_T = call.floats(row_tiles * column_tiles)
        none = values_T, values_T  # is not read
        of_queries, of_labels = (_finite(each) if each else none for each in (queries, labels))
        call(
            "gradient",
            (row_tiles, column_tiles),
            (*of_queries, *of_labels, g_QB, values_T, block.scale, softplus or 0.0, *call.sizes, column_tiles),
            BY_QUERY=queries is not None,
            BY_LABEL=labels is not None,
            BY_CELL=softplus is not None,
        )
        return g_QB, values_T.new_zeros(()) if softplus is None else values_T.sum(), call.found()


class _Call:
    """What both kernels need of a block: its vectors, and its listed cells by tile."""

    def __init__(self, block: Block) -> None:
        self.tiles = INTERPRETED if interpreted() else Tiles()
        self.q_QD, self.z_BD = (_padded(x, self.tiles.inner) for x in (block.q_QD, block.z_BD))
        self.sizes = len(self.q_QD), len(self.z_BD), self.q_QD.shape[1]
        row_tiles, column_tiles = self.tiles.of(block)
        row_C, column_C = block.row_C, block.column_C
        tile_C = row_C // self.tiles.queries * column_tiles + column_C // self.tiles.labels
        elsewhere_C = (column_C < 0) | (column_C >= len(block.z_BD))
        tile_C, self.order_C = tile_C.masked_fill(elsewhere_C, row_tiles * column_tiles).sort()
        tiles_T = torch.arange(row_tiles * column_tiles + 1, device=tile_C.device)
        starts_T = torch.searchsorted(tile_C, tiles_T)
        self.lists = [x.to(torch.int32) for x in (starts_T, row_C[self.order_C], column_C[self.order_C])]
        self.s_C = self.floats(len(row_C)).zero_()  # by tile

    def floats(self, *shape: int) -> Tensor:
        return self.q_QD.new_empty(shape, dtype=torch.float32)

    def __call__(self, name: str, grid: tuple[int, int], rest: tuple[object, ...], **known: object) -> None:
        tiles = self.tiles
        sizes = {"BQ": tiles.queries, "BB": tiles.labels, "BD": tiles.inner}
        kernel = getattr(passes(), name)[grid]
        with torch.cuda.device_of(self.q_QD):  # Triton launches on the current one
            kernel(self.q_QD, self.z_BD, *self.lists, self.s_C, *rest, **known, **sizes, **tiles.launch)

    def found(self) -> Tensor:
        """The scores of the listed cells, in the order of the block."""
        return torch.empty_like(self.s_C).index_copy_(0, self.order_C, self.s_C)


def _padded(x_BD: Tensor, multiple: int) -> Tensor:
    """Contiguous, with columns of zeros up to a multiple: a bias makes a width odd, which no fast load takes."""
    missing = -x_BD.shape[1] % multiple
    return (torch.nn.functional.pad(x_BD, (0, missing)) if missing else x_BD).contiguous()


def _finite(anchors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Contiguous (log-sum-exp, slope), without the -inf of anchors that have no negatives."""
    log_sum_A, slope_A = anchors
    return log_sum_A.clamp(min=torch.finfo(log_sum_A.dtype).min).contiguous(), slope_A.contiguous()
