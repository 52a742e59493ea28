"""The laws of a loss."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from xmclab.api import BinaryLoss, Loss, MultiClassLoss, Pairs
from xmclab.errors import ConfigError
from xmclab.host import build_objective, options_of
from xmclab.objectives import Objective, Psl, Term, TermSpec, parse_expression
from xmclab.objectives.softmax import sum_of_negatives
from xmclab_kit.core import Broken, Subject, check_close, check_finite, identical, named, seed
from xmclab_kit.loss_batches import (
    Absent,
    Moved,
    Scored,
    absent_negative,
    counted,
    huge,
    in_type,
    moved,
    rare,
    scored,
    values,
    values_and_gradient,
    values_and_gradient_of_row,
    weights_of,
)
from xmclab_kit.memory import PeakMemory
from xmclab_kit.structure import OPTIONS, structural_laws

SHAPE, REPEATABLE, EDGE_ROWS = "shape", "repeatable", "edge_rows"
SOUND = (SHAPE, REPEATABLE)  # needed to compare two calls
NUDGE = 1e-5  # of a score, for finite differences
LOW = (torch.bfloat16, torch.float16)
NEAR = 1e-3  # tolerance of low precision against float64
SIDES = (64, 128)  # of the matrices whose memory use is measured
GROWTH = 5.0  # most growth of memory when the matrix grows 4 times
STEPS, RATE = 30, 0.02

LAWS = structural_laws()


@LAWS.law(
    says="it is a MultiClassLoss or a BinaryLoss",
    fix="subclass MultiClassLoss if positives compete with other candidates, BinaryLoss if every cell stands alone",
    needs=[OPTIONS],
)
def family(subject: Subject) -> None:
    if not issubclass(subject.cls, MultiClassLoss | BinaryLoss):
        raise Broken(f"{subject.cls.__name__} is a Loss, but neither of the two")


@LAWS.law(
    says="terms() returns a value for every pair, in the shape, type and device of the scores",
    fix="return one value per cell of s_QP: do not sum or average (the reduction does), nor change the dtype",
    examples=scored(mixed=False),
    needs=["family"],
)
def shape(subject: Subject, batch: Scored) -> None:
    for dtype in (torch.float64, torch.float32):
        scores = in_type(batch, dtype)
        l_QP = subject.part.terms(scores.s_QP.clone(), scores.y_QP.clone())
        if not isinstance(l_QP, Tensor):
            raise Broken(f"terms() returned {type(l_QP).__name__}, not a tensor")
        if l_QP.shape != batch.s_QP.shape:
            raise Broken(f"terms() returned shape {tuple(l_QP.shape)} for scores of shape {tuple(batch.s_QP.shape)}")
        if l_QP.dtype != dtype:
            raise Broken(f"terms() returned {l_QP.dtype} for scores of {dtype}")
        if l_QP.device != batch.s_QP.device:
            raise Broken(f"terms() returned a tensor on {l_QP.device} for scores on {batch.s_QP.device}")


@LAWS.law(
    says="the same scores and targets give the same values, bit for bit",
    fix="keep no state between calls and draw no random numbers in terms(): a draw belongs in a reduction",
    examples=scored(),
    needs=[SHAPE],
)
def repeatable(subject: Subject, batch: Scored) -> None:
    first = values(subject.part, batch)
    seed(1)
    values(subject.part, Scored(batch.s_QP - 1, batch.y_QP))
    again = values(subject.part, batch)
    if not identical(first, again):
        raise Broken(named(first=first, again=again))


@LAWS.law(
    says="scores and targets are not modified",
    fix="use operations without a trailing underscore, or clone() first: the other terms of the objective share s_QP",
    examples=scored(),
    needs=[SHAPE],
)
def unchanged(subject: Subject, batch: Scored) -> None:
    after = Scored(batch.s_QP.clone(), batch.y_QP.clone())
    subject.part.terms(after.s_QP, after.y_QP)
    for name in ("s_QP", "y_QP"):
        if not torch.equal(getattr(after, name), getattr(batch, name)):
            raise Broken(f"terms() wrote into {name}: " + named(**{f"{name} afterwards": getattr(after, name)}))


@LAWS.law(
    says="the gradient matches finite differences of the values in float64",
    fix="look for detach(), no_grad(), .data, rounding, or an autograd.Function with a wrong backward",
    examples=scored(),
    needs=SOUND,
)
def gradient(subject: Subject, batch: Scored) -> None:
    _, seen_QP = values_and_gradient(subject.part, batch)
    expected_QP = torch.empty_like(seen_QP)
    weight_QP = weights_of(batch.y_QP)
    for cell in range(batch.s_QP.numel()):
        ends = []
        for nudge in (NUDGE, -NUDGE):
            s_QP = batch.s_QP.clone()
            s_QP.view(-1)[cell] += nudge
            ends.append((weight_QP * values(subject.part, replace(batch, s_QP=s_QP))).sum().detach())
        expected_QP.view(-1)[cell] = (ends[0] - ends[1]) / (2 * NUDGE)
    check_close(seen_QP, expected_QP, "gradient of the weighted sum of the values", rtol=1e-4, atol=1e-6)


@LAWS.law(
    says="rows with no, one or only positives, and a single candidate, give finite values and gradients",
    fix="check rows without negatives (a log-sum-exp of -inf, a mean over none): clamp counts, mask before log",
    examples=scored(mixed=False),
    needs=SOUND,
)
def edge_rows(subject: Subject, batch: Scored) -> None:
    _check_finite(subject.part, batch)


def _check_finite(loss: Loss, batch: Scored) -> None:
    l_QP, gradient_QP = values_and_gradient(loss, batch)
    check_finite(l_QP, "the value")
    check_finite(gradient_QP, "the gradient")


@LAWS.law(
    says="scores of ±1e4 in float32 give finite values and gradients",
    fix="use logsumexp, logsigmoid and softplus instead of exp and log; mask with -inf, not with a large number",
    examples=huge(),
    needs=SOUND,
)
def extreme(subject: Subject, batch: Scored) -> None:
    _check_finite(subject.part, in_type(batch, torch.float32))


@LAWS.law(
    says="in float32, and under autocast to bfloat16 and float16, values and gradients are close to those in float64",
    fix="sum and log in the type of s_QP; a matrix product takes autocast's type, so use sum() or turn autocast off",
    examples=scored(),
    needs=SOUND,
)
def precision(subject: Subject, batch: Scored) -> None:
    single = in_type(Scored(2.5 * batch.s_QP, batch.y_QP), torch.float32)
    expected = values_and_gradient(subject.part, in_type(single, torch.float64))
    for low in (None, *LOW):
        what = "float32" if low is None else f"autocast to {low}".replace("torch.", "")
        # Without oneDNN, whose products in bfloat16 not every CPU can do.
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", low, enabled=low is not None):
            seen = values_and_gradient(subject.part, single)
        for name, x, y in zip(("value", "gradient"), seen, expected, strict=True):
            check_close(x, y, f"{name} in {what}, for scores x 2.5", rtol=NEAR, atol=NEAR)


@LAWS.law(
    says="the order of anchors and of candidates does not matter",
    fix="refer to pairs by y_QP, never by their place in the matrix",
    examples=moved(),
    needs=SOUND,
)
def order(subject: Subject, example: Moved) -> None:
    l_QP = values(subject.part, example.batch)[example.rows][:, example.columns]
    check_close(values(subject.part, example.batch.take(example.rows, example.columns)), l_QP, "value after reordering")


@LAWS.law(
    says="the value of a pair depends only on its own row (binary loss: only on its own cell)",
    fix="reduce over dim=1 only, with keepdim=True; a binary loss does not reduce",
    examples=scored(),
    needs=SOUND,
)
def alone(subject: Subject, batch: Scored) -> None:
    l_QP = values(subject.part, batch)
    if subject.part.kind == "binary":
        cells = Scored(batch.s_QP.reshape(-1, 1), batch.y_QP.reshape(-1, 1))
        check_close(values(subject.part, cells).view_as(l_QP), l_QP, "value of a cell by itself")
        return
    for row in range(len(l_QP)):
        by_itself_1P = values(subject.part, batch.take([row], slice(None)))
        check_close(by_itself_1P[0], l_QP[row], f"value of row {row} by itself")


@LAWS.law(
    says="labels as anchors: transposed scores, which are not contiguous, give the same values as a copy",
    fix="use reshape() instead of view(), and do not rely on strides: label to query is the same loss on s_QP.T",
    examples=scored(mixed=False),
    needs=[*SOUND, EDGE_ROWS],
)
def transposed(subject: Subject, batch: Scored) -> None:
    expected = values(subject.part, batch.transposed)
    y_PQ = batch.transposed.y_QP
    l_PQ = subject.part.terms(batch.s_QP.clone().T, y_PQ).masked_fill(~counted(subject.part, y_PQ), 0)
    check_close(l_PQ, expected, "value of the transposed scores")


@LAWS.law(
    says="a candidate with score -inf counts as removed (multi-class only: a binary loss gets none)",
    fix="exclude s_QP.isneginf() from counts and means; do not multiply scores by a mask (0 * -inf is NaN); fill "
    "-inf with 0 before square, log or exp: cells that are not read need finite gradients too",
    examples=absent_negative(),
    needs=[*SOUND, EDGE_ROWS, "order"],
)
def absent(subject: Subject, example: Absent) -> None:
    if subject.part.kind == "binary":
        return
    batch, row = example.batch, example.row
    there = torch.arange(batch.s_QP.shape[1]) != example.column
    removed, removed_gradient = values_and_gradient_of_row(subject.part, batch.take([row], there))
    hidden = batch.s_QP[row : row + 1].masked_fill(~there, -math.inf)
    seen, seen_gradient = values_and_gradient_of_row(subject.part, Scored(hidden, batch.y_QP[row : row + 1]))
    for what, found, expected in (("value", seen, removed), ("gradient", seen_gradient, removed_gradient)):
        whole = torch.zeros_like(found)
        whole[:, there] = expected
        check_close(found.masked_fill(~there, 0), whole, f"{what} of row {row}")


@LAWS.law(
    says="value_and_grad or of_negatives (and of_pairs), if given, agree with terms() and its gradient",
    fix="derive them again from terms(); delete them if in doubt: autograd through terms() is correct, only slower",
    examples=scored(mixed=False),
    needs=[*SOUND, "gradient", EDGE_ROWS],
)
def closed_form(subject: Subject, batch: Scored) -> None:
    loss = subject.part
    if loss.has_closed_form:
        (_check_negatives if isinstance(loss, BinaryLoss) else _check_pairs)(loss, batch)


def _check_pairs(loss: MultiClassLoss, batch: Scored) -> None:
    weight_QP = weights_of(batch.y_QP)
    s_QP = batch.s_QP.clone().requires_grad_()
    value = (weight_QP * values(loss, replace(batch, s_QP=s_QP))).sum()
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    row_E, column_E = at = (batch.y_QP > 0).nonzero(as_tuple=True)
    negatives_Q = batch.s_QP.masked_fill(batch.y_QP > 0, -math.inf).logsumexp(dim=1)
    pairs = Pairs(row_E, column_E, batch.y_QP[at], weight_QP[at])
    found, slope_E, slope_Q = loss.value_and_grad(batch.s_QP[at], negatives_Q.clone(), pairs)
    check_close(found, value.detach(), "the sum over the pairs", rtol=1e-6)
    check_close(slope_E, gradient_QP[at], "the gradient with respect to s_E", rtol=1e-6)
    check_finite(slope_Q, "the gradient with respect to negatives_Q")
    softmax_QP = (batch.s_QP - negatives_Q.unsqueeze(1)).exp().masked_fill(batch.y_QP > 0, 0)
    expected_Q = gradient_QP.masked_fill(batch.y_QP > 0, 0).sum(dim=1)
    has_negatives_Q = (batch.y_QP == 0).any(dim=1)
    check_close(slope_Q[has_negatives_Q], expected_Q[has_negatives_Q], "the gradient with respect to negatives_Q", 1e-6)
    spread_QP = slope_Q.unsqueeze(1) * softmax_QP
    check_close(spread_QP, gradient_QP.masked_fill(batch.y_QP > 0, 0), "the gradient at the negatives", rtol=1e-6)


def _check_negatives(loss: BinaryLoss, batch: Scored) -> None:
    expected, expected_QP = values_and_gradient_of_row(loss, Scored(batch.s_QP, torch.zeros_like(batch.y_QP)))
    # Prepend a column of absent candidates, which add nothing.
    s_QP = torch.cat([batch.s_QP.new_full((len(batch.s_QP), 1), -math.inf), batch.s_QP], dim=1)
    value, slope_QP = sum_of_negatives(loss, s_QP)
    check_close(value, expected.sum(), "the value of of_negatives()", rtol=1e-6)
    check_close(slope_QP[:, 1:], expected_QP, "the gradient of of_negatives()", rtol=1e-6)
    check_close(slope_QP[:, 0], torch.zeros_like(slope_QP[:, 0]), "of_negatives(): gradient of absent candidates")
    if loss.defines("of_pairs"):
        at = batch.y_QP > 0
        y_E, weight_E, s_E = batch.y_QP[at], weights_of(batch.y_QP)[at], batch.s_QP[at].requires_grad_()
        expected = (weight_E * loss.terms(s_E, y_E)).sum()
        (expected_E,) = torch.autograd.grad(expected, s_E)
        value, slope_E = loss.of_pairs(s_E.detach().clone(), y_E, weight_E)
        check_close(value, expected, "the value of of_pairs()", rtol=1e-6)
        check_close(slope_E, expected_E, "the gradient of of_pairs()", rtol=1e-6)


@LAWS.law(
    says="a binary loss is lower at the log-odds of rare labels' frequencies than at score 0 (with "
    "softplus_negatives: it is their entropy)",
    fix="weigh positives like negatives and add no margin; where that is the point of the loss, declare laws_not_kept",
    examples=rare(),
    needs=[*SOUND, "alone", "closed_form"],
)
def prior(subject: Subject, batch: Scored) -> None:
    loss = subject.part
    if loss.kind != "binary":
        return
    informed, even = (values(loss, replace(batch, s_QP=s)).mean() for s in (batch.s_QP, torch.zeros_like(batch.s_QP)))
    if not informed < even:
        raise Broken(f"the mean is {float(informed):.6g} at the log-odds and {float(even):.6g} at score 0")
    if loss.has_softplus_negatives:
        entropy = torch.distributions.Bernoulli(logits=batch.s_QP).entropy().mean()
        check_close(informed, entropy, "the mean at the log-odds", rtol=1e-6)


@LAWS.law(
    says="memory grows with the score matrix: 4 times for twice the anchors and twice the candidates, not 8",
    fix="avoid three-dimensional tensors: write sums over negatives as logsumexp, amax or sum over dim=1 of s_QP",
    needs=SOUND,
)
def memory(subject: Subject) -> None:
    peaks = []
    for side in SIDES:
        batch = Scored(torch.randn(side, side), (torch.rand(side, side) < 0.5).float())
        with PeakMemory() as measured:
            values_and_gradient(subject.part, batch)
        peaks.append(measured.peak)
    growth = peaks[1] / max(peaks[0], 1)
    if growth > GROWTH:
        low, high = (f"{peak / 2**20:.1f} MiB at {side} x {side}" for side, peak in zip(SIDES, peaks, strict=True))
        raise Broken(f"the peak grew {growth:.1f} times: {low}, {high} (half of the pairs positive)")


@LAWS.law(
    says="terms() ignores the temperature: the scores are already divided by it",
    fix="do not use self.temperature in terms(): the objective divides the scores by it",
    examples=scored(),
    needs=SOUND,
)
def temperature(subject: Subject, batch: Scored) -> None:
    cold, warm = (values(subject.make(temperature=value), batch) for value in (0.5, 2.0))
    check_close(warm, cold, "value at temperature 2, compared with 0.5 on the same scores")


@LAWS.law(
    says="it can be used in an expression with a weight, which multiplies it",
    fix="name it with letters, digits and underscores, and do not call an option 'weight': the term already has one",
    examples=scored(mixed=False),
    needs=[*SOUND, EDGE_ROWS, "transposed"],
)
def expression(subject: Subject, batch: Scored) -> None:
    try:
        (term,) = parse_expression(f"0.25*{subject.name}")
    except ConfigError as error:
        raise Broken(f"'0.25*{subject.name}' cannot be read: {error}") from error
    if "weight" in options_of(subject.cls):
        raise Broken(f"'{subject.name}.weight' would be both an option and the weight of the term")
    alone, weighted = (_objective(subject, replace(term, weight=weight)) for weight in (1.0, 0.25))
    whole, quarter = (value_of(objective, batch.s_QP, batch.y_QP) for objective in (alone, weighted))
    check_close(quarter, 0.25 * whole, "0.25 times the loss")


def value_of(objective: Objective, s_QP: Tensor, y_QP: Tensor) -> Tensor:
    """An objective in which every other positive of a label is missing, for losses that use propensities."""
    return objective(s_QP, y_QP, inverse_propensity_P=s_QP.new_full(s_QP.shape[1:], 2.0))


def _objective(subject: Subject, term: TermSpec) -> Objective:
    parts: dict[tuple[str, str], type] = {("loss", term.name): subject.cls, ("reduction", "psl"): Psl}
    spec = replace(term, options=dict(subject.options))
    return build_objective([spec], "psl", 0.5, 0.5, lambda kind, name: parts[kind, name])


@LAWS.law(
    says="30 training steps stay finite, lower the loss, and let positives gain on negatives",
    fix="check the sign (a loss falls as a positive's score rises) and that the gradient does not vanish",
    needs=[*SOUND, "gradient", EDGE_ROWS, "transposed", "closed_form"],
)
def learns(subject: Subject) -> None:
    y_QP = (torch.rand(12, 16) < 0.2).float()
    y_QP[torch.arange(12), torch.arange(12)] = 1
    vectors = [torch.randn(size, 8).requires_grad_() for size in y_QP.shape]
    objective = Objective([Term(subject.name, 1.0, subject.part, Psl())], temperature=0.1, q2l_share=0.5)
    history, leads = [], []
    for step in range(STEPS + 1):
        q_QD, z_PD = (torch.nn.functional.normalize(x, dim=1) for x in vectors)
        s_QP = q_QD @ z_PD.T
        value = value_of(objective, s_QP, y_QP)
        if not torch.isfinite(value):
            raise Broken(f"the value is {float(value)} at step {step}")
        history.append(float(value))
        leads.append(float(s_QP[y_QP > 0].mean() - s_QP[y_QP == 0].mean()))
        for x, slope in zip(vectors, torch.autograd.grad(value, vectors), strict=True):
            x.data -= RATE * slope / slope.square().mean().sqrt().clamp(min=torch.finfo(slope.dtype).tiny)
    if not history[-1] < history[0]:
        raise Broken(f"the value was {history[0]:.6g} at first and is {history[-1]:.6g} after {STEPS} steps")
    if not leads[-1] > leads[0]:
        raise Broken(
            f"positives led negatives by {leads[0]:.4f} on average, and by {leads[-1]:.4f} after {STEPS} steps"
        )
