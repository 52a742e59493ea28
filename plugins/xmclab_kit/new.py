"""`xmclab new`: a working part to start from, as a single file or as a package with tests."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from xmclab.errors import ConfigError, Problem, StorageError, did_you_mean
from xmclab.host import KINDS

TEMPLATES = Path(__file__).parent / "templates"
NAME = re.compile("[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")  # valid for a class, a file and a package
OTHER = "choose another name"
RECIPE = "recipe"
TESTS = {  # of kinds that have no laws of their own; the others are tested by their contract
    RECIPE: "recipe_test.txt",
    "index": "index_test.txt",
    "baseline": "baseline_test.txt",
    "tracker": "tracker_test.txt",
    "reader": "reader_test.txt",
}
USES = {  # how a run chooses a new part of each kind
    "loss": "loss.clf=ds+part_name",
    "reduction": "reduction=part_name",
    "sampler": "sampler=part_name",
    "miner": "miner=part_name",
    "encoder": "encoder=part_name",
    "head": "head.de=part_name",
    "search": "search=part_name",
    "index": "index=part_name",
    "baseline": "baseline=part_name",
    "tracker": "tracker=part_name",
    "reader": "",  # which needs data in its format
    RECIPE: "recipe=part_name",
}


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=", ".join(USES) + ".", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the part in configs.", show_default=False)],
    file: Annotated[bool, typer.Option("--file", help="Write a single file instead of a package.")] = False,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Output folder.")] = ".",
) -> None:
    """Create a working part to start from: xmclab new loss mine --file"""
    if kind not in USES:
        known = f"no template for a {kind}" if kind in KINDS else f"unknown kind of part {kind!r}"
        raise ConfigError(Problem("", known, did_you_mean(kind, USES)))
    _check_name(name)
    words = _words(kind, name)
    templates = _single_file(kind) if file else _distribution(kind)
    files = {_fill(path, words): _fill(template, words) for path, template in templates.items()}
    target = os.path.join(out, next(iter(files)).partition("/")[0])
    _check_free(kind, name, target, words["PartName"], templates)
    _write(out, target, files)
    written = [f"wrote {os.path.join(out, path)}" for path in files]
    print("\n".join([*written, "", "next:", *_steps(kind, name, target, file)]))


def _words(kind: str, name: str) -> dict[str, str]:
    """The placeholders of the templates, and their values."""
    return {
        "PartName": "".join(word[:1].upper() + word[1:] for word in name.split("_")),
        "part_name": name,
        "part-name": name.replace("_", "-"),
        "part_kind": kind,
        "part_file": f"{name}.yaml" if kind == RECIPE else f"{kind}.py",
        "next_steps": "\n".join(_steps(kind, name, ".", file=False)),  # a README is read in its own folder
    }


def _fill(template: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(words), lambda match: words[match[0]], template)


def _single_file(kind: str) -> dict[str, str]:
    """Path and template of the file."""
    if kind == RECIPE:
        return {"part_file": _template("recipe.yaml")}
    return {"part_name.py": _template(f"{kind}.py") + _template("hook.txt")}


def _distribution(kind: str) -> dict[str, str]:
    """Path and template of every file."""
    recipe = kind == RECIPE
    files = {
        "pyproject.toml": "pyproject.txt",
        "README.md": "readme.txt",
        "xmclab_part_name/__init__.py": "recipe_init.txt" if recipe else "init.txt",
        "xmclab_part_name/part_file": "recipe.yaml" if recipe else f"{kind}.py",
        "tests/test_part_name.py": TESTS.get(kind, "test.txt"),
    }
    if kind == "loss":
        files["tests/test_part_name_formula.py"] = "loss_formula.txt"
    return {f"xmclab-part-name/{path}": _template(file) for path, file in files.items()}


def _template(file: str) -> str:
    return (TEMPLATES / file).read_text(encoding="utf-8")


def _steps(kind: str, name: str, target: str, file: bool) -> list[str]:
    """The commands to run next."""
    use = USES[kind].replace("part_name", name)
    if kind == RECIPE:
        use = shlex.quote(f"recipe={target}") if file else use
        steps = [f"xmclab run {use} data=tiny"]
    else:
        plugin = [shlex.quote(f"plugin={target}")] if file else []
        run = [" ".join(["xmclab run recipe=unidec data=tiny", *plugin, use])] if use else []
        steps = [*run, " ".join([f"xmclab check {kind}:{name}", *plugin])]
    if file:
        return steps
    return [f"pip install -e {shlex.quote(f'{target}[test]')}", *steps, f"pytest {shlex.quote(target)}"]


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            Problem(name, "not a valid name", "use letters, digits and single underscores, as in my_loss")
        )
    if keyword.iskeyword(name) or name.lower() == "none":
        raise ConfigError(Problem(name, "is a reserved word", OTHER))


def _check_free(kind: str, name: str, target: str, class_name: str, templates: Mapping[str, str]) -> None:
    """Refuse what exists: a file, a part, a plugin, a module, a word that the code itself uses."""
    from xmclab.host import default_registry

    registry = default_registry()
    owners = [
        *(f"{kind} of {claim.origin}" for claim in registry.claims if (claim.kind, claim.name) == (kind, name)),
        *(f"plugin of {origin.distribution}" for origin in registry.origins if origin.plugin == name),
    ]
    module = Path(target).stem.replace("-", "_")
    if os.path.lexists(target):
        raise ConfigError(Problem(target, "already exists", "nothing was written: choose another name or --out DIR"))
    if owners:
        raise ConfigError(Problem(name, f"is the name of the {owners[0]}", OTHER))
    if not target.endswith(".yaml") and importlib.util.find_spec(module):
        raise ConfigError(Problem(name, f"a Python module {module!r} already exists", OTHER))
    if any(re.search(rf"\b{class_name}\b", template) for template in templates.values()):
        raise ConfigError(Problem(name, f"its class would be called {class_name}, like one that it uses", OTHER))


def _write(out: str, target: str, files: Mapping[str, str]) -> None:
    try:
        for path, text in files.items():
            file = Path(out, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        raise StorageError(Problem(target, f"cannot be written: {error.strerror or error}")) from error
