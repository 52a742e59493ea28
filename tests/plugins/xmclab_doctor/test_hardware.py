"""Drivers, cards and CPUs, sound and not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from xmclab_doctor.facts import CardFacts, Machine, TorchFacts
from xmclab_doctor.findings import Finding, exit_code
from xmclab_doctor.hardware import choices, hardware, serves

GIB = 1024**3
Make = Callable[..., Machine]
WITHOUT = TorchFacts("2.13.0+cu128", "12.8", None, ("sm_80", "sm_90"), isa="AVX2", threads=1, no_cuda="no driver")
CARD = CardFacts("A card", (8, 0), 40 * GIB, 39 * GIB)
WITH = replace(WITHOUT, available=True, cards=(CARD,))


def looked(
    machine: Machine, torch: TorchFacts, outcome: tuple[bool | None, bool | None] = (True, None)
) -> dict[str, Finding]:
    return {each.name: each for each in hardware(machine, torch, lambda: outcome)}


def test_a_torch_for_cuda_without_driver_or_card_is_a_note(machine: Make) -> None:
    found = looked(machine(), WITHOUT)
    assert (found["driver"].status, found["driver"].what) == ("note", "none, and torch was built for CUDA 12.8")
    assert "no NVIDIA card is visible" in found["driver"].why
    assert exit_code(found.values()) == 0
    assert "CPU" in found


def test_a_card_without_a_driver_is_a_problem(machine: Make) -> None:
    found = looked(machine(cards=1), WITHOUT)["driver"]
    assert (found.status, found.what) == ("problem", "none, with 1 NVIDIA card in this machine")
    assert "525 or newer for CUDA 12.8" in found.fix


def test_a_driver_that_is_too_old_names_the_one_that_is_needed(machine: Make) -> None:
    found = looked(machine(driver="560.35.03", cards=1), replace(WITHOUT, cuda="13.0"))["driver"]
    assert (found.status, found.what) == ("problem", "560.35.03 is too old for CUDA 13.0")
    assert found.fix.startswith("update the driver to 580 or newer, or: pip install")
    assert found.fix.endswith("the URL for cu126 from pytorch.org")


@pytest.mark.parametrize("cuda", ["12.8", None])
def test_a_driver_that_is_too_old_for_any_torch_is_to_be_updated(machine: Make, cuda: str | None) -> None:
    found = looked(machine(driver="470.256.02", cards=1), replace(WITHOUT, cuda=cuda))["driver"]
    assert (found.status, found.fix) == ("problem", "update the driver to 525 or newer")


def test_a_container_without_access_to_the_card(machine: Make) -> None:
    found = looked(machine(driver="560.35.03"), WITHOUT)["driver"]
    assert (found.status, found.what) == ("problem", "560.35.03, but libcuda.so.1 is missing")
    assert "--gpus all" in found.fix


def test_torch_has_the_last_word_on_why_it_finds_no_card(machine: Make) -> None:
    made = machine(driver="560.35.03")
    (made.root / "usr/lib64").mkdir(parents=True)
    (made.root / "usr/lib64/libcuda.so.1").touch()
    found = looked(made, WITHOUT)["driver"]
    assert (found.status, found.why) == ("problem", "no driver")


@pytest.mark.parametrize("value", ["", "-1"])
def test_cards_that_a_variable_hides_are_no_problem(machine: Make, value: str) -> None:
    made = machine(driver="560.35.03", cards=1, environment={"CUDA_VISIBLE_DEVICES": value})
    found = looked(made, WITHOUT)["driver"]
    assert (found.status, found.fix) == ("note", "unset CUDA_VISIBLE_DEVICES")


def test_a_card_that_can_be_used(machine: Make) -> None:
    found = looked(machine(driver="560.35.03", cards=1), WITH)
    assert found["cuda:0"].what == "A card, 40.0 GiB, capability 8.0, 39.0 GiB free"
    assert {each.status for each in found.values()} == {"ok"}
    assert "CPU" not in found


def test_a_card_that_others_use_is_a_note(machine: Make) -> None:
    busy = replace(WITH, cards=(replace(CARD, free=3 * GIB),))
    assert looked(machine(driver="560.35.03", cards=1), busy)["cuda:0"].status == "note"


def test_a_card_that_this_torch_has_no_code_for_is_a_problem(machine: Make) -> None:
    """CUDA 13 has no sm_70."""
    old = replace(
        WITH, cuda="13.0", architectures=("sm_75", "sm_80", "compute_80"), cards=(replace(CARD, capability=(7, 0)),)
    )
    found = looked(machine(driver="580.65.06", cards=1), old)["cuda:0"]
    assert found.status == "problem"
    assert "sm_75 sm_80" in found.why
    assert found.fix.endswith("the URL for cu126 from pytorch.org")


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (["sm_80", "sm_90"], (8, 0), True),
        (["sm_80", "sm_90"], (8, 9), True),  # the same major version
        (["sm_86"], (8, 0), False),
        (["sm_75", "sm_80"], (7, 0), False),
        (["sm_80"], (9, 0), False),
        (["sm_80", "compute_80"], (9, 0), True),  # compiled by the driver
        (["compute_90"], (8, 9), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100", "sm_120"], (12, 0), True),
        ([], (8, 0), False),
    ],
)
def test_which_cards_code_runs_on(architectures: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert serves(architectures, capability) is runs


def test_products_that_kill_a_process_come_with_what_helped(machine: Make) -> None:
    found = looked(machine(), replace(WITHOUT, cuda=None), (False, True))["bfloat16"]
    assert (found.status, found.fix) == ("note", "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")
    found = looked(Machine(paths=[], environment={}), replace(WITHOUT, cuda=None), (False, False))["bfloat16"]
    assert found.fix == "leave precision at auto or float32"


def test_bfloat16_on_a_cpu(machine: Make) -> None:
    made = machine()
    (made.root / "proc").mkdir(parents=True)
    (made.root / "proc/cpuinfo").write_text("flags : fpu avx512_bf16\n")
    assert looked(made, WITHOUT)["bfloat16"].what.startswith("native (avx512_bf16)")
    (made.root / "proc/cpuinfo").write_text("flags : fpu\n")
    assert looked(made, WITHOUT)["bfloat16"].what.startswith("emulated")
    assert looked(made, WITHOUT, (None, None))["bfloat16"].status == "note"


def test_more_threads_than_cores_are_a_note(machine: Make) -> None:
    found = looked(machine(), replace(WITHOUT, threads=4096))["CPU"]
    assert (found.status, found.fix.startswith("export OMP_NUM_THREADS=")) == ("note", True)


@pytest.mark.parametrize(
    ("capability", "precision", "road"),
    [((8, 0), "bfloat16", ("varlen", "flash")), ((7, 0), "float32", ("efficient",))],
)
def test_precision_and_attention_are_those_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str, road: tuple[str, ...]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: capability)
    monkeypatch.setattr("torch.backends.cuda.is_flash_attention_available", lambda: True)
    found = {each.name: each for each in choices(replace(WITH, cards=(replace(CARD, capability=capability),)))}
    assert found["precision"].what == f"precision=auto is {precision} on cuda"
    assert found["attention"].what.partition(":")[0] in road


def test_a_precision_that_a_card_lacks_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (7, 5))
    [found] = choices(WITH, "bfloat16")
    assert (found.status, found.name) == ("problem", "precision=bfloat16")


def test_a_limit_of_threads_is_named(machine: Make) -> None:
    made = machine()
    for environment, named in (({"OMP_NUM_THREADS": "1"}, True), ({}, False)):
        found = looked(replace(made, environment=environment), WITHOUT)["CPU"].what
        assert ("(OMP_NUM_THREADS=1)" in found) is named
