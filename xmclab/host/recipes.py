"""Recipe files: YAML that names parts and numbers, read as text so that a value means what was typed.

base: unidec          one parent, by name or as a file in the folder of this one
epochs: 100           a setting
sampler:              a part, with its options
  name: cluster
  batch_size: 512
head: {clf: none}     or without
loss: {clf: ds+bce}
pool.beta: 3          dotted keys are the same as nested ones

The comment at the end of a line belongs to every value that ends on it; `--why` shows it as their source.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from xmclab.errors import ConfigError, Problem
from xmclab.host.registry import Registry
from xmclab.system.files import path_inside

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
BASE = "base"
STAGES = "stages"  # keys of a stage begin with it and the stage's name
PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
MADE_WITH = "made with plugin="  # starts the first comment of a recipe whose parts came from plugin files
MADE_WITH_CLASSES = "made with classes given from Python: "  # is in it if some parts were
CLASS_OF_PART = re.compile(r"(\w+) ([\w.-]+) \(")  # kind and name of a part that it names
QUOTED = re.compile("'([^']*)'")
PLAIN_KINDS = ("str", "seq", "map", "null", "bool", "int", "float")
LONGEST = 100  # characters of a number
LONGEST_VALUE = 10_000  # characters, or items of a list
EXCERPT = 60  # characters of a key shown
LONGEST_COMMENT = 200  # characters of a comment shown
COMMENT = re.compile(r"[\s\]},]*#\s*(.*?)\s*$")  # behind the last value of a line
GROUP = re.compile(r"#\s*group:\s*(.*?)\s*$")  # a line of its own, below the summary
NULLS = ("", "~", "null", "Null", "NULL")

Value = str | list[str] | None


@dataclass(frozen=True)
class Entry:
    """One value that was set."""

    key: str  # dotted
    value: Value
    source: str  # who set it, for `--why`: `unidec_paper.yaml:3`, with the comment of that line behind a colon
    where: str  # the place to name in error messages


def below(key: str, prefix: str) -> str:
    """The rest of a key after a prefix and its dot."""
    return key.removeprefix(f"{prefix}.") if key.startswith(f"{prefix}.") else ""


def stage_of(key: str) -> str:
    """The stage that a key belongs to: `phi` of `stages.phi.epochs`; empty for a key of all stages."""
    name, _, inner = below(key, STAGES).partition(".")
    return name if inner else ""


def is_file_name(recipe: str) -> bool:
    """Whether `recipe=...` is a file rather than a name."""
    return recipe.endswith((".yaml", ".yml")) or "/" in recipe


@dataclass(frozen=True)
class Layer:
    """What a recipe sets itself."""

    name: str
    path: Path
    entries: list[Entry]


def name_of(file_or_name: str) -> str:
    """What a recipe or preset is called: a file by its name without the folder and the ending."""
    return Path(file_or_name).stem if is_file_name(file_or_name) else file_or_name


def recipe_layers(recipe: str, registry: Registry) -> list[Layer]:
    """A recipe and its ancestors, oldest first.

    Raises:
        ConfigError: a file is missing or malformed, a name is unknown, or the bases are circular.
    """
    layers: list[Layer] = []
    path = Path(recipe) if is_file_name(recipe) else registry.recipe(recipe)
    visited: list[Path] = []
    while True:
        if path.resolve() in visited:
            circle = " -> ".join(file.name for file in [*visited, path])
            raise ConfigError(Problem(str(path), f"circular bases: {circle}"))
        visited.append(path.resolve())
        entries = read_recipe(path)
        layers.insert(0, Layer(name_of(recipe), path, [entry for entry in entries if entry.key != BASE]))
        base = next((entry for entry in entries if entry.key == BASE), None)
        if base is None:
            return layers
        path, recipe = _base_path(base, path, registry), str(base.value)


def _base_path(base: Entry, child: Path, registry: Registry) -> Path:
    if not isinstance(base.value, str):
        raise ConfigError(Problem(base.where, "a recipe has one base, a name or a file"))
    if is_file_name(base.value):
        try:
            return path_inside(child.parent, base.value)
        except ValueError as error:
            hint = "a base is a recipe's name, or a file in the folder of this recipe"
            raise ConfigError(Problem(base.where, f"{base.value!r} {error}", hint)) from error
    try:
        return registry.recipe(base.value)
    except ConfigError as error:
        raise ConfigError(
            *(Problem(base.where, problem.message, problem.hint) for problem in error.problems)
        ) from error


def read_recipe(path: Path) -> list[Entry]:
    """The entries of one file, in order, `base` among them.

    Raises:
        ConfigError: with line and column.
    """
    with _malformed(path):
        text = _text(path)
        found = list(_entries(path, _root(path, text, yaml.BaseLoader)))
    ends: dict[int, int] = {}  # line -> column behind its last value
    for _, mark in found:
        ends[mark.line] = max(mark.column, ends.get(mark.line, 0))
    lines = text.splitlines()
    comments = {
        line: comment[1][:LONGEST_COMMENT]
        for line, column in ends.items()
        if line < len(lines) and (comment := COMMENT.match(lines[line], column)) and comment[1]
    }
    return [
        replace(entry, source=f"{entry.source}: {comments[end.line]}") if end.line in comments else entry
        for entry, end in found
    ]


def read_plain(path: Path) -> dict[str, Any]:
    """A config file as nested plain values, with numbers as numbers.

    Raises:
        ConfigError: as for a recipe.
    """
    with _malformed(path):
        root = _root(path, _text(path), yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(Problem(str(path), "a config must be a mapping: `key: value` per line"))
        found: dict[str, Any] = _plain(path, root)
        return found


@contextlib.contextmanager
def _malformed(path: Path) -> Iterator[None]:
    """Turn whatever is wrong with a YAML file into a `ConfigError`, with line and column."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(Problem(str(path), "no such file")) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or error
        raise ConfigError(Problem(str(path), f"cannot be read: {reason}")) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        # The file may be anything, so none of its text is shown.
        what = QUOTED.sub(_token, error.problem or error.context or "")
        raise ConfigError(Problem(place, f"malformed YAML: {what}")) from error
    except yaml.YAMLError as error:
        raise ConfigError(Problem(str(path), "malformed YAML: not text")) from error


def _token(quoted: re.Match[str]) -> str:
    """A token of YAML, or a single character, as it is; anything else is left out."""
    return quoted[0] if quoted[1].startswith("<") or len(quoted[1]) <= len("\\t") else "..."


def summary(path: Path) -> str:
    """The comment on the first line of a recipe file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            first = lines.readline().strip()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return first.lstrip("# ") if first.startswith("#") else ""


def group(path: Path) -> str:
    """What the comment `# group: ...` below the summary of a recipe file says; empty without it."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            first = itertools.islice(lines, 2)
            return next((found[1] for line in first if (found := GROUP.match(line))), "")
    except OSError:
        return ""


def _text(path: Path) -> str:
    """The content of a file that is not too large to be a recipe."""
    with path.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(Problem(str(path), f"larger than {MAX_BYTES:,} bytes; not a recipe"))
    return content.decode()


def _root(path: Path, text: str, loader: Any) -> yaml.Node | None:
    """The syntax tree with line numbers; rejects aliases and deep nesting (YAML bombs)."""
    with contextlib.suppress(yaml.YAMLError):  # the parser in C is ten times as fast, but explains less
        return _composed(path, text, getattr(yaml, f"C{loader.__name__}", loader))
    return _composed(path, text, loader)


def _composed(path: Path, text: str, loader: Any) -> yaml.Node | None:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(Problem(_place(path, event.start_mark), f"nested deeper than {MAX_DEPTH} levels"))
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(Problem(_place(path, event.start_mark), "aliases (*name) are not allowed in a recipe"))
    root: yaml.Node | None = yaml.compose(text, Loader=loader)
    return root


def _plain(path: Path, node: yaml.Node) -> Any:
    """The value of a node; in YAML a long `1:1:1...` is a number too, that takes minutes to compute."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in PLAIN_KINDS or (isinstance(node, yaml.ScalarNode) and kind != "str" and len(node.value) > LONGEST):
        raise ConfigError(Problem(_place(path, node.start_mark), f"not a plain value ({kind[:EXCERPT]})"))
    if isinstance(node, yaml.MappingNode):
        if any(not isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            raise ConfigError(Problem(_place(path, node.start_mark), "a key must be a plain word"))
        return {str(key.value): _plain(path, value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item) for item in node.value]
    return yaml.SafeLoader("").construct_object(node)


def _entries(path: Path, root: yaml.Node | None) -> Iterator[tuple[Entry, Any]]:
    """The entries, each with the mark where its value ends."""
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(Problem(_place(path, root.start_mark), "a recipe must be a mapping: `key: value` per line"))
    yield from _walk(path, root, "", set())


def _walk(path: Path, node: yaml.MappingNode, prefix: str, seen: set[str]) -> Iterator[tuple[Entry, Any]]:
    for name, value in node.value:
        place = _place(path, name.start_mark)
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(Problem(place, "a key must be a plain word"))
        key = f"{prefix}{name.value}"
        _refuse_tags(path, value)
        if isinstance(value, yaml.MappingNode):
            yield from _walk(path, value, f"{key}.", seen)
            continue
        if key in seen:
            raise ConfigError(Problem(place, f"{key!r} is set twice"))
        seen.add(key)
        if len(value.value) > LONGEST_VALUE:
            raise ConfigError(Problem(f"{place}: {key[:EXCERPT]}", f"longer than {LONGEST_VALUE:,} characters"))
        source = f"{path.name}:{name.start_mark.line + 1}"
        block = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")  # ends on the line below its text
        yield Entry(key, _value(path, value), source, f"{place}: {key}"), value.start_mark if block else value.end_mark


def _value(path: Path, node: yaml.Node) -> Value:
    if isinstance(node, yaml.ScalarNode):
        return None if not node.style and node.value in NULLS else str(node.value)
    items = list(node.value)
    for item in items:
        _refuse_tags(path, item)
        if not isinstance(item, yaml.ScalarNode):
            raise ConfigError(Problem(_place(path, item.start_mark), "a list may only hold plain values"))
    return [str(item.value) for item in items]


def _refuse_tags(path: Path, node: yaml.Node) -> None:
    if node.tag not in PLAIN_TAGS:
        raise ConfigError(Problem(_place(path, node.start_mark), f"the tag {node.tag!r} is not allowed in a recipe"))


def _place(path: Path, mark: Any) -> str:
    return f"{path}:{mark.line + 1}:{mark.column + 1}"
