"""What Python gives in place of words: overrides as keywords, and parts as classes or objects."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xmclab.errors import ConfigError, Problem, XmclabError
from xmclab.host.config import SEVERAL
from xmclab.host.hookspecs import KINDS
from xmclab.host.load import interface
from xmclab.host.options import Option, options_of
from xmclab.host.registry import Registry, default_registry
from xmclab.host.schema import EXPRESSIONS, NONE, SHORTHANDS, SLOTS

Parts = Iterable[object] | Mapping[str, object]  # classes or objects, under the names of their classes or others
WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # where a word of a class's name begins

OPTION = re.compile(r"^--([a-z-]+)( ?)")  # of a command, at the beginning of where an error is


@contextlib.contextmanager
def python_names() -> Iterator[None]:
    """Errors within name arguments as Python does: `add_labels` and `head=de`, not `--add-labels` and `--head de`."""
    try:
        yield
    except XmclabError as error:
        named = [dataclasses.replace(each, where=OPTION.sub(_argument, each.where)) for each in error.problems]
        error.problems, error.args = named, ("\n".join(map(str, named)),)
        raise


def _argument(option: re.Match[str]) -> str:
    return option[1].replace("-", "_") + ("=" if option[2] else "")


@dataclass
class Given:
    """The overrides of a call, as the command line would have them, and the registry that they are resolved in."""

    words: list[str] = field(default_factory=list)
    registry: Registry = field(default_factory=default_registry)

    @classmethod
    def of(
        cls,
        overrides: Sequence[str] = (),
        keywords: Mapping[str, Any] | None = None,
        parts: Parts = (),
        registry: Registry | None = None,
    ) -> Given:
        """Those of a call such as `train(..., "epochs=5", loss=MyLoss(), parts=[MySampler])`.

        Raises:
            ConfigError: a value cannot be written as an override, or a part is not of the kind that its key takes.
            PluginError: a class is not a part.
        """
        given = cls() if registry is None else cls(registry=registry)
        for name, part in parts.items() if isinstance(parts, Mapping) else ((None, part) for part in parts):
            given._add(_class_of(part), "parts", name)
        for key, value in (keywords or {}).items():
            given._set(key, value)
        given.words += overrides
        return given

    def _set(self, key: str, value: Any) -> None:
        values = list(value) if isinstance(value, list | tuple) else [value]
        if key == "plugin":
            self.words += [f"plugin={file}" for file in values]
        elif any(map(_is_part, values)):
            names = [self._add(_class_of(each), key) if _is_part(each) else str(each) for each in values]
            self.words.append(f"{key}={SEVERAL.join(names)}")
            for name, each in zip(names, values, strict=True):
                self.words += _options(key, name, each) if _is_part(each) else ()
        else:
            self.words.append(f"{key}={text_of(value, key)}")

    def _add(self, cls: type[Any], key: str, name: str | None = None) -> str:
        """Register a class; its name."""
        kind, wanted = _kind_of(cls), _kind_at(key)
        if not kind or (wanted and kind != wanted):
            base = f"xmclab.api.{wanted.capitalize()}" if wanted else "a class of xmclab.api, such as MultiClassLoss"
            reason = f"{cls.__name__} is a {kind}, not a {wanted}" if kind else f"{cls.__name__} is not a part"
            raise ConfigError(Problem(key, reason, "" if kind else f"subclass {base}"))
        if name is None and (known := self.registry.name_of(kind, cls)):
            return known
        name = name or WORD.sub("_", cls.__name__.strip("_")).lower()
        self.registry = self.registry.with_class(kind, name, cls)
        return name


def text_of(value: Any, key: str) -> str:
    """A value as one would type it.

    Raises:
        ConfigError: one would not.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float | Path):
        return str(value)
    if isinstance(value, list | tuple):
        return ",".join(text_of(each, key) for each in value)
    raise ConfigError(Problem(key, f"{value!r} is neither a value nor a part"))


def _is_part(value: Any) -> bool:
    """Whether it was meant as a part: a class or an object, not a value that one could type."""
    return value is not None and not isinstance(value, str | int | float | np.generic | Path | list | tuple | dict)


def _class_of(part: object) -> type[Any]:
    return part if inspect.isclass(part) else type(part)


def _kind_of(cls: type[Any]) -> str:
    """The kind of part of a class; empty if it has none."""
    return next((kind for kind in KINDS if issubclass(cls, interface(kind))), "")


def _kind_at(key: str) -> str:
    """The kind of part that a key takes; empty for an unknown key."""
    place = SHORTHANDS.get(key, (key,))[0]
    return "loss" if place in EXPRESSIONS else SLOTS[place].kind if place in SLOTS else ""


def _options(key: str, name: str, part: Any) -> Iterable[str]:
    """The options of an object as overrides: those that are not at their defaults."""
    if inspect.isclass(part):
        return
    below = f"{key}.{name}" if _kind_at(key) == "loss" or (key in SLOTS and SLOTS[key].several) else key
    known = {each.name for each in dataclasses.fields(part)}
    if extra := [word for word in getattr(part, "__dict__", {}) if word not in known and not word.startswith("_")]:
        made = type(part)(**{name: getattr(part, name) for name in options_of(type(part))})
        if lost := [word for word in extra if word not in vars(made)]:
            hint = "a run makes parts from their options: make these fields of the dataclass"
            raise ConfigError(Problem(key, f"{name} has attributes that were set later: {', '.join(lost)}", hint))
    for option in options_of(type(part)).values():
        value = getattr(part, option.name)
        if option.required or value != option.default:
            yield f"{below}.{option.name}={_written(option, value, f'{below}.{option.name}')}"


def _written(option: Option, value: Any, key: str) -> str:
    """The value of an option as one would type it."""
    text = text_of(value, key)
    with contextlib.suppress(ValueError):
        if option.convert(text) == value:
            return text
    reason, hint = f"{value!r} cannot be written as an override", "a run makes parts from what config.yaml can hold"
    raise ConfigError(Problem(key, reason, hint))
