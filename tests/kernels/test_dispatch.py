"""Numba is an extra: nothing needs it, and nothing loads it before there is work for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from xmclab.kernels import dispatch


@pytest.fixture
def fresh() -> Iterator[None]:
    dispatch.numba_works.cache_clear()
    yield
    dispatch.numba_works.cache_clear()


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
    twice = dispatch.jit(scope["twice"])  # type: ignore[type-var]
    assert twice(21) == 42
    assert twice.signatures  # type: ignore[attr-defined]


def test_work_keeps_its_order_in_threads_and_errors_arrive() -> None:
    assert dispatch.in_threads(pow, [(n, 2) for n in range(7)]) == [n * n for n in range(7)]
    with pytest.raises(ZeroDivisionError):
        dispatch.in_threads(lambda item: 1 / item, [(1,), (2,), (0,)])


def plain(x: torch.Tensor) -> str:
    return "plain"


def test_an_accelerator_replaces_what_it_is_for_and_torch_compiles_the_rest_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loops = SimpleNamespace(plain=lambda x: "numba")
    monkeypatch.setattr(dispatch, "_loops", lambda name: loops)
    monkeypatch.setattr(dispatch, "_compiled", lambda function: lambda x: "torch")
    monkeypatch.setattr(dispatch, "WORTH_A_PASS", 100)
    few, many = torch.zeros(2, 2), torch.zeros(40, 40)
    function = dispatch.accelerated_by("scores", when=dispatch.large_matrix, by_torch=True)(plain)
    assert [function(few), function(many), function(many.double()), function(many.T[1:])] == [
        "plain",
        "numba",
        "plain",
        "plain",
    ]
    with dispatch.compiled_by_torch():
        assert [function(few), function(many), function(many.double())] == ["torch", "numba", "torch"]
    assert function(few) == "plain"
    loops.plain = lambda x: NotImplemented
    assert function(many) == "plain"
    with dispatch.compiled_by_torch():
        assert dispatch.accelerated_by("scores", when=dispatch.large_matrix)(plain)(few) == "plain"


@pytest.mark.usefixtures("fresh")
def test_without_numba_the_plain_version_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert dispatch.accelerated_by("scores", when=lambda x: True)(plain)(torch.zeros(1)) == "plain"
