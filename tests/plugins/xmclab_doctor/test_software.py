"""Broken and sound installations, made of real metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from xmclab_doctor.facts import CardFacts, Machine, TorchFacts
from xmclab_doctor.findings import Finding
from xmclab_doctor.software import software

CPU = TorchFacts("2.13.0+cpu", isa="AVX2", threads=1)
CUDA = TorchFacts("2.13.0+cu128", cuda="12.8", architectures=("sm_80",))
CARD = TorchFacts("2.13.0", "12.8", None, ("sm_80",), True, (CardFacts("A card", (8, 0), 40 << 30),))
Make = Callable[..., Machine]


def named(findings: Iterable[Finding], name: str) -> Finding:
    [found] = [finding for finding in findings if finding.name == name]
    return found


def test_a_sound_installation_has_no_problem(machine: Make) -> None:
    found = list(software(machine(faiss_cpu="1.15.1", numba="0.61"), CPU))
    assert {each.status for each in found if each.area == "software"} == {"ok"}
    assert named(found, "faiss").status == "ok"
    assert "numba 0.61" in named(found, "others").what


def test_two_wheels_of_faiss_are_a_problem_with_the_lines_that_mend_it(machine: Make) -> None:
    found = named(software(machine(faiss_cpu="1.15.1", faiss_gpu="1.15.1"), CPU), "faiss")
    assert found.status == "problem"
    assert "faiss-cpu 1.15.1 and faiss-gpu 1.15.1" in found.what
    assert found.fix == 'pip uninstall -y faiss-cpu faiss-gpu && pip install "xmclab[cpu]"'


def test_two_wheels_beside_a_card_leave_that_for_cards(machine: Make) -> None:
    made = machine(faiss_cpu="1.15.1", faiss_gpu_cu12="1.15.1", driver="560.1", cards=1)
    assert named(software(made, CARD), "faiss").fix.endswith('pip install "xmclab[gpu]"')


def test_a_second_faiss_further_down_the_path_is_never_used(machine: Make, tmp_path: Path) -> None:
    made = machine(faiss_cpu="1.15.1")
    info = tmp_path / "home" / "faiss_gpu-1.7.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faiss-gpu\nVersion: 1.7.2\n")
    found = [
        each
        for each in software(Machine(made.root, [*(made.paths or ()), str(info.parent)]), CPU)
        if each.name == "faiss"
    ]
    assert [each.status for each in found] == ["ok", "note"]
    assert found[1].what == "faiss-gpu 1.7.2 is never used"


def test_a_faiss_whose_files_went_with_another_wheel(machine: Make) -> None:
    made = machine(faiss_cpu="1.15.1")
    Path((made.paths or [])[0], "faiss").rmdir()
    found = named(software(made, CPU), "faiss")
    assert (found.status, found.what) == ("problem", "faiss-cpu 1.15.1 is installed, but its files are gone")


@pytest.mark.parametrize(
    ("wheel", "version", "fix"),
    [
        ("faiss_cpu", "1.7.4", 'pip install --upgrade "faiss-cpu>=1.15"'),
        ("faiss_gpu", "1.7.2", 'pip install --upgrade "faiss-gpu>=1.15"'),
        (
            "faiss_gpu_cu12",
            "1.14.1.post1",
            'pip uninstall -y faiss-gpu-cu12 && pip install --upgrade "faiss-gpu>=1.15"',
        ),
    ],
)
def test_an_old_faiss_is_a_problem(machine: Make, wheel: str, version: str, fix: str) -> None:
    found = named(software(machine(**{wheel: version}), CPU), "faiss")
    assert (found.status, found.fix) == ("problem", fix)
    assert "too old" in found.what


def test_no_faiss_costs_time_on_a_cpu_and_nothing_on_a_card(machine: Make) -> None:
    made = machine()
    assert named(software(made, CPU), "faiss").fix == 'pip install "xmclab[cpu]"'
    assert named(software(made, CARD), "faiss").status == "ok"


def test_a_faiss_for_cpus_beside_a_card_says_where_it_searches(machine: Make) -> None:
    found = named(software(machine(faiss_cpu="1.15.1"), CARD), "faiss")
    assert (found.status, "on the CPU" in found.why) == ("ok", True)


def test_no_triton_is_noted_where_torch_would_use_it(machine: Make) -> None:
    found = list(software(machine(driver="560.1", cards=1), CARD))
    assert (named(found, "triton").status, named(found, "triton").fix) == ("note", "pip install triton")
    assert named(found, "flash_attn").status == "ok"


def test_triton_and_flash_attn_that_are_there(machine: Make) -> None:
    found = list(software(machine(driver="560.1", cards=1, triton="3.5.0", flash_attn="2.8.3"), CARD))
    assert (named(found, "triton").what, named(found, "flash_attn").what) == ("3.5.0", "2.8.3")


def test_without_a_card_triton_is_not_asked_for(machine: Make) -> None:
    assert not {"triton", "flash_attn"} & {each.name for each in software(machine(), CUDA)}


@pytest.mark.parametrize(
    ("driver", "fix"),
    [
        ("560.35.03", "pip install --force-reinstall torch --index-url URL, with the URL for cu126 from pytorch.org"),
        ("580.65.06", "pip install --force-reinstall torch"),
        (None, "pip install --force-reinstall torch"),  # the driver is another finding
    ],
)
def test_a_torch_for_cpus_beside_a_card_is_a_problem(machine: Make, driver: str | None, fix: str) -> None:
    found = named(software(machine(driver=driver, cards=1), CPU), "torch")
    assert (found.status, found.fix) == ("problem", fix)
    assert found.what == "2.13.0+cpu, for CPUs only"


def test_a_torch_for_cpus_without_a_card_is_fine(machine: Make) -> None:
    assert named(software(machine(), CPU), "torch").status == "ok"


def test_a_torch_that_cannot_be_imported(machine: Make) -> None:
    broken = TorchFacts(error="libcudart.so.12: cannot open shared object file")
    found = named(software(machine(), broken), "torch")
    assert found.status == "problem"
    assert "2.13.0 cannot be imported: libcudart.so.12" in found.what


def test_no_torch_at_all(machine: Make) -> None:
    found = named(software(machine(torch=None), TorchFacts(error="No module named 'torch'")), "torch")
    assert (found.status, found.what) == ("problem", "is not installed")


@pytest.mark.parametrize(("version", "what"), [("4.57.0", "4.57.0 is too old"), (None, "is not installed")])
def test_what_every_run_needs(machine: Make, version: str | None, what: str) -> None:
    found = named(software(machine(transformers=version), CPU), "transformers")
    assert (found.status, found.what, found.fix) == ("problem", what, 'pip install "transformers>=5"')


def test_an_optional_package_that_is_too_old_for_its_extra(machine: Make) -> None:
    found = named(software(machine(numba="0.50"), CPU), "numba")
    assert (found.status, found.fix) == ("note", 'pip install --upgrade "numba>=0.60"')


def test_a_checkout_that_was_never_installed_says_what_to_do(machine: Make) -> None:
    found = named(software(machine(xmclab=None), CPU), "xmclab")
    assert (found.status, found.fix) == ("note", "pip install .")


def test_a_package_that_runs_silently_do_without_is_tried(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine(numba="0.61")
    here = Machine(made.root)
    known = made.distributions()
    monkeypatch.setattr(Machine, "distributions", lambda self: known)
    monkeypatch.setattr("xmclab_doctor.software._import_error", lambda module: "broken" if module == "numba" else "")
    found = named(software(here, CPU), "numba")
    assert (found.status, found.what) == ("note", "0.61 cannot be imported: broken")
    assert found.fix == "pip install --force-reinstall numba"
