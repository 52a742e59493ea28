"""Numba is an extra: nothing needs it, and nothing loads it before there is work for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from xmclab.kernels import dispatch as accelerator
from xmclab.kernels import scores as fused
from xmclab.kernels import scores_torch as fused_torch


@pytest.fixture
def fresh() -> Iterator[None]:
    accelerator.numba_works.cache_clear()
    yield
    accelerator.numba_works.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_numba_nothing_is_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerator.accelerated(10**9)
    accelerator.numba_works.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    assert not accelerator.accelerated(10**9)


def test_a_small_matrix_does_not_load_numba() -> None:
    code = (
        "import sys; from xmclab.kernels.dispatch import accelerated; accelerated(10); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("command", ["--help", "parts"])
def test_looking_around_does_not_load_numba(command: str) -> None:
    code = f"""
import sys
from xmclab.cli import main
sys.argv = ["xmclab", "{command}"]
try:
    main()
finally:
    print("loaded:", "numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: False" in done.stdout


def test_code_is_compiled_where_no_cache_can_be_written() -> None:
    scope: dict[str, object] = {}
    exec("def twice(x):\n    return 2 * x", scope)  # no file, so no folder beside it
    twice = accelerator.jit(scope["twice"])  # type: ignore[type-var]
    assert twice(21) == 42
    assert twice.signatures  # type: ignore[attr-defined]


def test_work_keeps_its_order_in_threads_and_errors_arrive() -> None:
    assert accelerator.in_threads(lambda item: item * item, range(7)) == [n * n for n in range(7)]
    with pytest.raises(ZeroDivisionError):
        accelerator.in_threads(lambda item: 1 / item, [1, 2, 0])


def test_torch_compiles_only_where_asked_and_nothing_else_does() -> None:
    few, many = torch.zeros(2, 2), torch.zeros(400, 400)
    with accelerator.compiled_by_torch(False):
        assert accelerator.fused_for(few) is None
    with accelerator.compiled_by_torch():
        assert accelerator.fused_for(few) is fused_torch
        assert accelerator.fused_for(many.double()) is fused_torch
        assert accelerator.fused_for(many) is fused
        assert accelerator.fused_for(many.to("meta")) is None
    assert accelerator.fused_for(few) is None
