"""From the names of losses and reductions to an objective. Imports torch: use it through `xmclab.objective`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmclab.api import Loss, Reduction
from xmclab.errors import ConfigError, Problem
from xmclab.host.options import make_part
from xmclab.host.registry import default_registry
from xmclab.objectives.expr import TermSpec, parse_expression
from xmclab.objectives.objective import Objective, Term

GetPart = Callable[[str, str], type]  # (kind, name) to the class of a part


def objective(
    expression: str,
    reduction: str = "psl",
    temperature: float | None = None,
    *,
    symmetric: bool = False,
    q2l_share: float | None = None,
    plugin: str | Path | None = None,
) -> Objective:
    """An objective for any training loop, from the names of its parts.

    >>> import torch
    >>> scores, positives = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[True, False, False]])
    >>> round(float(objective("0.7*ds+0.3*bce", temperature=0.5)(scores, positives)), 4)
    0.3839

    Args:
        expression: `ds`, `0.7*ds+0.3*bce`, `supcon(temperature=0.05)+0.1*ova_n(bce)`.
        reduction: for terms that name none.
        temperature: divides the scores of terms that set none.
        symmetric: average query-to-label and label-to-query, instead of query-to-label only.
        q2l_share: weight of query-to-label, when it is neither 1 nor 0.5.
        plugin: a Python file with your own parts.
    """
    if symmetric and q2l_share is not None:
        raise ConfigError(Problem("q2l_share", "cannot be combined with symmetric=True", "that means q2l_share=0.5"))
    share = 0.5 if symmetric else 1.0 if q2l_share is None else q2l_share
    registry = default_registry().with_file(plugin) if plugin else default_registry()
    return build_objective(parse_expression(expression), reduction, temperature, share, registry.get)


def build_objective(
    terms: Sequence[TermSpec],
    reduction: str,
    temperature: float | None,
    q2l_share: float,
    get: GetPart,
    reduction_options: Mapping[str, Any] | None = None,
    where: str = "",
) -> Objective:
    """The objective of parsed terms.

    Args:
        reduction: for terms that name none, built with `reduction_options`.
        get: finds the class of a part by its kind and name.
        where: the key of the expression (`loss.clf`), for error messages.

    Raises:
        ConfigError: with all problems.
    """
    builder = _Builder(get, reduction, reduction_options or {}, where)
    built, problems = builder.build(terms), builder.problems
    if temperature is not None and not 0 < temperature < math.inf:
        problems.append(Problem("temperature", f"must be finite and above 0, not {temperature}"))
    if not 0 <= q2l_share <= 1:
        problems.append(Problem("q2l_share", f"must be between 0 and 1, not {q2l_share}"))
    if problems:
        raise ConfigError(*problems)
    return Objective(built, temperature, q2l_share)


def check_terms(
    terms: Sequence[TermSpec],
    reduction: str,
    get: GetPart,
    reduction_options: Mapping[str, Any] | None = None,
    where: str = "",
) -> list[Problem]:
    """Problems of the terms: unknown names and options, bad values, losses that their reduction does not take."""
    builder = _Builder(get, reduction, reduction_options or {}, where)
    builder.build(terms)
    return builder.problems


@dataclass
class _Builder:
    """Builds terms from names, collecting every problem."""

    get: GetPart
    reduction: str  # for terms that name none
    reduction_options: Mapping[str, Any]
    where: str  # the key of the expression
    problems: list[Problem] = field(default_factory=list)

    def build(self, specs: Sequence[TermSpec]) -> list[Term]:
        terms = [term for spec in specs if (term := self._term(spec)) is not None]
        self.problems = list(dict.fromkeys(self.problems))  # a bad default reduction is reported once per term
        return terms

    def _term(self, spec: TermSpec) -> Term | None:
        loss: Loss | None = self._part("loss", spec.name, spec.options, spec)
        reduction: Reduction | None
        if spec.reduction is None:
            reduction = self._part("reduction", self.reduction, self.reduction_options, None)
        else:
            reduction = self._part("reduction", spec.reduction, spec.reduction_options, spec)
        if not 0 <= spec.weight < math.inf:
            self._note(f"{self._key(spec.name)}.weight", f"must be finite and at least 0, not {spec.weight}")
        if loss is None or reduction is None:
            return None
        if loss.kind == "multiclass" and reduction.accepts == "binary":
            reason = (
                f"column {spec.column}: {(spec.reduction or self.reduction)!r} takes binary losses (each label on "
                f"its own), but {spec.name!r} is a multi-class loss (a positive against the other candidates)"
            )
            self._note(self.where, reason, "use a reduction such as psl, or a loss such as bce")
        return Term(spec.name, spec.weight, loss, reduction)

    def _part(self, kind: str, name: str, options: Mapping[str, Any], spec: TermSpec | None) -> Any:
        """A part named in a term or, without one, beside the expression; None if there is no such part."""
        try:
            cls = self.get(kind, name)
        except ConfigError as error:
            for problem in error.problems:
                message = f"column {spec.column}: {problem.message}" if spec else problem.message
                self._note(self.where if spec else kind, message, problem.hint)
            return None
        try:
            return make_part(cls, options, self._key(name) if spec else kind)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _key(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _note(self, where: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(where, message, hint))
