"""Keyed dropout in Triton against its definition, in the interpreter, and compiled for GPUs that are not here."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

from xmclab.kernels import dispatch
from xmclab.model.dropout import drop

triton = pytest.importorskip("triton")

INTERPRETED = """
import torch
from xmclab.kernels import dropout_triton
from xmclab.model.dropout import drop
torch.manual_seed(0)
sites = 12345, -2**63, 2**63 - 1, 0
for shape in ((5, 7), (3, 1030), (2, 3, 65), (1, 1), (0, 4)):
    key = torch.randint(-2**62, 2**62, shape[:-1])
    for rate, site in zip((0.1, 0.5, 0.999, 0.1), sites):
        x, g = torch.randn(shape), torch.randn(shape)
        found, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = dropout_triton.drop(found, key, site, rate), drop(expected, key, site, rate)
        assert torch.equal(y, z), (shape, rate, site)
        y.backward(g), z.backward(g)
        assert torch.equal(found.grad, expected.grad)
        for dtype in (torch.float16, torch.bfloat16):
            y, z = dropout_triton.drop(x.to(dtype), key, site, rate), drop(x.to(dtype), key, site, rate)
            assert torch.equal(y == 0, z == 0)
            # The interpreter cuts bits off where hardware rounds to the nearest.
            assert torch.allclose(y.float(), z.float(), rtol=torch.finfo(dtype).eps, atol=0)
assert dropout_triton.drop(torch.zeros(2, 3, 4, 5), torch.zeros(2, 4).long(), 1, 0.5) is NotImplemented
assert dropout_triton.drop(torch.zeros(2, 3).double(), torch.zeros(2).long(), 1, 0.5) is NotImplemented
"""


def test_it_drops_what_the_plain_function_drops() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("architecture", [80, 89, 90, 100])
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_it_compiles_for_a_gpu_without_one(architecture: int, kind: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from xmclab.kernels.dropout_triton import COLUMNS, drop_rows

    kinds = {"x": f"*{kind}", "key": "*i64", "y": f"*{kind}", "site": "i64", "columns": "i32", "limit": "i32"}
    kinds |= {"factor": "fp32", "BLOCK": "constexpr"}
    assert list(kinds) == drop_rows.arg_names
    aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1, 2, 4)}
    source = ASTSource(drop_rows, kinds, {(7,): COLUMNS}, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32))
    assert made.metadata.shared == 0, "threads need nothing of each other"
    assert "local" not in made.asm["ptx"], "no number leaves the registers"


def test_tensors_of_a_cpu_never_get_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "gpu_kernels", lambda name: pytest.fail("asked"))
    x = torch.ones(4, 8)
    assert (drop(x, torch.arange(4), 3, 0.5) == 0).any()


@pytest.mark.parametrize(
    ("error", "said"),
    [(ImportError("no module triton"), ""), (RuntimeError("Failed to find C compiler.\nInstall one"), "C compiler")],
)
def test_where_triton_does_not_work_torch_does(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    dispatch.gpu_kernels.cache_clear()
    monkeypatch.setattr("xmclab.kernels.dropout_triton.trial", fail)
    try:
        with caplog.at_level(logging.INFO, logger="xmclab.kernels"):
            assert dispatch.gpu_kernels("dropout_triton") is None
            assert dispatch.gpu_kernels("dropout_triton") is None
    finally:
        dispatch.gpu_kernels.cache_clear()
    assert [said in record.message for record in caplog.records] == [True] * bool(said)
