"""The options of a part class: read from its dataclass fields, converted and range-checked by pydantic."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from xmclab.errors import ConfigError, PluginError, Problem, did_you_mean
from xmclab.options import BOUNDS, OneOf, Span

Part = TypeVar("Part")
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


@dataclass(frozen=True)
class Option:
    """One option of a part or a group of settings."""

    name: str
    type: Any  # the evaluated annotation
    default: Any  # dataclasses.MISSING: must be given
    help: str
    bounds: Mapping[str, float]  # gt, ge, lt, le
    search: Span | OneOf | None = None  # what tuning tries

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def type_name(self) -> str:
        """The type as shown to users: `float or none`, `cosine|linear`."""
        return _type_name(self.type)

    @property
    def range_text(self) -> str:
        """The bounds, such as `>= 0, < 1`."""
        return ", ".join(f"{SIGNS[sign]} {bound:g}" for sign, bound in self.bounds.items())

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it takes, all or beside numbers: those of a choice, `none`, `true`."""
        return tuple(word for member in _members(self.type) for word in _words(member))

    @property
    def number(self) -> str:
        """The default, if it is a number."""
        return str(self.default) if isinstance(self.default, int | float) and not isinstance(self.default, bool) else ""

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        # pydantic takes no config for a dataclass, and a group of settings is one.
        config = None if dataclasses.is_dataclass(self.type) else ConfigDict(allow_inf_nan=False)
        return TypeAdapter(_bounded(self.type, self.bounds), config=config)

    def convert(self, value: Any) -> Any:
        """The value as this option's type; text means what was typed: `1e-3`, `on`, `012`, `none`, `1,2,3`.

        Raises:
            ValueError: with a message that starts with the value.
        """
        try:
            return self._adapter.validate_python(self._read(value) if isinstance(value, str) else value)
        except ValidationError as error:
            reason = error.errors(include_url=False)[0]["msg"]
            raise ValueError(f"{value!r} {reason.removeprefix('Input ').removeprefix('Value error, ')}") from None

    def dump(self, value: Any) -> Any:
        """A converted value as a JSON value."""
        return self._adapter.dump_python(value, mode="json")

    def _read(self, text: str) -> Any:
        members = _members(self.type)
        choices = {str(choice): choice for member in members for choice in _choices(member)}
        if text in choices:
            return choices[text]
        if type(None) in members and text.lower() in ("none", "null"):
            return None
        if any(typing.get_origin(member) in (list, tuple, Sequence) for member in members):
            return [item.strip() for item in text.strip("[]() ").split(",") if item.strip()]
        return text

    def check(self) -> None:
        """Raise if values, or those that tuning tries, cannot be converted to this type and these bounds."""
        _ = self._adapter
        for value in self.search.ends if self.search else ():
            self.convert(value)


def _bounded(annotation: Any, bounds: Mapping[str, Any]) -> Any:
    """The type with its bounds, which only concern the numbers beside words: `int | Literal["auto"]`."""
    if not bounds:
        return annotation
    members = _members(annotation)
    if any(map(_choices, members)):
        return typing.Union[tuple(each if _choices(each) else _bounded(each, bounds) for each in members)]  # noqa: UP007
    return Annotated[annotation, Field(**bounds)]


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is Annotated:
        return _members(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _choices(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _words(annotation: Any) -> tuple[str, ...]:
    if annotation is bool:
        return "false", "true"
    return ("none",) if annotation is type(None) else tuple(map(str, _choices(annotation)))


def _type_name(annotation: Any) -> str:
    members = _members(annotation)
    if len(members) > 1:
        return " or ".join(map(_type_name, members))
    if annotation is type(None):
        return "none"
    if choices := _choices(annotation):
        return "|".join(map(str, choices))
    return annotation.__name__ if inspect.isclass(annotation) and not typing.get_args(annotation) else str(annotation)


def options_of(cls: type) -> Mapping[str, Option]:
    """The options of a dataclass: its init fields that do not start with an underscore.

    Raises:
        PluginError: an option's type cannot be evaluated, or values cannot be converted to it.
    """
    options = _declared(cls)
    if any(isinstance(option.default, list | dict | set) for option in options.values()):
        return _declared.__wrapped__(cls)  # each caller gets a default of its own
    return options


@cache
def _declared(cls: type) -> Mapping[str, Option]:
    fields = [field for field in dataclasses.fields(cls) if field.init and not field.name.startswith("_")]
    return types.MappingProxyType({field.name: _option(cls, field) for field in fields})


def _option(cls: type, field: dataclasses.Field[Any]) -> Option:
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    bounds = {sign: field.metadata[sign] for sign in BOUNDS if sign in field.metadata}
    told = field.metadata.get("help", ""), bounds, field.metadata.get("search")
    try:
        option = Option(field.name, _field_type(cls, field.name), default, *told)
        option.check()
    except (NameError, TypeError, AttributeError, SyntaxError, ValueError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise PluginError(
            Problem(f"{cls.__name__}.{field.name}", f"the option's type cannot be used: {reason}")
        ) from error
    return option


def _field_type(cls: type, name: str) -> Any:
    """The annotation of this field only, so that names under TYPE_CHECKING elsewhere in the class do not matter."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    holder = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    module = sys.modules.get(owner.__module__)  # a class that was made by `exec` has none
    return typing.get_type_hints(holder, globalns=vars(module) if module else {}, include_extras=True)[name]


def read_options(
    cls: type, given: Mapping[str, Any], where: Callable[[str], str]
) -> tuple[dict[str, Any], list[Problem]]:
    """All options of a class, converted, with defaults filled in; and every problem of those given.

    Args:
        where: maps an option's name to what the user typed, for error messages.
    """
    options = options_of(cls)
    problems = [
        Problem(where(name), f"unknown option {name!r}", did_you_mean(name, options))
        for name in given
        if name not in options
    ]
    values: dict[str, Any] = {}
    for name, option in options.items():
        if name not in given:
            if option.required:
                problems.append(Problem(where(name), f"must be set ({option.type_name})", option.help))
            values[name] = option.default
            continue
        try:
            values[name] = option.convert(given[name])
        except ValueError as error:
            problems.append(Problem(where(name), str(error), option.help))
    return values, problems


def construct(cls: type[Part], values: Mapping[str, Any], where: str) -> Part:
    """A part from converted values; errors raised by its own checks become config errors."""
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(Problem(where, str(error))) from error


def make_part(cls: type[Part], options: Mapping[str, Any], where: str) -> Part:
    """A part from options as given, strings included.

    Args:
        where: prefix of the options in messages, such as `sampler`.

    Raises:
        ConfigError: with every problem of the options.
    """
    values, problems = read_options(cls, options, lambda name: f"{where}.{name}")
    if problems:
        raise ConfigError(*problems)
    return construct(cls, values, where)
