"""What is read from a machine, and what a torch says of itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Of
from typing import Any

import torch

from xmclab_doctor import facts
from xmclab_doctor.facts import Bfloat16Trial, CardFacts, Machine, torch_facts

GIB = 1024**3


def torch_for_cuda(available: bool, **cuda: Any) -> Any:
    """A torch built for CUDA, as far as it is looked at."""

    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    card = Of(name="A card", major=8, minor=9, total_memory=24 * GIB)
    known = {
        "is_available": lambda: available,
        "device_count": lambda: 1,
        "get_device_properties": lambda number: card,
        "mem_get_info": lambda number: (20 * GIB, 24 * GIB),
        "get_arch_list": list,  # what torch returns without a card
        "init": init,
    }
    return Of(
        __version__="2.13.0+cu128",
        version=Of(cuda="12.8", hip=None),
        cuda=Of(**(known | cuda)),
        _C=Of(_cuda_getArchFlags=lambda: "sm_80 sm_90 compute_90"),
        backends=Of(cpu=Of(get_cpu_capability=lambda: "AVX2")),
        get_num_threads=lambda: 4,
    )


def test_distributions_are_those_of_the_path_and_the_first_of_a_name_counts(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    found = machine(faiss_cpu="1.15.1")
    other = tmp_path / "other" / "faiss_cpu-1.7.4.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: faiss-cpu\nVersion: 1.7.4\n")
    both = Machine(found.root, [*(found.paths or ()), str(other.parent)])
    wheel = both.distributions()["faiss-cpu"]
    assert (wheel.version, wheel.has("faiss"), wheel.has("numba")) == ("1.15.1", True, False)
    assert wheel.satisfies("faiss-cpu>=1.15")
    assert not wheel.satisfies("faiss-cpu>=1.16")
    reverse = Machine(found.root, [str(other.parent), *(found.paths or ())])
    assert reverse.distributions()["faiss-cpu"].version == "1.7.4"


def test_the_real_installation_is_read() -> None:
    found = Machine().distributions()
    assert found["torch"].has("torch")
    assert any(text.startswith("torch") for text in found["xmclab"].requires)


def test_drivers_and_cards_are_read_from_the_system(machine: Callable[..., Machine]) -> None:
    found = machine(driver="560.35.03", cards=2)
    assert (found.driver(), found.cards_on_the_bus(), found.cuda_library()) == ("560.35.03", 2, False)
    (found.root / "usr/lib/wsl/lib").mkdir(parents=True)
    (found.root / "usr/lib/wsl/lib/libcuda.so.1").touch()
    assert found.cuda_library()
    (found.root / "sys/bus/pci/devices/0000:00:00.0/class").write_text("0x040300\n")  # its sound
    assert found.cards_on_the_bus() == 1


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    found = Machine(tmp_path, [], {})
    assert (found.driver(), found.cards_on_the_bus(), found.cpu_flags(), found.distributions()) == (
        None,
        0,
        frozenset(),
        {},
    )


def test_the_older_kernel_module_and_windows_below_are_drivers(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(line)
    assert Machine(tmp_path).driver() == "535.183.01"
    other = tmp_path / "wsl"
    (other / "dev").mkdir(parents=True)
    (other / "dev/dxg").touch()
    assert Machine(other).driver() == ""


def test_flags_of_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16\n\nprocessor\t: 1\n")
    assert Machine(tmp_path).cpu_flags() == {"fpu", "avx512_bf16"}


def test_a_torch_without_a_driver_says_why_and_still_lists_its_architectures() -> None:
    found = torch_facts(torch_for_cuda(available=False))
    assert (found.available, found.cards, found.cuda) == (False, (), "12.8")
    assert found.no_cuda == "Found no NVIDIA driver on your system."
    assert found.architectures == ("sm_80", "sm_90", "compute_90")


def test_a_torch_with_a_card() -> None:
    found = torch_facts(torch_for_cuda(available=True))
    assert found.cards == (CardFacts("A card", (8, 9), 24 * GIB, 20 * GIB),)
    assert found.no_cuda == ""


def test_a_card_that_another_process_has_alone_is_listed() -> None:
    def busy(number: int) -> Any:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    found = torch_facts(torch_for_cuda(available=True, mem_get_info=busy))
    assert found.cards[0].free is None


def test_the_torch_of_the_tests() -> None:
    found = torch_facts(torch)
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)
    assert found.threads == torch.get_num_threads()


def test_a_trial_that_dies_is_told_from_one_that_works(monkeypatch: Any) -> None:
    """Processes that end as products in bfloat16 would have them end, with and without the limit of oneDNN."""
    ends = "import os, signal; 'ONEDNN_MAX_CPU_ISA' in os.environ or os.kill(os.getpid(), signal.SIGILL)"
    theirs = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    for code, outcome in ((ends, (False, True)), ("pass", (True, None)), ("raise SystemExit(1)", (False, False))):
        monkeypatch.setattr(facts, "TRIAL", code)
        with Bfloat16Trial(theirs) as trial:
            assert trial.outcome() == outcome
