"""Installations made of real metadata in a folder, and machines made of the files that Linux shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab_doctor.facts import Machine

Site = Callable[..., Machine]
XMCLAB = (
    "numpy>=1.26",
    "torch>=2.4",
    "transformers>=5",
    "faiss-cpu>=1.15; extra == 'cpu'",
    "faiss-gpu>=1.15; extra == 'gpu'",
    "numba>=0.60; extra == 'speed'",
    "numba>=0.60; extra == 'dev'",
)
SOUND = {"xmclab": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0", "transformers": "5.22.2"}


def put(site: Path, name: str, version: str) -> None:
    """Install a distribution: its metadata, and its package where its name says what that is."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in XMCLAB if name == "xmclab"]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if name.startswith("faiss"):
        (site / "faiss").mkdir(exist_ok=True)


@pytest.fixture
def machine(tmp_path: Path) -> Site:
    """A machine with these distributions besides what every run needs: (driver, cards, environment, versions by
    name); a version of None removes."""

    def make(
        driver: str | None = None,
        cards: int = 0,
        environment: dict[str, str] | None = None,
        **versions: str | None,
    ) -> Machine:
        site, root = tmp_path / "site", tmp_path / "root"
        for name, version in (SOUND | {name.replace("_", "-"): text for name, text in versions.items()}).items():
            if version is not None:
                put(site, name, version)
        for number in range(cards):
            device = root / f"sys/bus/pci/devices/0000:0{number}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x10de\n")
            (device / "class").write_text("0x030200\n")
        if driver is not None:
            folder = root / "proc/driver/nvidia"
            folder.mkdir(parents=True)
            line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
            (folder / "version").write_text(line)
        return Machine(root, [str(site)], environment or {})

    return make
