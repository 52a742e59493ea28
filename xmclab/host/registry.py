"""Finding parts, recipes, data sets and commands by name; plugins are loaded by pluggy, each guarded from the others.

What happens to a plugin that is at fault:
- It raises at import or in a hook, misspells a hook, forgets to mark one, takes arguments that the hook does not have,
  returns something else than the hook asks for, or was built for another version of the interface: the whole plugin is
  left out and listed in `Registry.problems`; the others work. A name that nobody supplies may have been its name:
  asking for one is an error of the plugin (exit 4), unless the name is close to a known one (a typing error, exit 2).
- Two plugins supply the same name, or two distributions use the same entry-point name: nothing wins. The bare name
  is an error that names both; `<distribution>.<name>` selects one.
- It takes the name of a built-in command: it is left out as above, and the built-in command works.
- A part cannot be imported, or is no concrete dataclass of its kind: an error when that part is used.
- A tracker of it raises: a warning, and it is not called again in that run (runs/observers.py).
- `XMCLAB_STRICT=1` makes every such problem an error at once.

`XMCLAB_PLUGINS=a,b` loads the plugins of these entry points or distributions only, beside the built-in parts.
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
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from xmclab.errors import ConfigError, DataError, PluginError, Problem, XmclabError, closest, did_you_mean
from xmclab.host import hookspecs
from xmclab.host.hookspecs import API_VERSION, COMMANDS, KINDS, PROJECT, CommandRef, PartRef

CORE = ("core", "xmclab")  # entry point and distribution of the built-in parts, which always load
NAME = re.compile(r"\w+([.-]\w+)*")
Target = type | str | Path | Callable[..., Any]
COMMAND = "command"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """Where a plugin comes from."""

    plugin: str  # the entry point's name, or the file
    distribution: str
    version: str
    is_file: bool = False  # added to the installed plugins

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} (plugin {self.plugin})".replace("  ", " ")

    @property
    def prefix(self) -> str:
        """The distribution as it stands in front of a qualified name, where a dash would read as a minus."""
        return _normal(self.distribution)


@dataclass(frozen=True)
class Claim:
    """A name that a plugin supplies something under."""

    kind: str  # one of KINDS, or "recipe", "dataset", "command"
    name: str
    target: Target
    origin: Origin
    unusable: str = ""  # why it is an error to ask for it
    always: bool = False  # a tracker of every run
    help: str = ""  # of a command

    @property
    def qualified(self) -> str:
        return f"{self.origin.prefix}.{self.name}"


@dataclass(frozen=True)
class OptionInfo:
    """An option of a part, for listings."""

    name: str
    type: str
    default: Any  # in terms of JSON; None also when required
    required: bool
    bounds: str
    help: str


@dataclass(frozen=True)
class PartInfo:
    """A part, for listings."""

    kind: str
    name: str
    summary: str
    options: tuple[OptionInfo, ...]
    plugin: str
    distribution: str
    version: str
    problem: str = ""  # why it cannot be used, or not by its bare name


@dataclass(frozen=True)
class Broken:
    """A plugin that was left out, and why."""

    origin: Origin
    reason: str

    @property
    def problem(self) -> Problem:
        return Problem(f"plugin {self.origin.plugin}", f"left out, {self.origin} is broken: {self.reason}")


@dataclass
class Registry:
    """Everything that the loaded plugins supply. Nothing is imported for a part until it is asked for."""

    claims: Sequence[Claim]
    origins: Sequence[Origin]  # of all plugins, the broken ones too
    broken: Sequence[Broken] = ()
    notices: Sequence[Problem] = ()  # what else went wrong while loading
    _classes: dict[Claim, type[Any]] = field(default_factory=dict, repr=False)

    def get(self, kind: str, name: str) -> type[Any]:
        """The class of a part.

        Raises:
            ConfigError: nobody supplies the name.
            PluginError: several plugins supply it, or its plugin is at fault.
        """
        if kind not in KINDS:
            raise ConfigError(Problem("", f"unknown kind of part {kind!r}", did_you_mean(kind, KINDS)))
        return self._class(self._find(kind, name))

    def names(self, kind: str) -> list[str]:
        """The names that can be used: bare ones, and qualified ones where the bare name is claimed twice."""
        claims = [claim for claim in self.claims if claim.kind == kind and not claim.unusable]
        return sorted({claim.qualified if self._contested(claim) else claim.name for claim in claims})

    def always(self, kind: str) -> list[str]:
        """The names of parts that every run has."""
        return [claim.name for claim in self.claims if claim.kind == kind and claim.always]

    def recipe(self, name: str) -> Path:
        """The YAML file of a recipe."""
        return Path(str(self._find("recipe", name).target))

    def dataset(self, name: str) -> Path:
        """The folder of a data set that a plugin supplies.

        Raises:
            DataError: nobody supplies the name.
        """
        return Path(str(self._find("dataset", name).target))

    def commands(self) -> dict[str, str]:
        """The commands that plugins supply, each with its line of help. Imports none of them."""
        claims = [claim for claim in self.claims if claim.kind == COMMAND]
        found = {claim.qualified if self._contested(claim) else claim.name: claim.help for claim in claims}
        return dict(sorted(found.items()))

    def command(self, name: str, build: Callable[[Any], Result]) -> Result:
        """What `build` makes of the function or `typer.Typer` of a command.

        Raises:
            ConfigError: nobody supplies the name.
            PluginError: several plugins supply it, it cannot be imported, or `build` raises.
        """
        claim = self._find(COMMAND, name)
        with _guarded(claim.origin, f"command {name!r}"):
            target = _import_target(claim.target) if isinstance(claim.target, str) else claim.target
            if not callable(target):
                raise _fault(claim.origin, f"command {name!r} must be a function or a typer.Typer, not {target!r}")
            return build(target)

    def describe(self, kind: str | None = None) -> list[PartInfo]:
        """Every part (of a kind), in order of kind and name. Imports all of them."""
        if kind is not None and kind not in KINDS:
            raise ConfigError(Problem("", f"unknown kind of part {kind!r}", did_you_mean(kind, KINDS)))
        kinds = KINDS if kind is None else (kind,)
        claims = [claim for claim in self.claims if claim.kind in kinds and not claim.unusable]
        return [self._describe(claim) for claim in sorted(claims, key=lambda c: (KINDS.index(c.kind), c.name))]

    @property
    def problems(self) -> list[Problem]:
        """Everything that went wrong while loading: broken plugins, and names that several of them claim."""
        contested = {(claim.kind, claim.name): self._contested(claim) for claim in self.claims}
        conflicts = [reason for reason in dict.fromkeys(contested.values()) if reason is not None]
        return [*(broken.problem for broken in self.broken), *self.notices, *conflicts]

    @property
    def files(self) -> list[str]:
        """The plugin files that were added to the installed plugins."""
        return [origin.plugin for origin in self.origins if origin.is_file]

    def with_file(self, path: str | Path) -> Registry:
        """This registry and the plugin in a single Python file.

        Raises:
            ConfigError: there is no such file.
            PluginError: the file raises, or is no valid plugin.
        """
        file = Path(path).resolve()
        if not file.is_file():
            raise ConfigError(Problem(f"plugin={path}", "no such file"))
        origin = Origin(str(file), file.stem, "", is_file=True)
        if origin in self.origins:
            return self
        claims = _collect(origin, lambda: _import_file(file))
        if not claims:
            raise _fault(origin, "supplies nothing: no function of it is marked with @xmclab.hookimpl")
        if commands := [claim.name for claim in claims if claim.kind == COMMAND]:
            reason = f"supplies commands ({', '.join(commands)}), which only an installed plugin can"
            raise _fault(origin, f"{reason}: give it an entry point of group {PROJECT!r} and install it")
        return Registry([*self.claims, *claims], [*self.origins, origin], self.broken, self.notices)

    def fault_of(self, error: Exception) -> PluginError | None:
        """The same as an error of the part that raised it, if that is in use and not built in."""
        foreign = {cls: claim for claim, cls in self._classes.items() if claim.origin.distribution != PROJECT}
        if isinstance(error, XmclabError):
            return None
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            if claim := foreign.get(type(frame.f_locals.get("self"))):
                return _fault(claim.origin, f"{claim.kind} {claim.name!r}: {exception_line(error)}")
        return None

    def _find(self, kind: str, name: str) -> Claim:
        ours = [claim for claim in self.claims if claim.kind == kind]
        bare = [claim for claim in ours if claim.name == name]
        prefix, _, rest = name.rpartition(".")
        found = bare or [claim for claim in ours if claim.qualified == f"{_normal(prefix)}.{rest}"]
        if not found:
            raise self._unknown(kind, name)
        if len(found) > 1 or bare:
            reason = self._contested(found[0], found)
            if reason is not None:
                raise PluginError(Problem("", reason.message, reason.hint))
        if found[0].unusable:
            raise ConfigError(Problem("", f"{kind} {name!r} cannot be used: {found[0].unusable}"))
        return found[0]

    def _unknown(self, kind: str, name: str) -> XmclabError:
        names = [*self.names(kind), *(COMMANDS if kind == COMMAND else ())]
        error: type[XmclabError] = DataError if kind == "dataset" else ConfigError
        hint = did_you_mean(name, names)
        if kind in KINDS and closest(name, names) is None:
            hint += "; one of your own: plugin=./file.py"
        if self.broken:
            hint += "; left out because broken: " + "; ".join(f"{b.origin}: {b.reason}" for b in self.broken)
            theirs = any(name in (b.origin.plugin, b.origin.distribution) for b in self.broken)
            if theirs or closest(name, names) is None:
                error = PluginError
        return error(Problem("", f"unknown {kind} {name!r}", hint.removeprefix("; ")))

    def _contested(self, claim: Claim, rivals: Sequence[Claim] | None = None) -> Problem | None:
        """Why the bare name of a claim cannot be used, if several plugins are in its way."""
        if rivals is None:
            rivals = [other for other in self.claims if (other.kind, other.name) == (claim.kind, claim.name)]
        if len(rivals) > 1:
            who = " and ".join(str(rival.origin) for rival in rivals)
            hint = _alternatives(rivals)
            return Problem(f"{claim.kind} {claim.name}", f"{claim.kind} {claim.name!r} is supplied by both {who}", hint)
        namesakes = [origin for origin in self.origins if origin.plugin == claim.origin.plugin]
        if len(namesakes) > 1:
            who = " and ".join(map(str, namesakes))
            message = f"{claim.kind} {claim.name!r} comes from an entry point that two distributions use: {who}"
            return Problem(f"{claim.kind} {claim.name}", message, _alternatives([claim]))
        return None

    def _class(self, claim: Claim) -> type[Any]:
        if claim not in self._classes:
            with _guarded(claim.origin, f"{claim.kind} {claim.name!r}"):
                cls = _import_target(claim.target) if isinstance(claim.target, str) else claim.target
            self._classes[claim] = _checked(claim, cls)
        return self._classes[claim]

    def _describe(self, claim: Claim) -> PartInfo:
        contested = self._contested(claim)
        name = claim.name if contested is None else claim.qualified
        summary, problem = "", "" if contested is None else str(contested)
        options: tuple[OptionInfo, ...] = ()
        try:
            cls = self._class(claim)
            summary, options = _summary(cls), _option_infos(cls)
        except PluginError as error:
            problem = str(error)
        origin = claim.origin
        return PartInfo(claim.kind, name, summary, options, origin.plugin, origin.distribution, origin.version, problem)


@cache
def default_registry() -> Registry:
    """The registry of this process: every installed plugin, as `XMCLAB_PLUGINS` allows."""
    return load_registry(os.environ)


def load_registry(environment: Mapping[str, str]) -> Registry:
    """Load the plugins of all installed distributions.

    Raises:
        PluginError: with every problem, if `XMCLAB_STRICT` is set.
    """
    claims: list[Claim] = []
    broken: list[Broken] = []
    entries = dict(_entry_points())
    wanted, notices = _selection(environment.get("XMCLAB_PLUGINS"), entries)
    for origin in wanted:
        try:
            claims += _collect(origin, entries[origin].load)
        except PluginError as error:
            broken.append(Broken(origin, "; ".join(map(_reason, error.problems))))
    registry = Registry(claims, wanted, broken, [*notices, *_shared_entry_points(wanted)])
    if is_strict(environment) and registry.problems:
        raise PluginError(*registry.problems)
    return registry


def is_strict(environment: Mapping[str, str]) -> bool:
    """Whether a plugin at fault is an error even for those who do not use it."""
    return environment.get("XMCLAB_STRICT", "0") not in ("", "0")


def _entry_points() -> Iterator[tuple[Origin, metadata.EntryPoint]]:
    entries = [(entry.name, entry.dist, entry) for entry in metadata.entry_points(group=PROJECT)]
    found = [(Origin(name, dist.name, dist.version), entry) for name, dist, entry in entries if dist is not None]
    yield from sorted(found, key=lambda pair: (pair[0].plugin, pair[0].distribution))


def _selection(limit: str | None, origins: Iterable[Origin]) -> tuple[list[Origin], list[Problem]]:
    """The plugins to load, and the names of the limit that are no plugin."""
    origins = list(origins)
    if limit is None:
        return origins, []
    wanted = {_normal(word.strip()) for word in limit.split(",") if word.strip()}
    known = {_normal(word) for origin in origins for word in (origin.plugin, origin.distribution)}
    notices = [
        Problem("XMCLAB_PLUGINS", f"no plugin or distribution {word!r} is installed", did_you_mean(word, known))
        for word in sorted(wanted - known)
    ]
    chosen = [
        origin
        for origin in origins
        if (origin.plugin, origin.distribution) == CORE
        or wanted & {_normal(origin.plugin), _normal(origin.distribution)}
    ]
    return chosen, notices


def _shared_entry_points(origins: Iterable[Origin]) -> list[Problem]:
    by_name: dict[str, list[Origin]] = defaultdict(list)
    for origin in origins:
        by_name[origin.plugin].append(origin)
    hint = "say <distribution>.<name> for their parts, or limit XMCLAB_PLUGINS to one of the distributions"
    return [
        Problem(
            f"plugin {name}", "two distributions use this entry-point name: " + " and ".join(map(str, shared)), hint
        )
        for name, shared in by_name.items()
        if len(shared) > 1
    ]


def _collect(origin: Origin, load: Callable[[], object]) -> list[Claim]:
    """What a plugin supplies; a `PluginError` if anything about it is wrong."""
    with _guarded(origin, "import"):
        plugin = load()
    version = getattr(plugin, "xmclab_api", API_VERSION)
    if version != API_VERSION:
        raise _fault(
            origin, f"built for version {version} of the plugin interface, this xmclab has version {API_VERSION}"
        )
    # A manager of its own for each plugin: a fault in one cannot reach the others, and each answer has an author.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    hooks = [name for name in vars(hookspecs) if name.startswith("xmclab_")]
    if mistakes := _unmarked(plugin, manager, hooks):
        raise _fault(origin, *mistakes)
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        unknown = [caller.name for caller in manager.get_hookcallers(plugin) or [] if not caller.has_spec()]
        reasons = [_no_such_hook(name, hooks) for name in unknown] or _wrong_arguments(plugin, hooks)
        raise _fault(origin, *(reasons or [" ".join(str(error).split())])) from error
    with _guarded(origin, "hook"):
        parts = manager.hook.xmclab_parts()
        recipes, datasets = manager.hook.xmclab_recipes(), manager.hook.xmclab_datasets()
        commands = manager.hook.xmclab_commands()
    return [
        *_part_claims(origin, parts),
        *_path_claims(origin, "recipe", "xmclab_recipes", recipes),
        *_path_claims(origin, "dataset", "xmclab_datasets", datasets),
        *_command_claims(origin, commands),
    ]


def _unmarked(plugin: object, manager: pluggy.PluginManager, hooks: Sequence[str]) -> list[str]:
    """Functions that look like hooks but that pluggy would pass over."""
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
                hint = did_you_mean(name, known) or "it takes none"
                mistakes.append(f"{hook} has no argument {name!r} ({hint})")
    return mistakes


def _part_claims(origin: Origin, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        refs = list(answer) if isinstance(answer, list | tuple) else [answer]
        for ref in refs:
            if not isinstance(ref, PartRef):
                raise _fault(origin, f"xmclab_parts returns a list of xmclab.part(kind, name, target), not {ref!r}")
            if ref.kind not in KINDS:
                raise _fault(origin, f"unknown kind of part {ref.kind!r} ({did_you_mean(str(ref.kind), KINDS)})")
            _check_name(origin, ref.name)
            claims.append(Claim(ref.kind, ref.name, ref.target, origin, ref.unusable, ref.always))
    return claims


def _command_claims(origin: Origin, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        for ref in list(answer) if isinstance(answer, list | tuple) else [answer]:
            if not isinstance(ref, CommandRef):
                raise _fault(origin, f"xmclab_commands returns a list of xmclab.command(name, target), not {ref!r}")
            _check_name(origin, ref.name)
            if ref.name in COMMANDS:
                raise _fault(origin, f"command {ref.name!r} is built in: choose another name")
            claims.append(Claim(COMMAND, ref.name, ref.target, origin, help=ref.help))
    return claims


def _path_claims(origin: Origin, kind: str, hook: str, answers: Sequence[object]) -> list[Claim]:
    claims = []
    for answer in answers:
        if not isinstance(answer, Mapping):
            raise _fault(origin, f"{hook} returns a dict of names and paths, not {answer!r}")
        for name, path in answer.items():
            _check_name(origin, name)
            if not isinstance(path, str | os.PathLike):
                raise _fault(origin, f"{hook} returns a dict of names and paths: {name!r} has {path!r}")
            claims.append(Claim(kind, name, Path(path), origin))
    return claims


def _check_name(origin: Origin, name: object) -> None:
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise _fault(origin, f"{name!r} is no name: letters, digits and underscores")


@contextlib.contextmanager
def _guarded(origin: Origin, doing: str) -> Iterator[None]:
    """Foreign code runs here: what it raises becomes a `PluginError`, what it prints leaves stdout alone."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except XmclabError:
        raise
    except (Exception, SystemExit) as error:
        raise _fault(origin, f"{doing}: {exception_line(error)}") from error


def exception_line(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _fault(origin: Origin, *reasons: str) -> PluginError:
    return PluginError(*(Problem(str(origin), reason) for reason in reasons))


def _reason(problem: Problem) -> str:
    return f"{problem.message} ({problem.hint})" if problem.hint else problem.message


def _alternatives(claims: Iterable[Claim]) -> str:
    claims = list(claims)
    names = sorted({claim.qualified for claim in claims})
    if len(names) < len(claims):
        return "limit XMCLAB_PLUGINS to one of the plugins"
    return "say " + " or ".join(map(repr, names)) + ", or limit XMCLAB_PLUGINS"


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "_", distribution).lower()


def _import_file(file: Path) -> ModuleType:
    # The name is the path's own, so that two files of the same name are two modules.
    name = f"xmclab_file_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}_{_normal(file.stem)}"
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


def _import_target(target: str) -> Any:
    module, _, attribute = target.partition(":")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    return value


def _checked(claim: Claim, cls: Any) -> type[Any]:
    """The class, if it is a concrete dataclass of the claim's kind with usable options."""
    if fault := fault_of_class(claim.kind, cls):
        raise _fault(claim.origin, f"{claim.kind} {claim.name!r} {fault}")
    checked: type[Any] = cls
    return checked


def fault_of_class(kind: str, cls: Any) -> str:
    """Why this is no concrete dataclass of its kind with usable options; empty if it is."""
    from xmclab import api
    from xmclab.host.options import options_of

    base: type[Any] = getattr(api, kind.capitalize())
    if not inspect.isclass(cls) or not issubclass(cls, base):
        return f"must be a subclass of xmclab.api.{base.__name__}, not {cls!r}"
    if "__dataclass_fields__" not in vars(cls):
        return f"must be a dataclass: decorate {cls.__name__} with @dataclass"
    if inspect.isabstract(cls):
        return "lacks methods of its interface: " + ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    try:
        options_of(cls)
    except PluginError as error:
        return f"cannot be configured: {error}"
    return ""


def _summary(cls: type[Any]) -> str:
    """The first line of the class's docstring, or of its module's where `dataclass` made one up."""
    text = cls.__doc__ or ""
    if not text or text.startswith(f"{cls.__name__}("):
        text = sys.modules[cls.__module__].__doc__ or ""
    return text.strip().partition("\n")[0]


def _option_infos(cls: type[Any]) -> tuple[OptionInfo, ...]:
    from xmclab.host.options import options_of

    return tuple(
        OptionInfo(
            name=option.name,
            type=option.type_name,
            default=None if option.default is MISSING else option.dump(option.default),
            required=option.required,
            bounds=option.range_text,
            help=option.help,
        )
        for option in options_of(cls).values()
    )
