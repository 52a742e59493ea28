"""What the loaded plugins supply, found by name: parts, recipes, data sets and presets."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from xmclab.errors import ConfigError, DataError, PluginError, Problem, XmclabError, closest, did_you_mean
from xmclab.host.hookspecs import COMMANDS, KINDS, PROJECT
from xmclab.host.load import (
    COMMAND,
    NAME,
    Broken,
    Claim,
    Origin,
    checked,
    collect,
    entry_points,
    exception_line,
    fault,
    guarded,
    import_file,
    import_target,
    is_strict,
    normal,
    reason,
    selection,
    shared_entry_points,
)
from xmclab.system.memory import out_of_memory

Result = TypeVar("Result")


@dataclass(frozen=True)
class OptionInfo:
    """An option of a part, for listings."""

    name: str
    type: str
    default: Any  # as a JSON value; None also when required
    required: bool
    bounds: str
    help: str
    search: str  # what tuning tries; empty: nothing


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


@dataclass
class Registry:
    """Everything that the loaded plugins supply. A part is imported when it is first used."""

    claims: Sequence[Claim]
    origins: Sequence[Origin]  # of all plugins, including broken ones
    broken: Sequence[Broken] = ()
    notices: Sequence[Problem] = ()  # other problems while loading
    _classes: dict[Claim, type[Any]] = field(default_factory=dict, repr=False)

    def get(self, kind: str, name: str) -> type[Any]:
        """The class of a part.

        Raises:
            ConfigError: no plugin supplies the name.
            PluginError: several plugins supply it, or its plugin is broken.
        """
        if kind not in KINDS:
            raise ConfigError(Problem("", f"unknown kind of part {kind!r}", did_you_mean(kind, KINDS)))
        return self._class(self._find(kind, name))

    def target(self, kind: str, name: str) -> type | str:
        """The class of a part or the lazy reference to it; nothing is imported.

        Raises:
            XmclabError: as `get`.
        """
        found = self._find(kind, name).target
        assert isinstance(found, type | str), "that of a part"
        return found

    def names(self, kind: str) -> list[str]:
        """The names that can be used: bare ones, and qualified ones where the bare name is claimed twice."""
        claims = [claim for claim in self.claims if claim.kind == kind and not claim.unusable]
        return sorted({claim.qualified if self._contested(claim) else claim.name for claim in claims})

    def always(self, kind: str) -> list[str]:
        """The names of parts that every run uses."""
        claims = [claim for claim in self.claims if claim.kind == kind and claim.always]
        return [claim.qualified if self._contested(claim) else claim.name for claim in claims]

    def recipe(self, name: str) -> Path:
        """The YAML file of a recipe."""
        return Path(str(self._find("recipe", name).target))

    def dataset(self, name: str) -> Path:
        """The folder of a data set that a plugin supplies.

        Raises:
            DataError: no plugin supplies the name.
        """
        return Path(str(self._find("dataset", name).target))

    def preset(self, name: str) -> Path:
        """The YAML file of a preset."""
        return Path(str(self._find("preset", name).target))

    def commands(self) -> dict[str, str]:
        """The commands that plugins supply, each with its one-line help. Imports none of them."""
        claims = [claim for claim in self.claims if claim.kind == COMMAND]
        found = {claim.qualified if self._contested(claim) else claim.name: claim.help for claim in claims}
        return dict(sorted(found.items()))

    def command(self, name: str, build: Callable[[Any], Result]) -> Result:
        """The command of a plugin, made by `build` from its function or `typer.Typer`.

        Raises:
            ConfigError: no plugin supplies the name.
            PluginError: several plugins supply it, it cannot be imported, or `build` raises.
        """
        claim = self._find(COMMAND, name)
        with guarded(claim.origin, f"command {name!r}"):
            target = import_target(claim.target) if isinstance(claim.target, str) else claim.target
            if not callable(target):
                raise fault(claim.origin, f"command {name!r} must be a function or a typer.Typer, not {target!r}")
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

    @property
    def given(self) -> dict[str, str]:
        """The classes that were given from Python: `loss mine` -> `__main__.Mine`."""
        return {f"{claim.kind} {claim.name}": claim.origin.plugin for claim in self.claims if claim.origin.is_class}

    def name_of(self, kind: str, cls: type[Any]) -> str | None:
        """The name under which a class is a part already; None if it is not."""
        targets = (cls, f"{cls.__module__}:{cls.__qualname__}")
        claim = next((claim for claim in self.claims if claim.kind == kind and claim.target in targets), None)
        if claim is None:
            return None
        return claim.qualified if self._contested(claim) else claim.name

    def with_class(self, kind: str, name: str, cls: type[Any]) -> Registry:
        """This registry and a part of this process, which needs neither a file nor a hook.

        Raises:
            ConfigError: another part has the name.
            PluginError: the class is not a concrete dataclass of its kind.
        """
        origin = Origin(f"{cls.__module__}.{cls.__qualname__}", "python", "", is_class=True)
        claim = Claim(kind, name, cls, origin)
        rivals = [other for other in self.claims if (other.kind, other.name) == (kind, name)]
        if rivals or NAME.fullmatch(name) is None:
            reason = f"is supplied by {rivals[0].origin} already" if rivals else "is not a valid name"
            hint = f"rename it, or name it yourself: parts={{'my_{normal(name)}': {cls.__name__}}}"
            raise ConfigError(Problem(cls.__name__, f"{kind} {name!r} {reason}", hint))
        checked(claim, cls)
        return Registry([*self.claims, claim], [*self.origins, origin], self.broken, self.notices)

    def with_file(self, path: str | Path) -> Registry:
        """This registry and the plugin in a single Python file.

        Raises:
            ConfigError: there is no such file.
            PluginError: the file raises, or is not a valid plugin.
        """
        file = Path(path).resolve()
        if not file.is_file():
            raise ConfigError(Problem(f"plugin={path}", "no such file"))
        origin = Origin(str(file), file.stem, "", is_file=True)
        if origin in self.origins:
            return self
        claims = collect(origin, lambda: import_file(file))
        if not claims:
            raise fault(origin, "supplies nothing: none of its functions is marked with @xmclab.hookimpl")
        if commands := [claim.name for claim in claims if claim.kind == COMMAND]:
            reason = f"supplies commands ({', '.join(commands)}), which only an installed plugin can"
            raise fault(origin, f"{reason}: give it an entry point of group {PROJECT!r} and install it")
        return Registry([*self.claims, *claims], [*self.origins, origin], self.broken, self.notices)

    def origin(self, kind: str, name: str) -> Origin:
        """Where a part comes from."""
        return self._find(kind, name).origin

    def fault_of(self, error: Exception) -> PluginError | None:
        """The error as a `PluginError` of the part that raised it, if that is in use and not built in."""
        foreign = {cls: claim for claim, cls in self._classes.items() if claim.origin.distribution != PROJECT}
        if isinstance(error, XmclabError) or out_of_memory(error):
            return None
        for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
            if claim := foreign.get(type(frame.f_locals.get("self"))):
                return fault(claim.origin, f"{claim.kind} {claim.name!r}: {exception_line(error)}")
        return None

    def _find(self, kind: str, name: str) -> Claim:
        ours = [claim for claim in self.claims if claim.kind == kind]
        bare = [claim for claim in ours if claim.name == name]
        prefix, _, rest = name.rpartition(".")
        found = bare or [claim for claim in ours if claim.qualified == f"{normal(prefix)}.{rest}"]
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
            hint += "; to use your own: plugin=./file.py"
        if self.broken:
            hint += "; skipped because broken: " + "; ".join(f"{b.origin}: {b.reason}" for b in self.broken)
            theirs = any(name in (b.origin.plugin, b.origin.distribution) for b in self.broken)
            if theirs or closest(name, names) is None:
                error = PluginError
        return error(Problem("", f"unknown {kind} {name!r}", hint.removeprefix("; ")))

    def _contested(self, claim: Claim, rivals: Sequence[Claim] | None = None) -> Problem | None:
        """Why the bare name of a claim is ambiguous, if it is."""
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
            with guarded(claim.origin, f"{claim.kind} {claim.name!r}"):
                cls = import_target(claim.target) if isinstance(claim.target, str) else claim.target
            self._classes[claim] = checked(claim, cls)
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
    entries = dict(entry_points())
    wanted, notices = selection(environment.get("XMCLAB_PLUGINS"), entries)
    for origin in wanted:
        try:
            claims += collect(origin, entries[origin].load)
        except PluginError as error:
            broken.append(Broken(origin, "; ".join(map(reason, error.problems))))
    registry = Registry(claims, wanted, broken, [*notices, *shared_entry_points(wanted)])
    if is_strict(environment) and registry.problems:
        raise PluginError(*registry.problems)
    return registry


def _alternatives(claims: Iterable[Claim]) -> str:
    claims = list(claims)
    names = sorted({claim.qualified for claim in claims})
    if len(names) < len(claims):
        return "limit XMCLAB_PLUGINS to one of the plugins"
    return "use " + " or ".join(map(repr, names)) + ", or limit XMCLAB_PLUGINS"


def _summary(cls: type[Any]) -> str:
    """The first line of the class's docstring, or of its module's if `dataclass` generated it."""
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
            search="" if option.search is None else str(option.search),
        )
        for option in options_of(cls).values()
    )
