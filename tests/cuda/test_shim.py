"""Where there is no fake device, the tests say why."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest
import shim
import torch


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (shutil, "which", lambda _: None, "no C++ compiler; install g++, or set CXX"),
        (
            torch,
            "__version__",
            "9.0.1+cpu",
            "torch 9.0.1+cpu is unknown; known: 2.13. Try it, then add it to shim.KNOWN",
        ),
        (torch.version, "cuda", "13.0", "has CUDA of its own; install a CPU build"),
        (sys, "platform", "darwin", "the shim is loaded by LD_PRELOAD, which darwin lacks"),
    ],
)
def test_the_reason_is_named(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, value: Any, reason: str) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(where, name, value)
    assert shim.missing().startswith("fake CUDA device: ")
    assert reason in shim.missing()


def test_without_it_tests_are_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "missing", lambda: "no such thing here")
    with pytest.warns(UserWarning, match="no such thing here"), pytest.raises(pytest.skip.Exception):
        shim.require()
