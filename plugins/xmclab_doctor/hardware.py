"""The machine: NVIDIA's driver and cards, or the CPU, and what runs will make of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from xmclab.errors import XmclabError
from xmclab.system import usage
from xmclab_doctor.facts import ISA_VARIABLE, SAFE_ISA, CardFacts, Machine, TorchFacts
from xmclab_doctor.findings import Finding, note, ok, problem
from xmclab_doctor.software import has_cards, wheel_of_torch

NEEDED_DRIVER = {11: 450, 12: 525, 13: 580}  # major versions of CUDA and of the driver, on Linux
OLDEST_DRIVER = NEEDED_DRIVER[12]  # of torch's builds of today
NATIVE_BFLOAT16 = 8, 0  # capability from which products in bfloat16 are not emulated
GIB = 1024**3


def hardware(
    machine: Machine, torch: TorchFacts, trial: Callable[[], tuple[bool | None, bool | None]]
) -> Iterator[Finding]:
    """Findings about what computes.

    Args:
        trial: (whether bfloat16 products work on this CPU, whether they do with fewer instructions); asked for where
            runs will use the CPU.
    """
    yield from _driver(machine, torch)
    for number, card in enumerate(torch.cards):
        yield from card_findings(machine, torch, number, card)
    if not torch.cards and not torch.error:
        yield from cpu(machine, torch, trial)


def _driver(machine: Machine, torch: TorchFacts) -> Iterator[Finding]:
    """The driver, or why cards that are here cannot be used."""
    driver, cards = machine.driver(), machine.cards_on_the_bus()
    if torch.available:
        version = driver or "version unknown"
        yield ok("hardware", "driver", f"{version}, CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}")
    elif not has_cards(machine):
        if torch.cuda:
            what = f"none, and torch was built for CUDA {torch.cuda}"
            yield note("hardware", "driver", what, "no NVIDIA card is visible here, so runs use the CPU")
    elif driver is None:
        what = f"none, with {cards} NVIDIA card{'s' * (cards > 1)} in this machine"
        fix = f"install NVIDIA's driver{_at_least(torch.cuda)}, then restart the machine"
        yield problem("hardware", "driver", what, "no run can use the card: device=cuda fails, auto is the CPU", fix)
    elif torch.cuda:
        yield _unusable(machine, torch, driver)
    elif too_old(driver, OLDEST_DRIVER):
        fix = f"update the driver to {OLDEST_DRIVER} or newer"
        yield problem("hardware", "driver", f"{driver} is too old for CUDA 12", "no torch of today can use it", fix)
    else:
        yield note("hardware", "driver", driver or "found", "this torch cannot use it")


def _unusable(machine: Machine, torch: TorchFacts, driver: str) -> Finding:
    """There is a driver and a torch for CUDA, which find no card."""
    needed = _needed(torch.cuda)
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        fix = "unset CUDA_VISIBLE_DEVICES"
        return note("hardware", "driver", f"CUDA_VISIBLE_DEVICES={hidden} hides all cards", "runs use the CPU", fix)
    if needed and too_old(driver, needed):
        what = f"{driver} is too old for CUDA {torch.cuda}"
        fix = f"update the driver to {needed} or newer"
        if not too_old(driver, OLDEST_DRIVER):  # an older CUDA would do
            fix += f", or: {wheel_of_torch(machine, reinstall=True)}"
        return problem("hardware", "driver", what, "no run can use the card", fix)
    if not machine.cuda_library():
        what = f"{driver or 'found'}, but libcuda.so.1 is missing"
        fix = "start the container with access to the cards (--gpus all), or install the driver's libraries"
        return problem("hardware", "driver", what, "no run can use the card", fix)
    what = f"{driver or 'found'}, but torch finds no card"
    return problem("hardware", "driver", what, torch.no_cuda or "no run can use the card", "nvidia-smi")


def too_old(driver: str, needed: int) -> bool:
    """Whether a driver of this version is; one of unknown version is not."""
    number = driver.partition(".")[0]
    return bool(number) and int(number) < needed


def _needed(cuda: str | None) -> int | None:
    return NEEDED_DRIVER.get(int(cuda.partition(".")[0])) if cuda else None


def _at_least(cuda: str | None) -> str:
    needed = _needed(cuda)
    return f", {needed} or newer for CUDA {cuda}" if needed else ""


def card_findings(machine: Machine, torch: TorchFacts, number: int, card: CardFacts) -> Iterator[Finding]:
    """A card: its memory, whether this torch has code for it, and bfloat16."""
    name = f"cuda:{number}"
    version = ".".join(map(str, card.capability))
    what = f"{card.name}, {card.total / GIB:.1f} GiB, capability {version}"
    if card.free is not None:
        what += f", {card.free / GIB:.1f} GiB free"
    if torch.cuda and not serves(torch.architectures, card.capability):
        why = f"this torch has no code for it, only for {' '.join(torch.architectures)}: every run fails on it"
        yield problem("hardware", name, what, why, wheel_of_torch(machine, reinstall=True, old_card=True))
        return
    if card.free is not None and card.free < card.total / 2:
        why = "other programs hold more than half of its memory"
        yield note("hardware", name, what, why, "nvidia-smi lists them")
    else:
        yield ok("hardware", name, what)


def serves(architectures: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether code for these architectures runs on a card: the same major version, or PTX of an earlier one."""
    for each in architectures:
        kind, _, digits = each.partition("_")
        digits = digits.rstrip("af")  # code for one architecture or family alone: sm_90a
        if not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        if (built[0] == capability[0] and built[1] <= capability[1]) or (kind == "compute" and built <= capability):
            return True
    return False


def cpu(machine: Machine, torch: TorchFacts, trial: Callable[[], tuple[bool | None, bool | None]]) -> Iterator[Finding]:
    """Cores, threads, memory, and whether products in bfloat16 are safe."""
    cores, free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), usage.free()
    memory = f", {free / GIB:.1f} GiB free" if free else ""
    limit = machine.environment.get("OMP_NUM_THREADS")
    threads = f"{torch.threads} thread{'s' * (torch.threads != 1)}" + (f" (OMP_NUM_THREADS={limit})" if limit else "")
    what = f"{torch.isa}, {cores} core{'s' * (cores != 1)}, {threads}{memory}"
    if cores and torch.threads > cores:
        why = "more threads than cores wait for each other"
        yield note("hardware", "CPU", what, why, f"export OMP_NUM_THREADS={cores}")
    else:
        yield ok("hardware", "CPU", what)
    yield _bfloat16(machine, trial)


def _bfloat16(machine: Machine, trial: Callable[[], tuple[bool | None, bool | None]]) -> Finding:
    native = machine.cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"}
    how = f"native ({', '.join(sorted(native))})" if native else "emulated, slower than float32"
    works, with_less = trial()
    if works is None:
        return note("hardware", "bfloat16", f"{how}; a trial did not end", "precision=bfloat16 is untested here")
    if works:
        return ok("hardware", "bfloat16", f"{how}; a trial in another process worked")
    fix = f"export {ISA_VARIABLE}={SAFE_ISA}" if with_less else "leave precision at auto or float32"
    why = "a run with precision=bfloat16 would die without a message; auto is float32 on a CPU"
    return note("hardware", "bfloat16", "products kill the process that computes them", why, fix)


ROADS = {  # of attention within packed texts, as xmclab.model.encoders.varlen names them
    "varlen": "one kernel for texts of all lengths",
    "flash": "one kernel for texts of all lengths, by a private function of this torch; torch 2.10 has a public one",
    "efficient": "one kernel for texts of all lengths, for float32 and older cards",
    "grouped": "products for the texts of each length",
}
HEAD = 64  # width of an attention head in most models


def choices(torch: TorchFacts, wanted: Literal["auto", "float32", "bfloat16"] = "auto") -> Iterator[Finding]:
    """The precision and the attention of a run, decided where it decides them."""
    from xmclab.model.device import name_of, pick_device, precision_of
    from xmclab.model.encoders.varlen import road_of

    device = pick_device("auto")
    try:
        chosen = precision_of(device, wanted, tf32=True)
        road = road_of(device, chosen.dtype, HEAD)
    except XmclabError as error:
        yield from (
            problem("hardware", each.where, each.message, "the run stops", each.hint) for each in error.problems
        )
        return
    what = f"precision={wanted} is {name_of(chosen.dtype)} on {device}"
    native = bool(torch.cards) and torch.cards[device.index or 0].capability >= NATIVE_BFLOAT16
    if device.type == "cpu":
        why = "bfloat16 may be slower on a CPU, and is never chosen by itself"
    elif native:
        why = "products in bfloat16 are native, sums are float32; what stays in float32 is multiplied by TF32"
    else:
        why = "this card would emulate bfloat16"
    yield ok("hardware", "precision", what, why)
    yield ok("hardware", "attention", f"{road}: {ROADS[road]}", "of models without padding (encoder.packing=auto)")
