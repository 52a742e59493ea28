"""`xmclab check`: checks parts against the laws of their kind."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmclab.cli.common import Json, Trust, print_json, registry_with, without_plugins
from xmclab.errors import ConfigError, DataError, PluginError, Problem, did_you_mean
from xmclab.host import KINDS
from xmclab.system.terminal import printable
from xmclab.system.trust import trusting_remote_code

if TYPE_CHECKING:
    from xmclab.host import Registry
    from xmclab_kit import Verdict

EXAMPLE = "such as loss:ds, or 'loss:margin(margin=2)' with options"


def check(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND:NAME", help="Parts, such as loss:ds or 'loss:margin(margin=2)'; also plugin=./file.py."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every part of every plugin.")] = False,
    as_json: Json = False,
    trust: Trust = False,
) -> None:
    """Check parts against the laws of their kind: xmclab check loss:mine plugin=./mine.py"""
    named, files = without_plugins(parts)
    if bool(named) == every:
        raise ConfigError(Problem("check", "give either parts or --all", EXAMPLE))
    require_testing()
    registry = registry_with(files)
    asked = [(kind, name) for kind in KINDS for name in registry.names(kind)] if every else []
    asked += [_kind_and_rest(part) for part in named]
    results = [Result(problem.where, fault=problem) for problem in registry.problems] if every else []
    if not as_json:
        for result in results:
            result.show()
    for kind, text in asked:
        quiet = contextlib.redirect_stdout(sys.stderr)  # anything that a part prints
        with quiet, _without_traces(), trusting_remote_code(trust):
            results.append(_examine(registry, kind, text, lenient=every))
        if not as_json:
            results[-1].show()
    if as_json:
        print_json([result.document() for result in results])
    problems = [problem for result in results for problem in result.problems()]
    if problems:
        raise PluginError(*problems)


def require_testing() -> None:
    """Raise with the install command if the laws cannot be imported."""
    try:
        import hypothesis  # noqa: F401
    except ImportError as error:
        hint = 'pip install "xmclab[testing]"'
        raise ConfigError(Problem("check", "hypothesis is not installed", hint)) from error


@contextlib.contextmanager
def _without_traces() -> Iterator[None]:
    """Send hypothesis's files to a temporary folder, not to the user's."""
    from hypothesis.configuration import set_hypothesis_home_dir

    with tempfile.TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


@dataclass(frozen=True)
class Result:
    """The outcome for one part."""

    part: str  # as asked for
    verdicts: Sequence[Verdict] = ()
    unavailable: str = ""  # why it could not be checked here
    fault: Problem | None = None  # what is wrong with its plugin, so nothing was checked

    @property
    def broken(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.violation]

    def problems(self) -> list[Problem]:
        """One for the part: `show` and `document` have what was seen of each law."""
        if self.fault:
            return [self.fault]
        laws = [repr(verdict.law.name) for verdict in self.broken]
        if not laws:
            return []
        return [Problem(self.part, f"breaks the law{'s' if len(laws) > 1 else ''} {', '.join(laws)}")]

    def show(self) -> None:
        """A line for the part, and a paragraph for each broken law."""
        if self.fault:
            print(printable(str(self.fault)))
            return
        if self.unavailable:
            print(printable(f"{self.part}: not checked, {self.unavailable}"))
            return
        waiting = [verdict for verdict in self.verdicts if verdict.state == "not checked"]
        kept = sum(verdict.state == "holds" for verdict in self.verdicts)
        print(f"{self.part}: {'breaks' if self.broken else 'keeps'} the laws ({kept} of {len(self.verdicts)} hold)")
        for verdict in self.broken:
            print("\n".join(f"  {printable(line)}" for line in str(verdict.violation).splitlines()))
        for verdict in self.verdicts:
            if verdict.why:
                print(f"  {verdict.law.name}: exempt (declared by the part): {verdict.why}")
        if waiting:
            print(f"  skipped until the failures above are fixed: {', '.join(verdict.law.name for verdict in waiting)}")

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        laws = []
        for verdict in self.verdicts:
            entry: dict[str, Any] = {"law": verdict.law.name, "says": verdict.law.says, "state": verdict.state}
            if verdict.violation:
                entry |= {
                    "seen": verdict.violation.seen,
                    "example": verdict.violation.example,
                    "fix": verdict.violation.fix,
                }
            if verdict.why:
                entry["why"] = verdict.why
            if verdict.because:
                entry["because"] = list(verdict.because)
            laws.append(entry)
        document = {"part": self.part, "keeps": not self.problems() and not self.unavailable}
        if self.fault:
            document["problem"] = str(self.fault)
        return {**document, "unavailable": self.unavailable or None, "laws": laws}


def _kind_and_rest(text: str) -> tuple[str, str]:
    """`loss:margin(margin=2)` to ("loss", "margin(margin=2)")."""
    kind, colon, rest = text.partition(":")
    if not colon or not rest:
        raise ConfigError(Problem(text, "not KIND:NAME", EXAMPLE))
    if kind not in KINDS:
        raise ConfigError(Problem(text, f"unknown kind of part {kind!r}", did_you_mean(kind, KINDS)))
    return kind, rest


def _name_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """`margin(margin=2)` to its name and options; a bare name is taken as it is."""
    from xmclab.objectives import parse_expression

    if "(" not in text:
        return text, {}
    terms = parse_expression(text)
    if len(terms) != 1 or terms[0].weight != 1 or terms[0].reduction is not None:
        raise ConfigError(Problem(text, "not a single part with its options", EXAMPLE))
    return terms[0].name, dict(terms[0].options)


def _examine(registry: Registry, kind: str, text: str, lenient: bool) -> Result:
    """All verdicts on a part; `lenient`: what is missing here, such as a model's files, is not an error."""
    from xmclab_kit import examine

    name, options = _name_and_options(text)
    label = f"{kind}:{text}"
    try:
        return Result(label, examine(registry, kind, name, options))
    except (DataError, PluginError) as error:
        if not lenient:
            raise
        return Result(label, unavailable=str(error).partition("\n")[0])
