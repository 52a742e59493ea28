"""Registers, stack and shared memory of the kernels, compiled for a GPU that need not be there.

`python -m xmclab_triton.resources` prints them as a table.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab_triton.fused import Tiles, passes

ARCHITECTURES = (80, 89, 90, 100)
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
FLOATS = frozenset({"s_C", "row_sums", "column_sums", "n_Q", "slope_Q", "n_B", "slope_B", "values"})
INTEGERS = frozenset({"starts", "row_C", "column_C"})
MULTIPLES = frozenset({"Q", "D"})  # of 16, as batches and padded widths are; the last block of labels is not


@dataclass(frozen=True)
class Usage:
    """What a thread and a program take."""

    registers: int
    stack: int  # bytes, of what did not fit the registers
    shared: int  # bytes
    tensor_cores: bool


VARIANTS: dict[str, tuple[str, Mapping[str, bool]]] = {
    "log_sums": ("log_sums", {"BY_LABEL": False}),
    "log_sums, both directions": ("log_sums", {"BY_LABEL": True}),
    "gradient, ds": ("gradient", {"BY_QUERY": True, "BY_LABEL": False, "BY_CELL": False}),
    "gradient, bce": ("gradient", {"BY_QUERY": False, "BY_LABEL": False, "BY_CELL": True}),
    "gradient, ds+bce": ("gradient", {"BY_QUERY": True, "BY_LABEL": False, "BY_CELL": True}),
    "gradient, ds+bce, both directions": ("gradient", {"BY_QUERY": True, "BY_LABEL": True, "BY_CELL": True}),
}


def usage(variant: str, architecture: int, operands: str = "bf16", tiles: Tiles | None = None) -> Usage:
    """Compile a kernel as a run does, and read the resources of its machine code.

    Args:
        variant: of `VARIANTS`.
        architecture: 80 for sm_80, capability 8.0.
        operands: bf16 or fp16.
    """
    compiler, backends = (importlib.import_module(f"triton.{name}") for name in ("compiler", "backends.compiler"))
    tiles = tiles or Tiles()
    name, flags = VARIANTS[variant]
    kernel = getattr(passes(), name)
    sizes = {"BQ": tiles.queries, "BB": tiles.labels, "BD": tiles.inner}
    known = {**flags, **sizes}
    signature = {name: "constexpr" if name in known else _type(name, operands) for name in kernel.arg_names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name in MULTIPLES
    }
    places = {(kernel.arg_names.index(name),): value for name, value in known.items()}
    source = compiler.ASTSource(kernel, signature, places, attributes)
    target = backends.GPUTarget("cuda", architecture, 32)
    return _read(compiler.compile(source, target=target, options=tiles.launch))


def _type(name: str, operands: str) -> str:
    if name in ("q", "z", "g"):
        return f"*{operands}"
    if name in FLOATS:
        return "*fp32"
    if name in INTEGERS:
        return "*i32"
    return "fp32" if name in ("scale", "softplus") else "i32"


def _read(compiled: Any) -> Usage:
    tool = Path(importlib.import_module("triton").__file__ or "").parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        command = [str(tool), "--dump-resource-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = USAGE.search(text)
    assert found, text
    registers, stack, shared = map(int, found.groups())
    products = re.search(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)", compiled.asm["ptx"]) is not None
    return Usage(registers, stack, max(shared, compiled.metadata.shared), products)


def table() -> Iterator[str]:
    """The table of docs/gpu.md: registers / stack in bytes / shared memory in KiB."""
    yield "| kernel | " + " | ".join(f"sm_{architecture}" for architecture in ARCHITECTURES) + " |"
    yield "|---|" + "---|" * len(ARCHITECTURES)
    for variant in VARIANTS:
        found = [usage(variant, architecture) for architecture in ARCHITECTURES]
        cells = [f"{each.registers} / {each.stack} / {each.shared / 1024:.0f}" for each in found]
        yield f"| {variant} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for line in table():
        print(line)
