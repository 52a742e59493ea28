"""Options of a part as its source declares them: what a shell completes, which cannot wait for the part's imports.

A class is read, not run: its annotated fields, and those of the dataclasses that it names as its bases. What is made
while a module runs is not seen; tests compare the rest with `options_of`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xmclab.host.options import Option, options_of

DATACLASS, NOT_AN_OPTION = "dataclass", "ClassVar"


@dataclass(frozen=True)
class Sketch:
    """What could be typed for an option."""

    words: tuple[str, ...]  # see `Option.words`
    number: str  # its default, if that is a number

    @classmethod
    def of(cls, option: Option) -> Sketch:
        return cls(option.words, option.number)


def sketch(target: type | str) -> Mapping[str, Sketch]:
    """The options of a class, or of a lazy reference to one; none if its source cannot tell."""
    if isinstance(target, type):
        return {name: Sketch.of(option) for name, option in options_of(target).items()}
    module, _, name = target.partition(":")
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
        return dict(_fields(module, name))
    return {}


@dataclass(frozen=True)
class _Source:
    """A module as it is written."""

    classes: Mapping[str, ast.ClassDef]
    aliases: Mapping[str, ast.expr]  # of types: `Side = Literal["query", "label"]`
    imported: Mapping[str, tuple[str, str]]  # name -> the module that it comes from, and its name there


@cache
def _source(module: str) -> _Source:
    """
    Raises:
        OSError: there is no such file.
        SyntaxError: it is not Python.
    """
    top, *inner = module.split(".")
    spec = importlib.util.find_spec(top)  # of an inner module, this would import those around it
    if spec is None or spec.origin is None:
        raise FileNotFoundError(module)
    file = Path(spec.origin)
    if inner:
        folder = file.parent.joinpath(*inner)
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    classes: dict[str, ast.ClassDef] = {}
    aliases: dict[str, ast.expr] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            aliases[node.targets[0].id] = node.value
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return _Source(classes, aliases, imported)


def _fields(module: str, name: str) -> Iterator[tuple[str, Sketch]]:
    """The fields of a class in the order of its bases; of the same name, the last one counts."""
    source = _source(module)
    if name in source.imported:
        yield from _fields(*source.imported[name])
    if name not in source.classes:
        return
    made = source.classes[name]
    for base in reversed(made.bases):
        if isinstance(base, ast.Name):
            with contextlib.suppress(OSError):  # of a library in another form
                yield from _fields(module, base.id)
    if not any(_word(decorator) == DATACLASS for decorator in made.decorator_list):
        return  # its annotations are not fields
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_option(node):
            yield node.target.id, Sketch(tuple(_words(module, node.annotation)), _number(node.value))


def _is_option(node: ast.AnnAssign) -> bool:
    hidden = isinstance(node.target, ast.Name) and node.target.id.startswith("_")
    given = node.value.keywords if isinstance(node.value, ast.Call) else []
    inner = any(each.arg == "init" and getattr(each.value, "value", True) is False for each in given)
    return not (hidden or inner or _word(node.annotation) == NOT_AN_OPTION)


def _words(module: str, annotation: ast.expr) -> Iterator[str]:
    """The words of a type, in its order."""
    if isinstance(annotation, ast.BinOp):  # A | B
        yield from _words(module, annotation.left)
        yield from _words(module, annotation.right)
    elif isinstance(annotation, ast.Subscript) and _word(annotation) == "Literal":
        inner = annotation.slice
        choices = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        yield from (str(choice.value) for choice in choices if isinstance(choice, ast.Constant))
    elif isinstance(annotation, ast.Constant) and annotation.value is None:
        yield "none"
    elif isinstance(annotation, ast.Name) and annotation.id == "bool":
        yield from ("false", "true")
    elif isinstance(annotation, ast.Name):
        yield from _words_of_alias(module, annotation.id)


def _words_of_alias(module: str, name: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        source = _source(module)
        if name in source.aliases:
            yield from _words(module, source.aliases[name])
        elif name in source.imported:
            yield from _words_of_alias(*source.imported[name])


def _word(node: ast.expr) -> str:
    """The name at the end of `a.b`, also before brackets: `Literal` of `typing.Literal[...]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _number(value: ast.expr | None) -> str:
    """A default that is a number, bare or as the first argument of `option(...)`."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    with contextlib.suppress(ValueError, TypeError):
        found = ast.literal_eval(value) if value is not None else None
        return str(found) if isinstance(found, int | float) and not isinstance(found, bool) else ""
    return ""
