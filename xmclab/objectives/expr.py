"""Parses loss expressions such as `0.7*ds+0.3*bce` to terms. Uses Python's parser; nothing is evaluated.

expression  term + term + ...
term        [weight *] loss, or loss * weight; a loss may have its own reduction: reduction(loss, option=value)
loss        name, or name(option=value, ...); a name may have dots: `pml.SupConLoss`
value       a number, a string in quotes, True, False or None
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xmclab.errors import ConfigError, Problem

MAX_LENGTH = 1000
EXAMPLE = "an expression looks like 0.7*ds+0.3*bce"

Value = int | float | str | bool | None
Options = Mapping[str, Value]


@dataclass(frozen=True)
class TermSpec:
    """One term of an expression, by names: `0.3*ova(bce, cells='sum')`."""

    name: str
    weight: float = 1.0
    options: Options = field(default_factory=dict)
    reduction: str | None = None  # its own reduction; None: the default one
    reduction_options: Options = field(default_factory=dict)
    column: int = field(default=1, compare=False)  # where it starts in the expression, after its weight, from 1

    def __str__(self) -> str:
        text = _call(self.name, [], self.options)
        if self.reduction is not None:
            text = _call(self.reduction, [text], self.reduction_options)
        return text if self.weight == 1 else f"{self.weight!r}*{text}"


def format_expression(terms: Iterable[TermSpec]) -> str:
    """The expression that `parse_expression` parses to these terms."""
    return "+".join(map(str, terms))


def parse_expression(text: str, where: str = "") -> list[TermSpec]:
    """Parse a loss expression.

    Args:
        where: the key of the expression (`loss.clf`), for error messages.

    Raises:
        ConfigError: with every term that cannot be parsed, its column, the reason and a hint.
    """
    terms: list[TermSpec] = []
    problems: list[Problem] = []
    try:
        for node in _summands(_tree(text)):
            try:
                terms.append(_term(node, text))
            except _Refusal as refusal:
                problems.append(refusal.problem(text, where))
        _refuse_duplicates(terms)
    except _Refusal as refusal:
        problems.append(refusal.problem(text, where))
    if problems:
        raise ConfigError(*problems)
    return terms


class _Refusal(Exception):
    """Why the expression cannot be parsed, and at which column (from 1)."""

    def __init__(self, column: int, reason: str, hint: str = EXAMPLE) -> None:
        super().__init__(reason)
        self.column, self.reason, self.hint = column, reason, hint

    def problem(self, text: str, where: str) -> Problem:
        shown = text if len(text) <= 80 else text[:77] + "..."
        return Problem(where, f"column {self.column} of {shown!r}: {self.reason}", self.hint)


def _tree(text: str) -> ast.expr:
    """The syntax tree of the text, which is short, printable and without comments."""
    if len(text) > MAX_LENGTH:
        raise _Refusal(MAX_LENGTH + 1, f"longer than {MAX_LENGTH} characters")
    if not text.strip():
        raise _Refusal(1, "the expression is empty")
    for column, character in enumerate(text, start=1):
        if not character.isprintable() or character == "#":
            raise _Refusal(column, f"unexpected character {character!r}")
    if text.rstrip()[-1] in "+*":
        raise _Refusal(len(text.rstrip()) + 1, f"missing term after {text.rstrip()[-1]!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body  # leading spaces would be an indentation error
    except SyntaxError as error:
        column = min(_indent(text) + max(error.offset or 1, 1), len(text) + 1)
        raise _Refusal(column, f"cannot be parsed: {error.msg.partition('. ')[0]}") from None
    except (ValueError, RecursionError, MemoryError):
        raise _Refusal(1, "nested too deeply or malformed") from None


def _summands(node: ast.expr) -> list[ast.expr]:
    """The operands of a chain of `+`, left to right."""
    summands, stack = [], [node]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            stack += [node.right, node.left]
        else:
            summands.append(node)
    return summands


def _term(node: ast.expr, text: str) -> TermSpec:
    """`ds`, `0.3*ds`, `ds*0.3`, `ds(temperature=0.05)`, `psl(ds)`."""
    weight, node = _weight(node, text)
    column = _column(node, text)
    reduction, reduction_options = None, {}
    if isinstance(node, ast.Call) and node.args:
        reduction, reduction_options = _name(node.func, text), _options(node, text)
        wrapped, *more = node.args
        if more or not isinstance(wrapped, ast.Name | ast.Attribute | ast.Call) or _has_arguments(wrapped):
            hint = "options have names: ds(temperature=0.05); a reduction takes one loss, weight in front: 0.5*psl(ds)"
            raise _Refusal(column, f"{reduction!r} does not contain exactly one loss", hint)
        node = wrapped
    options = _options(node, text) if isinstance(node, ast.Call) else {}
    name = _name(node.func if isinstance(node, ast.Call) else node, text)
    return TermSpec(name, weight, options, reduction, reduction_options, column)


def _has_arguments(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and bool(node.args)


def _weight(node: ast.expr, text: str) -> tuple[float, ast.expr]:
    """The weight of a term and what it multiplies."""
    column = _column(node, text)
    if _number(node) is not None:
        raise _Refusal(column, "a number without a loss", "a weight multiplies a loss: 0.3*bce")
    if isinstance(node, ast.UnaryOp):
        raise _Refusal(column, "a term cannot have a sign", "terms are added, with weights >= 0")
    if not isinstance(node, ast.BinOp):
        return 1.0, node
    if isinstance(node.op, ast.Sub):
        raise _Refusal(_column(node.right, text), "terms cannot be subtracted", "join them with '+'")
    if not isinstance(node.op, ast.Mult):
        raise _Refusal(column, "only '+' and '*' are allowed")
    sides = [(node.left, node.right), (node.right, node.left)]
    for factor, term in sides:
        weight = _number(factor)
        if weight is not None and _number(term) is None and not isinstance(term, ast.BinOp):
            if not 0 <= weight < math.inf:
                raise _Refusal(_column(factor, text), "a weight must be finite and at least 0")
            return float(weight), term
    raise _Refusal(column, "'*' takes one number and one loss", "put a weight in front of each term: 0.7*ds+0.3*bce")


def _name(node: ast.expr, text: str) -> str:
    """A name, dotted or not."""
    words: list[str] = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise _Refusal(_column(node, text), "not a loss name")
    return ".".join([node.id, *reversed(words)])


def _options(call: ast.Call, text: str) -> dict[str, Value]:
    """The keywords of a call, each a literal."""
    options: dict[str, Value] = {}
    for keyword in call.keywords:
        column = _column(keyword.value, text)
        if keyword.arg is None:
            raise _Refusal(column, "'**' is not allowed", "write the options out: ds(temperature=0.05)")
        if keyword.arg in options:
            raise _Refusal(column, f"{keyword.arg!r} is given twice", "give each option once")
        number = _number(keyword.value)
        if number is not None and math.isfinite(number):
            options[keyword.arg] = number
        elif isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str | bool | None):
            options[keyword.arg] = keyword.value.value
        else:
            hint = "give a number, a string in quotes, True, False or None"
            raise _Refusal(column, f"the value of {keyword.arg!r} is not a literal", hint)
    return options


def _number(node: ast.expr) -> int | float | None:
    """The number that the node stands for, signed or not."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = None if isinstance(node.operand, ast.UnaryOp) else _number(node.operand)
        return None if number is None else -number
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return None
    # An integer beyond the range of floats counts as infinite.
    return node.value if isinstance(node.value, float) or node.value.bit_length() < 1024 else math.inf


def _column(node: ast.expr, text: str) -> int:
    """Where the node starts in the text, from 1; the tree counts bytes of the stripped text."""
    return _indent(text) + len(text.strip().encode()[: node.col_offset].decode()) + 1


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _call(name: str, arguments: list[str], options: Options) -> str:
    inside = arguments + [f"{key}={value!r}" for key, value in options.items()]
    return f"{name}({', '.join(inside)})" if inside else name


def _refuse_duplicates(terms: list[TermSpec]) -> None:
    seen: set[str] = set()
    for term in terms:
        if term.name in seen:
            raise _Refusal(term.column, f"{term.name!r} appears twice", "use one term per loss and add up the weights")
        seen.add(term.name)
