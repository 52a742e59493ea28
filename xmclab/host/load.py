"""Loads plugins through pluggy, isolated from each other: entry points, files, hooks, and their checks.

What happens when a plugin is broken:
- It raises at import or in a hook, misspells a hook, forgets to mark one, takes arguments that the hook does not have,
  returns the wrong type, or was built for another version of the interface: the whole plugin is skipped and listed in
  `Registry.problems`; the others work. An unknown name may have been one of its names, so asking for it is a plugin
  error (exit 4), unless the name is close to a known one (a typo, exit 2).
- Two plugins supply the same name, or two distributions use the same entry-point name: neither wins. The bare name
  is an error that names both; `<distribution>.<name>` selects one.
- It takes the name of a built-in command: it is skipped as above, and the built-in command works.
- A part cannot be imported, or is not a concrete dataclass of its kind: an error when that part is used.
- One of its trackers raises: a warning, and the tracker is disabled for that run (runs/observers.py).
- `XMCLAB_STRICT=1` turns every such problem into an error at once.

`XMCLAB_PLUGINS=a,b` loads only the plugins of these entry points or distributions, plus the built-in parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from xmclab.errors import PluginError, Problem, XmclabError, did_you_mean
from xmclab.host import hookspecs
from xmclab.host.hookspecs import API_VERSION, COMMANDS, KINDS, PROJECT, CommandRef, PartRef
from xmclab.system.memory import out_of_memory

CORE = ("core", "xmclab")  # entry point and distribution of the built-in parts, which always load
NAME = re.compile(r"\w+([.-]\w+)*")
Target = type | str | Path | Callable[..., Any]
COMMAND = "command"


@dataclass(frozen=True)
class Origin:
    """Where a plugin comes from."""

    plugin: str  # the entry point's name, or the file
    distribution: str
    version: str
    is_file: bool = False  # added to the installed plugins
    is_class: bool = False  # a single class, given from Python

    def __str__(self) -> str:
        if self.is_class:
            return f"class {self.plugin}"
        return f"{self.distribution} {self.version} (plugin {self.plugin})".replace("  ", " ")

    @property
    def prefix(self) -> str:
        """The distribution as the prefix of a qualified name, where a dash would read as a minus."""
        return normal(self.distribution)


@dataclass(frozen=True)
class Claim:
    """A name under which a plugin supplies something."""

    kind: str  # one of KINDS, or "recipe", "dataset", "preset", "command"
    name: str
    target: Target
    origin: Origin
    unusable: str = ""  # why using it is an error
    always: bool = False  # a tracker that every run has
    help: str = ""  # commands only

    @property
    def qualified(self) -> str:
        return f"{self.origin.prefix}.{self.name}"


@dataclass(frozen=True)
class Broken:
    """A plugin that was skipped, and why."""

    origin: Origin
    reason: str

    @property
    def problem(self) -> Problem:
        return Problem(f"plugin {self.origin.plugin}", f"skipped because {self.origin} is broken: {self.reason}")


def is_strict(environment: Mapping[str, str]) -> bool:
    """Whether a broken plugin is an error even if it is not used."""
    return environment.get("XMCLAB_STRICT", "0") not in ("", "0")


def entry_points() -> Iterator[tuple[Origin, metadata.EntryPoint]]:
    entries = [(entry.name, entry.dist, entry) for entry in metadata.entry_points(group=PROJECT)]
    found = [(Origin(name, dist.name, dist.version), entry) for name, dist, entry in entries if dist is not None]
    yield from sorted(found, key=lambda pair: (pair[0].plugin, pair[0].distribution))


def selection(limit: str | None, origins: Iterable[Origin]) -> tuple[list[Origin], list[Problem]]:
    """The plugins to load, and a problem for each name in `XMCLAB_PLUGINS` that is not installed."""
    origins = list(origins)
    if limit is None:
        return origins, []
    wanted = {normal(word.strip()) for word in limit.split(",") if word.strip()}
    known = {normal(word) for origin in origins for word in (origin.plugin, origin.distribution)}
    notices = [
        Problem("XMCLAB_PLUGINS", f"no plugin or distribution {word!r} is installed", did_you_mean(word, known))
        for word in sorted(wanted - known)
    ]
    chosen = [
        origin
        for origin in origins
        if (origin.plugin, origin.distribution) == CORE or wanted & {normal(origin.plugin), normal(origin.distribution)}
    ]
    return chosen, notices


def shared_entry_points(origins: Iterable[Origin]) -> list[Problem]:
    by_name: dict[str, list[Origin]] = defaultdict(list)
    for origin in origins:
        by_name[origin.plugin].append(origin)
    hint = "use <distribution>.<name> for their parts, or limit XMCLAB_PLUGINS to one of the distributions"
    return [
        Problem(
            f"plugin {name}", "two distributions use this entry-point name: " + " and ".join(map(str, shared)), hint
        )
        for name, shared in by_name.items()
        if len(shared) > 1
    ]


def collect(origin: Origin, load: Callable[[], object]) -> list[Claim]:
    """What a plugin supplies; raises `PluginError` if anything is wrong with it."""
    with guarded(origin, "import"):
        plugin = load()
    version = getattr(plugin, "xmclab_api", API_VERSION)
    if version != API_VERSION:
        raise fault(
            origin, f"built for version {version} of the plugin interface, but this xmclab has version {API_VERSION}"
        )
    # One manager per plugin: a fault in one cannot affect the others, and each result has a known origin.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    hooks = [name for name in vars(hookspecs) if name.startswith("xmclab_")]
    if mistakes := _unmarked(plugin, manager, hooks):
        raise fault(origin, *mistakes)
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        unknown = [caller.name for caller in manager.get_hookcallers(plugin) or [] if not caller.has_spec()]
        reasons = [_no_such_hook(name, hooks) for name in unknown] or _wrong_arguments(plugin, hooks)
        raise fault(origin, *(reasons or [" ".join(str(error).split())])) from error
    with guarded(origin, "hook"):
        parts = manager.hook.xmclab_parts()
        recipes, datasets = manager.hook.xmclab_recipes(), manager.hook.xmclab_datasets()
        presets, commands = manager.hook.xmclab_presets(), manager.hook.xmclab_commands()
    return [
        *_part_claims(origin, parts),
        *_path_claims(origin, "recipe", "xmclab_recipes", recipes),
        *_path_claims(origin, "dataset", "xmclab_datasets", datasets),
        *_path_claims(origin, "preset", "xmclab_presets", presets),
        *_command_claims(origin, commands),
    ]


def _unmarked(plugin: object, manager: pluggy.PluginManager, hooks: Sequence[str]) -> list[str]:
    """Functions that look like hooks but that pluggy would ignore."""
    mistakes = []
    for name, _ in inspect.getmembers(plugin, inspect.isroutine):
        if name.startswith("xmclab_") and manager.parse_hookimpl_opts(plugin, name) is None:
            unmarked = f"{name} is not marked with @xmclab.hookimpl"
            mistakes.append(unmarked if name in hooks else _no_such_hook(name, hooks))
    return mistakes


def _no_such_hook(name: str, hooks: Sequence[str]) -> str:
    return f"there is no hook {name!r} ({did_you_mean(name, hooks)})"


def _wrong_arguments(plugin: object, hooks: Sequence[str]) -> list[str]:
    """Arguments of a plugin's hooks that the hooks do not have."""
    mistakes = []
    for hook in hooks:
        given = list(inspect.signature(getattr(plugin, hook)).parameters) if hasattr(plugin, hook) else []
        known = list(inspect.signature(getattr(hookspecs, hook)).parameters)
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known) or "it takes no arguments"
                mistakes.append(f"{hook} has no argument {name!r} ({hint})")
    return mistakes


def _part_claims(origin: Origin, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        refs = list(answer) if isinstance(answer, list | tuple) else [answer]
        for ref in refs:
            if not isinstance(ref, PartRef):
                raise fault(origin, f"xmclab_parts must return a list of xmclab.part(kind, name, target), not {ref!r}")
            if ref.kind not in KINDS:
                raise fault(origin, f"unknown kind of part {ref.kind!r} ({did_you_mean(str(ref.kind), KINDS)})")
            _check_name(origin, ref.name)
            claims.append(Claim(ref.kind, ref.name, ref.target, origin, ref.unusable, ref.always))
    return claims


def _command_claims(origin: Origin, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        for ref in list(answer) if isinstance(answer, list | tuple) else [answer]:
            if not isinstance(ref, CommandRef):
                raise fault(origin, f"xmclab_commands must return a list of xmclab.command(name, target), not {ref!r}")
            _check_name(origin, ref.name)
            if ref.name in COMMANDS:
                raise fault(origin, f"command {ref.name!r} is built in: choose another name")
            claims.append(Claim(COMMAND, ref.name, ref.target, origin, help=ref.help))
    return claims


def _path_claims(origin: Origin, kind: str, hook: str, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        if not isinstance(answer, Mapping):
            raise fault(origin, f"{hook} must return a dict of names and paths, not {answer!r}")
        for name, path in answer.items():
            _check_name(origin, name)
            if not isinstance(path, str | os.PathLike):
                raise fault(origin, f"{hook} must return a dict of names and paths, but {name!r} has {path!r}")
            claims.append(Claim(kind, name, Path(path), origin))
    return claims


def _check_name(origin: Origin, name: object) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise fault(origin, f"{name!r} is not a valid name: use letters, digits and underscores")


@contextlib.contextmanager
def guarded(origin: Origin, doing: str) -> Iterator[None]:
    """Run foreign code: exceptions become a `PluginError`, prints do not reach stdout."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except XmclabError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise
        raise fault(origin, f"{doing}: {exception_line(error)}") from error


def exception_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def fault(origin: Origin, *reasons: str) -> PluginError:
    return PluginError(*(Problem(str(origin), reason) for reason in reasons))


def reason(problem: Problem) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "_", distribution).lower()


def import_file(file: Path) -> ModuleType:
    # The module name is derived from the path, so that two files with the same name are two modules.
    name = f"xmclab_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_{normal(file.stem)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_target(target: str) -> Any:
    module, _, attribute = target.partition(":")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    return value


def checked(claim: Claim, cls: Any) -> type[Any]:
    """The class, if it is a concrete dataclass of the claim's kind with usable options."""
    if reason := fault_of_class(claim.kind, cls):
        raise fault(claim.origin, f"{claim.kind} {claim.name!r} {reason}")
    part: type[Any] = cls
    return part


def interface(kind: str) -> type[Any]:
    """The class of `xmclab.api` that parts of a kind are subclasses of."""
    from xmclab import api

    cls: type[Any] = getattr(api, kind.capitalize())
    return cls


def fault_of_class(kind: str, cls: Any) -> str:
    """Why this is not a concrete dataclass of its kind with usable options; empty if it is."""
    from xmclab.host.options import options_of

    base = interface(kind)
    if not inspect.isclass(cls) or not issubclass(cls, base):
        return f"must be a subclass of xmclab.api.{base.__name__}, not {cls!r}"
    if "__dataclass_fields__" not in vars(cls):
        return f"must be a dataclass: decorate {cls.__name__} with @dataclass"
    if inspect.isabstract(cls):
        return "does not implement: " + ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    try:
        options_of(cls)
    except PluginError as error:
        return f"cannot be configured: {error}"
    return ""
