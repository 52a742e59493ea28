"""Builds `shim.cpp`, without which a CPU build of torch cannot follow gradients on a fake CUDA device."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("shim.cpp")
KNOWN = ("2.13",)  # versions of torch whose insides this was tried with


def missing() -> str:
    """Why the fake device cannot be had here; empty if it can."""
    if not sys.platform.startswith("linux"):
        return f"fake CUDA device: the shim is loaded by LD_PRELOAD, which {sys.platform} lacks"
    if torch.version.cuda is not None:
        return (
            f"fake CUDA device: torch {torch.__version__} has CUDA of its own; install a CPU build to run these tests"
        )
    if not torch.__version__.startswith(tuple(f"{version}." for version in KNOWN)):
        known = ", ".join(KNOWN)
        return (
            f"fake CUDA device: torch {torch.__version__} is unknown; known: {known}. Try it, then add it to shim.KNOWN"
        )
    if compiler() is None:
        return "fake CUDA device: no C++ compiler; install g++, or set CXX"
    return ""


def require() -> None:
    """Skip a test, and warn, where it cannot be had."""
    import pytest

    if reason := missing():
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")


def build(folder: Path) -> Path:
    """The compiled shim in this folder, where it is kept for the next time."""
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode() + torch.__file__.encode())
    library = folder / f"shim-{digest.hexdigest()[:16]}.so"
    if not library.is_file():
        root, unfinished = Path(torch.__file__).parent, library.with_suffix(f".{os.getpid()}")
        libraries = [f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-lc10", "-ltorch_cpu"]
        command = [compiler() or "c++", "-shared", "-fPIC", "-std=c++20", f"-I{root / 'include'}", str(SOURCE)]
        done = subprocess.run(
            [*command, *libraries, "-o", str(unfinished)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
        unfinished.replace(library)
    return library


def environment(library: Path) -> dict[str, str]:
    """Variables of a process with the shim, on one thread and without a model hub."""
    return {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
