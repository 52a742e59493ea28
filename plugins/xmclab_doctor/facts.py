"""What is known about a machine, without judging it. Nothing here raises because something is missing or broken."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

NVIDIA, DISPLAYS = "0x10de", "0x03"  # vendor, and the class of graphics cards, on the PCI bus
DRIVER_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d[\d.]*)")
CUDA_LIBRARY = "libcuda.so.1"
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/compat",
    "usr/lib/wsl/lib",
)
ISA_VARIABLE, SAFE_ISA = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
# Shapes and transposes of a step; where the CPU or its virtual machine does not keep its word, the process dies.
TRIAL = """
import torch
x = torch.ones(96, 64, requires_grad=True)
w = torch.ones(64, 64, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = torch.nn.functional.linear(x, w)
    s = y @ y.T
s.float().sum().backward()
for rows in (1, 3, 17, 512):
    a = torch.ones(rows, 96, dtype=torch.bfloat16)
    a @ a.T, a.T @ a, a.expand(2, -1, -1) @ a.T
"""
PATIENCE = 60.0  # seconds that the trial may take on a busy machine


@dataclass(frozen=True)
class Distribution:
    """An installed distribution."""

    name: str  # normalised: lower case, dashes
    version: str
    folder: Path  # site-packages that holds it
    requires: tuple[str, ...] = ()

    def has(self, module: str) -> bool:
        """Whether the module that it supplies is really there."""
        return (self.folder / module).is_dir() or (self.folder / f"{module}.py").is_file()

    def satisfies(self, requirement: str) -> bool:
        """Whether its version is one that a requirement allows; a version of unknown form is."""
        try:
            return Requirement(requirement).specifier.contains(Version(self.version), prereleases=True)
        except InvalidVersion:
            return True


@dataclass(frozen=True)
class CardFacts:
    """A GPU, as torch sees it; memory in bytes."""

    name: str
    capability: tuple[int, int]
    total: int
    free: int | None = None


@dataclass(frozen=True)
class TorchFacts:
    """What the installed torch says of itself."""

    version: str = ""
    cuda: str | None = None  # version of CUDA that it was built for
    hip: str | None = None  # the same of ROCm
    architectures: tuple[str, ...] = ()  # such as sm_80
    available: bool = False  # whether it can compute on a card
    cards: tuple[CardFacts, ...] = ()
    isa: str = ""  # what its own CPU kernels use
    threads: int = 0
    error: str = ""  # why it cannot be imported
    no_cuda: str = ""  # its own words on why it finds no card


@dataclass(frozen=True)
class Machine:
    """Where everything is looked up; tests point it elsewhere."""

    root: Path = Path("/")  # of /proc, /sys, /dev, /usr
    paths: Sequence[str] | None = None  # folders of distributions; None: sys.path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def distributions(self) -> dict[str, Distribution]:
        """Every installed distribution by its name; of two with one name, that which is imported."""
        found: dict[str, Distribution] = {}
        for each in self._metadata():
            name = canonicalize_name(each.metadata["Name"] or "")
            if name and name not in found:
                folder = Path(str(each.locate_file("")))
                found[name] = Distribution(name, each.version, folder, tuple(each.requires or ()))
        return found

    def _metadata(self) -> Iterator[metadata.Distribution]:
        yield from metadata.distributions(path=list(sys.path if self.paths is None else self.paths))

    def driver(self) -> str | None:
        """The version of NVIDIA's kernel driver; empty if it does not say, None without one."""
        with contextlib.suppress(OSError):
            text = (self.root / "proc/driver/nvidia/version").read_text()
            found = DRIVER_VERSION.search(text)
            return found[1] if found else ""
        return "" if (self.root / "dev/dxg").exists() else None  # Windows below this Linux

    def cuda_library(self) -> bool:
        """Whether the library that talks to the driver is here."""
        folders = [self.root / folder for folder in LIBRARY_FOLDERS]
        given = self.environment.get("LD_LIBRARY_PATH", "")
        folders += [self.root / folder.lstrip("/") for folder in given.split(":") if folder]
        return any((folder / CUDA_LIBRARY).exists() for folder in folders)

    def cards_on_the_bus(self) -> int:
        """NVIDIA's graphics cards in this machine, with or without a driver."""
        found = 0
        for device in (self.root / "sys/bus/pci/devices").glob("*"):
            with contextlib.suppress(OSError):
                kind, vendor = ((device / name).read_text().strip() for name in ("class", "vendor"))
                found += vendor == NVIDIA and kind.startswith(DISPLAYS)
        return found

    def cpu_flags(self) -> frozenset[str]:
        """What the CPU can do, in the words of Linux."""
        with contextlib.suppress(OSError):
            for line in (self.root / "proc/cpuinfo").read_text().splitlines():
                name, _, words = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return frozenset(words.split())
        return frozenset()


def import_torch() -> tuple[Any, str]:
    """(torch, why it cannot be imported)."""
    try:
        return importlib.import_module("torch"), ""
    except (ImportError, OSError) as error:  # OSError: a library that it needs is missing
        lines = str(error).strip().splitlines()
        return None, lines[0] if lines else type(error).__name__


def torch_facts(torch: Any) -> TorchFacts:
    """What a torch module says."""
    available = bool(torch.cuda.is_available())
    cards = tuple(_card(torch, number) for number in range(torch.cuda.device_count())) if available else ()
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        architectures=_architectures(torch),
        available=available,
        cards=cards,
        isa=str(torch.backends.cpu.get_cpu_capability()),
        threads=int(torch.get_num_threads()),
        no_cuda="" if available or not torch.version.cuda else _refusal(torch),
    )


def _card(torch: Any, number: int) -> CardFacts:
    properties = torch.cuda.get_device_properties(number)
    free = None
    with contextlib.suppress(RuntimeError):  # the card is taken by another process alone
        free = int(torch.cuda.mem_get_info(number)[0])
    return CardFacts(str(properties.name), (properties.major, properties.minor), int(properties.total_memory), free)


def _architectures(torch: Any) -> tuple[str, ...]:
    """Also without a card, for which torch's own function returns nothing."""
    with contextlib.suppress(AttributeError, RuntimeError):
        if flags := torch._C._cuda_getArchFlags():
            return tuple(flags.split())
    return tuple(torch.cuda.get_arch_list())


def _refusal(torch: Any) -> str:
    """What torch says when CUDA is asked for all the same."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError, AttributeError) as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return ""


class Bfloat16Trial:
    """Products in bfloat16 on the CPU, in a process of their own: on some machines they kill it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process = self._start(self.environment)

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen([sys.executable, "-c", TRIAL], stdin=quiet, stdout=quiet, stderr=quiet, env=environment)

    def __enter__(self) -> Bfloat16Trial:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:  # nobody asked
            self._process.kill()
            self._process.wait()

    def outcome(self) -> tuple[bool | None, bool | None]:
        """Whether the process survived, and whether one does where oneDNN may use fewer instructions.

        None: it took too long, or was not needed.
        """
        works = self._ended(self._process)
        if works is not False:
            return works, None
        return works, self._ended(self._start({**self.environment, ISA_VARIABLE: SAFE_ISA}))

    @staticmethod
    def _ended(process: subprocess.Popen[bytes]) -> bool | None:
        try:
            return process.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None
