"""The plan of the house: which room may import which, what stands in the hall, and that the docs name every room."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "xmclab"

# From the ground up. Rooms on one level do not import each other.
LAYERS = (
    ("errors", "keys", "options"),
    ("api", "system"),
    ("kernels",),
    ("objectives",),
    ("host",),
    ("model", "plan", "data"),
    ("training", "evaluation"),
    ("runs",),
    ("serve",),
    ("cli", "python"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
SIDEWAYS = {("plan", "model.device"), ("data", "model.device")}  # a room, and what it may use of its own level
HALL = {"__init__", "__main__", "api", "errors", "keys", "options"}
LONG_FILE, LONG_FUNCTION = 450, 60
LONG_FILES = {"api.py": "every interface in one file, which a plugin author reads from top to bottom"}
NOT_MIRRORED = {"laws", "faults", "golden", "cuda"}  # folders of tests that belong to no room
CROSS_CUTTING = {
    "cli/test_combinations.py",  # every reduction with every loss, in whole runs
    "cli/test_errors.py",  # bad input to any command, in a process of its own
    "cli/test_readers.py",  # one plugin's reader through several commands
    "plugins/xmclab_kit/test_broken_parts.py",  # the laws of every kind, each against a part that breaks it
    "plugins/xmclab_losses/test_propensity.py",  # missing labels, on every way to the losses that know of them
    "plugins/xmclab_pml/test_memory.py",  # the memory of losses, of miners and of the pairs that both list
    "plugins/xmclab_pml/test_page.py",  # docs/pml.md against the whole package
}


def modules() -> Iterator[tuple[str, Path]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        yield name.removesuffix(".__init__"), file


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name below xmclab) of everything that a module imports from the package."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "xmclab":
                yield node.lineno, rest


def broken_edges(module: str, tree: ast.AST) -> Iterator[str]:
    room = module.partition(".")[0]
    for line, name in imports(tree):
        other = name.partition(".")[0]
        if other == room or other not in LEVEL:  # a name of the package itself, such as __version__
            continue
        sideways = LEVEL[other] == LEVEL[room] and (room, ".".join(name.split(".")[:2])) not in SIDEWAYS
        if LEVEL[other] > LEVEL[room] or sideways:
            yield f"{module}:{line}: {room} -> {other} ({'sideways' if sideways else 'up'})"


def test_no_room_imports_one_above_or_beside_it() -> None:
    """`__init__` and `__main__` are the doors: they may open onto any room."""
    edges = []
    for module, file in modules():
        if module not in ("__init__", "__main__"):
            assert module.partition(".")[0] in LEVEL, f"{module} is in no layer: add its room to LAYERS"
            edges += broken_edges(module, ast.parse(file.read_text(encoding="utf-8")))
    assert not edges, "\n".join(edges)


@pytest.mark.parametrize(
    ("module", "code", "edge"),
    [
        ("training.loop", "from xmclab.runs.display import Display", "training.loop:1: training -> runs (up)"),
        ("data.tokens", "def f():\n    from xmclab.plan.csr import contains", "data.tokens:2: data -> plan (sideways)"),
        ("plan.pool", "import xmclab.model.device", ""),
        ("cli.run", "from xmclab import __version__", ""),
    ],
)
def test_the_edge_that_breaks_the_layers_is_named(module: str, code: str, edge: str) -> None:
    assert "\n".join(broken_edges(module, ast.parse(code))) == edge


def test_the_hall_holds_the_words_and_nothing_else() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} == HALL


def test_every_room_is_on_the_map() -> None:
    """A row of docs/architecture.md for every room, and for everything in `plugins/`."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        folder for top in (PACKAGE, ROOT / "plugins") for folder in top.iterdir() if (folder / "__init__.py").is_file()
    ]
    missing = [f"{room.parent.name}/{room.name}" for room in rooms if f"[{room.parent.name}/{room.name}]" not in text]
    assert not missing


def test_no_room_hides_a_function_of_the_package() -> None:
    """`xmclab.objective` is a function: a submodule of that name would replace it once imported."""
    taken = {"objective", "train", "resume", "replay", "evaluate", "compare", "read", "load", "run", "predict", "tune"}
    assert not taken & {path.stem for path in PACKAGE.iterdir()}


def public_modules() -> set[str]:
    """What docs/plugins.md says a plugin may import, without `xmclab.` in front; the package itself is ""."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    table = text.partition("<!-- public -->")[2].partition("<!-- /public -->")[0]
    return {name.removeprefix(".") for name in re.findall(r"^\| `xmclab(\S*)` \|", table, re.MULTILINE)}


def private_imports(tree: ast.AST, public: set[str]) -> Iterator[str]:
    """What a plugin imports besides: modules that are not public, and names that start with an underscore."""
    for line, name in imports(tree):
        module, _, attribute = name.rpartition(".")
        whole = name in public or (PACKAGE / name.replace(".", "/")).with_suffix(".py").is_file()
        owner = name if whole or (PACKAGE / name.replace(".", "/") / "__init__.py").is_file() else module
        if owner not in public or (attribute.startswith("_") and not attribute.startswith("__")):
            yield f"{line}: xmclab.{name}"


def files_of_plugins() -> Iterator[tuple[Path, str]]:
    """Every file with imports in `plugins/` and `examples/`, the templates of new plugins among them."""
    for top in ("plugins", "examples"):
        for file in sorted((ROOT / top).rglob("*")):
            text = file.read_text(encoding="utf-8") if file.suffix in (".py", ".txt") else ""
            if file.suffix == ".py" or re.search(r"^(from|import) xmclab", text, re.MULTILINE):
                yield file, text


def test_plugins_import_what_the_docs_call_public() -> None:
    public = public_modules()
    assert {"", "api", "host"} <= public
    private = [
        f"{file.relative_to(ROOT)}:{found}"
        for file, text in files_of_plugins()
        for found in private_imports(ast.parse(text), public)
    ]
    assert not private, "docs/plugins.md does not list:\n" + "\n".join(private)


@pytest.mark.parametrize(
    ("code", "private"),
    [
        ("import xmclab\nfrom xmclab import part", ""),
        ("from xmclab import __version__", ""),
        ("from xmclab import api", ""),
        ("from xmclab.api import Loss", ""),
        ("from xmclab.host import resolve", ""),
        ("from xmclab.host import registry", "1: xmclab.host.registry"),
        ("def f():\n    from xmclab.host.registry import Registry", "2: xmclab.host.registry.Registry"),
        ("import xmclab.host.config", "1: xmclab.host.config"),
        ("from xmclab.host import _LAZY", "1: xmclab.host._LAZY"),
        ("from xmclab.runs.run import run", "1: xmclab.runs.run.run"),
        ("from xmclab import runs", "1: xmclab.runs"),
    ],
)
def test_an_import_that_is_not_public_is_named(code: str, private: str) -> None:
    assert "\n".join(private_imports(ast.parse(code), {"", "api", "host"})) == private


def test_what_is_public_exists_and_the_facades_keep_their_names() -> None:
    for name in public_modules():
        module = importlib.import_module(f"xmclab.{name}".removesuffix("."))
        assert all(hasattr(module, word) for word in getattr(module, "__all__", ()))


def test_no_module_hides_a_name_of_its_package() -> None:
    """`xmclab.host.resolve` is a function: a module `resolve.py` beside it would replace it once imported."""
    for name in public_modules():
        folder = PACKAGE / name.replace(".", "/")
        names = set(getattr(importlib.import_module(f"xmclab.{name}".removesuffix(".")), "__all__", ()))
        modules = {path.stem for path in folder.iterdir()} if folder.is_dir() else set()
        assert not names & modules, name


def test_files_and_functions_are_short() -> None:
    long = []
    for top in (PACKAGE, ROOT / "plugins"):
        for file in sorted(top.rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if len(text.splitlines()) > LONG_FILE and file.relative_to(top).as_posix() not in LONG_FILES:
                long.append(f"{file.relative_to(ROOT)}: {len(text.splitlines())} lines")
            long += [
                f"{file.relative_to(ROOT)}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.FunctionDef)
                and node.end_lineno
                and node.end_lineno - node.lineno >= LONG_FUNCTION
            ]
    assert not long, "\n".join(long)


def mirrored(file: Path) -> bool:
    """Whether a file below `tests/` is named after a module in the folder that its own folder mirrors."""
    top = ROOT if file.parts[0] == "plugins" else PACKAGE
    name = file.stem.removeprefix("test_")
    return (top / file.parent / f"{'__init__' if name == 'init' else name}.py").is_file()


def test_tests_mirror_the_code_file_by_file() -> None:
    """`xmclab/a/b.py` is tested in `tests/a/test_b.py`, an `__init__.py` in `test_init.py`."""
    files = [file.relative_to(ROOT / "tests") for file in sorted((ROOT / "tests").rglob("test_*.py"))]
    rooms = [file for file in files if file.parent.as_posix() not in (".", "plugins")]
    strays = {
        file.as_posix()
        for file in rooms
        if file.parts[0] not in NOT_MIRRORED and not file.name.startswith("test_every_") and not mirrored(file)
    }
    assert not strays - CROSS_CUTTING, f"named after no module: {sorted(strays - CROSS_CUTTING)}"
    assert not CROSS_CUTTING - strays, f"no exceptions any more: {sorted(CROSS_CUTTING - strays)}"


def test_only_kernels_know_what_is_compiled() -> None:
    """Others may say that a plain function can be replaced, or that a run wants torch to compile."""
    allowed = {"accelerated_by", "accelerated_on_gpu_by", "compiled_by_torch", "in_large_pages", "random_bits"}
    allowed |= {"large_floats", "large_matrix", "large_table"}
    strays = []
    for name, file in modules():
        text = file.read_text(encoding="utf-8")
        if name.split(".")[0] == "kernels":
            continue
        strays += [f"{name} imports numba"] if re.search(r"^\s*(from|import) numba", text, re.M) else []
        used = [module for _, module in imports(ast.parse(text)) if module.startswith("kernels.")]
        strays += [f"{name} imports {module}" for module in used if module.rpartition(".")[2] not in allowed]
    assert not strays, "\n".join(strays)


def test_the_mathematics_needs_neither_plugins_nor_config() -> None:
    code = """
import sys
from xmclab.objectives import Objective, Psl, Term, TermSpec, divisor, parse_expression
print([name for name in ("load", "registry", "resolver", "config", "recipes") if f"xmclab.host.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_step_can_be_followed(small_trainer: Callable[..., Any]) -> None:
    """It passes through few files, and does not jump between them."""
    trainer = small_trainer("loss.clf=ds+bce")
    prepared = [trainer.prepare(step, trainer.rows_N[:512]) for step in range(2)]
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith((str(PACKAGE), str(ROOT / "plugins"))):
            files.append(file)

    trainer.step(0, prepared[0])
    sys.setprofile(profile)
    try:
        trainer.step(1, prepared[1])
    finally:
        sys.setprofile(None)
    assert 10 < len(set(files)) <= 14, sorted(set(files))  # with those of dropout and gradient caching
    assert sum(a != b for a, b in pairwise(files)) <= 90
