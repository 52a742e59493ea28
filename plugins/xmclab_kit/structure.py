"""What holds for a part of any kind: it is a class that the registry accepts, and its options can be set."""

from __future__ import annotations

from torch import nn

from xmclab.host import exception_line, fault_of_class, options_of
from xmclab_kit.core import Broken, Laws, Subject

PART, OPTIONS = "part", "options"


def structural_laws() -> Laws:
    """`part` and `options`, on which all other laws build."""
    laws = Laws()

    @laws.law(
        says="the class is a concrete dataclass of its kind",
        fix="subclass the kind's base class of xmclab.api, write its abstract methods, and decorate it with @dataclass"
        " (an encoder or head: @dataclass(eq=False))",
    )
    def part(subject: Subject) -> None:
        if fault := fault_of_class(subject.kind, subject.cls):
            raise Broken(f"{subject.cls.__name__} {fault}")
        if issubclass(subject.cls, nn.Module) and subject.cls.__hash__ is None:
            raise Broken("it is not hashable, as torch requires of a module: use @dataclass(eq=False)")

    @laws.law(
        says="the part can be created from its options, and every default is a valid value",
        fix="give each option a default within its type and bounds, which __init__ and __post_init__ accept",
        needs=[PART],
    )
    def options(subject: Subject) -> None:
        given = subject.part
        for name, option in options_of(subject.cls).items():
            if option.required:
                continue
            try:
                again = option.convert(option.dump(option.default))
            except Exception as error:
                raise Broken(f"the default of {name!r}: {exception_line(error)}") from error
            if again != option.default:
                raise Broken(
                    f"the default of {name!r} is {option.default!r}, but is read back as {again!r} from a file"
                )
            if not hasattr(given, name):
                raise Broken(f"the instance has no attribute {name!r}")

    return laws
