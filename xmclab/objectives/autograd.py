"""Terms without a closed form: the loss of every pair as a matrix, differentiated by torch."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from xmclab.errors import PluginError, Problem
from xmclab.objectives.engine import divisor

if TYPE_CHECKING:
    from xmclab.objectives.objective import Direction
    from xmclab.objectives.truth import Truth


def value_by_autograd(direction: Direction, s_QP: Tensor, truth: Truth, label_weight_P: Tensor | None) -> Tensor:
    """The value of a direction, with a graph to the scores."""
    by_label, term = direction.anchors == "l2q", direction.term
    truth = truth.transposed if by_label else truth
    s_QP = (s_QP.T if by_label else s_QP) / direction.temperature
    y_QP = truth.matrix(s_QP.dtype)
    in_cells = term.binary and not term.over_cells  # the mean over all cells
    cell_E = truth.row_E * y_QP.shape[1] + truth.column_E
    w_QP = y_QP.new_ones(()).expand_as(y_QP) if in_cells else truth.weigh(term.reduction, y_QP, cell_E)
    if len(truth.ignored_row_I):
        w_QP = truth.hide_ignored(w_QP.clone(), 0.0)
    normaliser = (w_QP > 0).sum().clamp(min=1) if in_cells else divisor(term, w_QP)
    if label_weight_P is not None:
        w_QP = w_QP * label_weight_P.to(w_QP.dtype).unsqueeze(1 if by_label else 0)
    # The score of a cell without a weight is finite: that keeps NaN out of the gradient.
    s_QP = s_QP.masked_fill(w_QP == 0, 0) if term.binary else truth.hide_ignored(s_QP.clone(), -math.inf)
    t_QP = term.reduction.targets(y_QP) if term.changes_targets else y_QP
    if truth.inverse_propensity_E is not None and term.loss.targets == "inverse_propensity":
        at = truth.row_E, truth.column_E
        t_QP = t_QP.index_put(at, t_QP[at] * truth.inverse_propensity_E.to(t_QP.dtype))
    with _without_autocast(s_QP.device.type):
        l_QP = term.loss.terms(s_QP, t_QP)
    if l_QP.shape != s_QP.shape:
        raise PluginError(
            Problem(
                f"loss {term.name!r}",
                f"terms() returned shape {tuple(l_QP.shape)} for scores of shape {tuple(s_QP.shape)}",
                "return one value per pair; leave sums and averages to the reduction",
            )
        )
    # Pairs without a weight add exactly 0, even if their loss is inf (0 * inf is NaN).
    return (w_QP * l_QP.masked_fill(w_QP == 0, 0)).sum() / normaliser


def _without_autocast(device: str) -> contextlib.AbstractContextManager[object]:
    """Losses keep the precision of their scores; some convert no tensors within autocast."""
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else contextlib.nullcontext()
