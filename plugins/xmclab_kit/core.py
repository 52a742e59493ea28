"""What a law is, and how a part is checked against it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from hypothesis import HealthCheck, Verbosity, given, settings
from hypothesis.strategies import DrawFn, SearchStrategy, binary
from numpy.typing import NDArray
from torch import Tensor, nn

from xmclab.errors import DataError, XmclabError
from xmclab.host import exception_line, make_part
from xmclab.model.tables import RowTable

EXAMPLES = 20
NUDGE = 0.01  # change of parameters before their gradients are checked
SHOWN_NUMBERS = 64  # most numbers of a tensor in a message
Result = TypeVar("Result")


class Broken(Exception):
    """A law does not hold; the message says what was seen."""


@dataclass(eq=False)
class Subject:
    """A part under examination: its class, and the options that it is made with."""

    kind: str
    name: str
    cls: type[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    _kept: dict[object, Any] = field(default_factory=dict, repr=False)

    def make(self, **options: Any) -> Any:
        """A new instance, with some of its options changed."""
        return make_part(self.cls, {**self.options, **options}, self.name)

    @cached_property
    def part(self) -> Any:
        """The instance that laws examine."""
        return self.make()

    def once(self, make: Callable[[Subject], Result]) -> Result:
        """The result of `make` for this subject, cached."""
        if make not in self._kept:
            self._kept[make] = make(self)
        result: Result = self._kept[make]
        return result


@dataclass(frozen=True)
class Law:
    """Something that holds for every part of a kind."""

    name: str
    says: str  # what holds
    fix: str  # what to do if it does not
    check: Callable[..., None]  # (subject), or (subject, example); raises `Broken`
    examples: SearchStrategy[Any] | None = None  # inputs to try it on
    needs: tuple[str, ...] = ()  # laws that must hold for this one to mean anything


RAISED = "raised "


@dataclass(frozen=True)
class Violation:
    """A law that a part breaks."""

    law: Law
    seen: str
    example: str  # the smallest input on which it was seen; empty if it takes none

    def __str__(self) -> str:
        lines = [f"{self.law.name}: {self.law.says}", *_labelled("seen", self.seen)]
        lines += _labelled("on", self.example) if self.example else []
        return "\n".join([*lines, *_labelled("fix", self.fix)])

    @property
    def fix(self) -> str:
        """What to do about it."""
        if self.seen.startswith(RAISED):
            return f"no valid input may raise, down to one row and one column; then: {self.law.fix}"
        return self.law.fix


def _labelled(label: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {label:<6}{first}", *(f"  {'':<6}{line}" for line in rest)]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one law."""

    law: Law
    state: Literal["holds", "broken", "not kept", "not checked"]
    violation: Violation | None = None  # of a broken one
    why: str = ""  # reason the part gives for its exemption
    because: tuple[str, ...] = ()  # if not checked: the broken laws that it needs


class Laws(list[Law]):
    """The laws of a kind, in the order in which they are checked."""

    def law(
        self,
        says: str,
        fix: str,
        examples: SearchStrategy[Any] | None = None,
        needs: Sequence[str] = (),
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add the function below as the law of its name."""

        def add(check: Callable[..., None]) -> Callable[..., None]:
            self.append(Law(check.__name__, says, fix, check, examples, tuple(needs)))
            return check

        return add


@dataclass(eq=False)
class Examination:
    """Checks a part against the laws of its kind, each law once."""

    subject: Subject
    laws: Sequence[Law]
    _verdicts: dict[str, Verdict] = field(default_factory=dict, repr=False)

    def verdict(self, law: Law) -> Verdict:
        """The verdict of a law, after those that it needs."""
        if law.name not in self._verdicts:
            needed = [self.verdict(other) for other in self.laws if other.name in law.needs]
            missing = tuple(dict.fromkeys(name for other in needed for name in _broken_below(other)))
            if missing:
                self._verdicts[law.name] = Verdict(law, "not checked", because=missing)
            else:
                self._verdicts[law.name] = self._check(law)
        return self._verdicts[law.name]

    def _check(self, law: Law) -> Verdict:
        violation = find_violation(law, self.subject)
        why = getattr(self.subject.cls, "laws_not_kept", {}).get(law.name)
        if violation and why:
            return Verdict(law, "not kept", why=why)
        return Verdict(law, "broken" if violation else "holds", violation)

    def verdicts(self) -> list[Verdict]:
        """The verdicts of all laws."""
        return [self.verdict(law) for law in self.laws]


def _broken_below(verdict: Verdict) -> tuple[str, ...]:
    return (verdict.law.name,) if verdict.state == "broken" else verdict.because


class _Seen(Exception):
    """Tells hypothesis that an example breaks the law."""


def find_violation(law: Law, subject: Subject) -> Violation | None:
    """The law's violation on the smallest example that hypothesis finds, if any; deterministic.

    Raises:
        XmclabError: the part needs something that is not available (`is_unavailable`), so there is no verdict.
    """
    found: Violation | None = None

    def attempt(example: Any = None) -> None:
        nonlocal found
        seen = _seen(law, subject, *(() if example is None else (example,)))
        if seen is not None:
            found = Violation(law, seen, "" if example is None else str(example))
            raise _Seen

    def attempt_on(example: Any) -> None:
        attempt(example)

    if law.examples is None:
        with contextlib.suppress(_Seen):
            attempt()
        return found
    run = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )(given(law.examples)(attempt_on))
    try:
        run()
    except XmclabError:
        raise
    except Exception:
        if found is None:  # not a broken law, then, but one that cannot be run
            raise
    return found


def is_unavailable(error: BaseException) -> bool:
    """Whether a part reports that something is missing here: a model's files, or a package and how to install it."""
    if isinstance(error, XmclabError) and isinstance(error.__cause__, ImportError):
        return any(problem.hint for problem in error.problems)  # without: an import that just failed
    return isinstance(error, DataError)


def _seen(law: Law, subject: Subject, *example: Any) -> str | None:
    """How the example breaks the law; None if it does not."""
    try:
        with _sealed():
            law.check(subject, *example)
    except Broken as broken:
        return str(broken)
    except (Exception, SystemExit) as error:
        if is_unavailable(error):
            raise
        return f"{RAISED}{exception_line(error)}"
    return None


@contextlib.contextmanager
def _sealed() -> Iterator[None]:
    """Give every check the same random numbers, leave the caller's generator alone, and silence torch's warnings."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed(0)
        yield


def seed(number: int) -> None:
    """Seed torch on the CPU, which takes a fraction of `torch.manual_seed`'s time."""
    torch.default_generator.manual_seed(number)


def shown(value: Any) -> str:
    """A tensor, array or list for a message: its numbers if there are few, else its shape."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy() if value.is_floating_point() else value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.size > SHOWN_NUMBERS:
        return f"{array.dtype} of shape {array.shape}"
    return np.array2string(array, precision=4, separator=", ", threshold=SHOWN_NUMBERS, max_line_width=100)


def described(value: object) -> str:
    """A tensor's dtype and shape for a message; the type of anything else."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}".removeprefix("torch.")
    return type(value).__name__


def numbers(draw: DrawFn, size: int) -> NDArray[np.uint8]:
    """This many numbers from 0 to 255, in one draw, as hypothesis is slow per draw."""
    return np.frombuffer(draw(binary(min_size=size, max_size=size)), dtype=np.uint8)


def named(**values: Any) -> str:
    """Values under their names, below each other."""
    lines = []
    for name, value in values.items():
        first, *rest = shown(value).splitlines() or [""]
        lines += [f"{name} = {first}", *(f"{'':{len(name) + 3}}{line}" for line in rest)]
    return "\n".join(lines)


def check_close(seen: Tensor, expected: Tensor, what: str, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Raise `Broken` with the place where two tensors differ most."""
    if seen.shape != expected.shape:
        raise Broken(f"{what}: shape {tuple(seen.shape)}, expected {tuple(expected.shape)}")
    seen, expected = seen.detach().double(), expected.detach().double()
    wrong = ~torch.isclose(seen, expected, rtol=rtol, atol=atol, equal_nan=True)
    if wrong.any():
        gap = (seen - expected).abs().nan_to_num(nan=torch.inf).masked_fill(~wrong, -1)
        at = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), tuple(gap.shape)))
        place = f" at {list(at)}" if at else ""
        raise Broken(f"{what}{place}: {float(seen[at]):.6g}, expected {float(expected[at]):.6g}")


def identical(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors hold the same numbers, bit for bit; a NaN is equal to another."""
    return torch.equal(one.isnan(), two.isnan()) and torch.equal(one.nan_to_num(), two.nan_to_num())


def check_finite(values: Tensor, what: str) -> None:
    """Raise `Broken` with the first number that is not finite."""
    bad = (~torch.isfinite(values.detach())).nonzero()
    if len(bad):
        at = tuple(bad[0].tolist())
        raise Broken(f"{what} at {list(at)} is {float(values.detach()[at])}")


def check_gradients(module: nn.Module, value: Callable[[], Tensor]) -> None:
    """Raise `Broken` with the parameters that a value does not depend on.

    They are nudged first, as those that start at zero may hide others; a bias may have no effect, as that of
    attention's keys.
    """
    wanted = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in wanted.values():
            p.add_(torch.randn_like(p), alpha=NUDGE)
    value().backward()
    found = {name: p.grad for name, p in wanted.items() if p.grad is not None}
    tables = {f"{name}.weight": each for name, each in module.named_modules() if isinstance(each, RowTable)}
    found |= {name: of_rows[1] for name, table in tables.items() if (of_rows := table.gradient()) is not None}
    if unreached := [name for name in wanted if name not in found]:
        raise Broken(f"{len(unreached)} parameters have no gradient: {', '.join(unreached[:5])}")
    if still := [name for name, grad in found.items() if not name.endswith("bias") and not grad.any()]:
        raise Broken(f"{len(still)} parameters have a gradient of zeros: {', '.join(still[:5])}")
