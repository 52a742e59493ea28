"""The report of `--bench`: one JSON document, without names of machines, people or folders."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import platform
import re
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from xmclab.model.device import pick_device
from xmclab_doctor.bench import peaks, waits
from xmclab_doctor.bench.equality import Check, Steps, loss_checks, search_check
from xmclab_doctor.bench.rows import Measured, Size, rows
from xmclab_doctor.bench.synthetic import Network
from xmclab_doctor.bench.verdict import verdict

SCHEMA = 1
KIND = "xmclab doctor --bench"
DISTRIBUTIONS = ("xmclab", "torch", "triton", "transformers", "numpy", "scipy", "numba", "flash-attn")
FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12", "faiss-gpu-cuvs")
COMPARED = Network(2, 32, 4, 200, 64)  # what equality is checked with
HIDDEN = "***"
Say = Callable[[str], None]


def bench(size: Size, say: Say = lambda text: None) -> dict[str, Any]:
    """Everything, in the order of the report. Nothing that fails ends it.

    Args:
        say: where progress goes.
    """
    device = pick_device("auto")
    started = time.perf_counter()
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("1 of 4: equality with plain computations" + (" and with the CPU" if device.type == "cuda" else ""))
        small = Steps(folder / "small", device, COMPARED, size.trained)
        checks = [*loss_checks(device, half, size.losses), search_check(device), *small.checks(size.tables)]
        say("2 of 4: waits")
        waited = counted(small)
        say("3 of 4: peaks of the device")
        found = peaks.measure(device, half, size.product)
        say("4 of 4: rows")
        measured = []
        for row in rows(folder / "rows", device, half, size, found.speeds()):
            say(f"  {row.name}, {row.variant}: " + (row.skipped or f"{row.ms:.0f} ms"))
            measured.append(row)
    return document(device, checks, waited, found, measured, time.perf_counter() - started)


def counted(small: Steps) -> waits.Waits:
    """The waits of the small model's steps."""
    try:
        return waits.count(small.trainer(small.device))
    except Exception as error:  # a wait that torch cannot report must not end the rest
        return waits.Waits(None, {}, f"{type(error).__name__}: {error}")


def document(
    device: torch.device,
    checks: list[Check],
    waited: waits.Waits,
    found: peaks.Peaks,
    measured: list[Measured],
    seconds: float,
) -> dict[str, Any]:
    """The report, with everything private taken out of it."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": KIND,
        "seconds": seconds,
        "machine": machine(device),
        "versions": versions(),
        "equality": [check.document() for check in checks],
        "waits": waited.document(),
        "peaks": found.document(),
        "rows": [row.document() for row in measured],
        "verdict": [goal.document() for goal in verdict(card, checks, waited, measured)],
    }
    cleaned: dict[str, Any] = clean(made, private())
    return cleaned


def machine(device: torch.device) -> dict[str, Any]:
    """What computes: nothing that tells one machine from another of its kind."""
    found: dict[str, Any] = {
        "device": device.type,
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        found |= {
            "card": card.name,
            "capability": [card.major, card.minor],
            "memory_bytes": card.total_memory,
            "cuda": torch.version.cuda,
            "architectures": torch.cuda.get_arch_list(),
        }
    return found


def versions() -> dict[str, str]:
    """Of the distributions that matter; those that are not installed are left out."""
    found = {}
    for name in (*DISTRIBUTIONS, *FAISS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def private() -> list[str]:
    """Names that messages of libraries may contain."""
    found = [socket.gethostname(), str(Path.home()), str(Path.cwd()), tempfile.gettempdir(), Path.home().name]
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        found.append(getpass.getuser())
    # Short ones would also hit words that have nothing to do with them.
    return sorted({name for name in found if len(name) > 2}, key=len, reverse=True)


def clean(value: Any, names: list[str]) -> Any:
    """A document without these names, and without absolute paths."""
    if isinstance(value, dict):
        return {clean(key, names): clean(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each, names) for each in value]
    if not isinstance(value, str):
        return value
    value = re.sub(r"(?<![\w.])(?:[A-Za-z]:\\|/)(?:[\w.+-]+[/\\])+[\w.+-]*", HIDDEN, value)
    for name in names:
        value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, value)
    return value
