"""Squared hinge: every label is a large-margin classifier.

Formula:  l(i,l) = max(0, 1 - s_il)^2 for a positive, max(0, 1 + s_il)^2 for a negative
Where:    s_QP scores / temperature; targets between 0 and 1 mix both
Use when: classifiers should stop at cells that are right by the margin, as linear one-versus-all machines do. Its slope
          grows with the error: keep `optim.clip` on.
Paper:    Babbar and Schoelkopf, "DiSMEC: Distributed Sparse Machines for Extreme Multi-label Classification",
          WSDM 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from xmclab.objectives.curves import Curve, CurveLoss, mirrored


@dataclass
class SquaredHinge(CurveLoss):
    laws_not_kept: ClassVar = {"prior": "its scores are margins, not log-odds"}

    def positive(self, s_QP: Tensor) -> Curve:
        return mirrored(self.negative(-s_QP))

    def negative(self, s_QP: Tensor) -> Curve:
        short_QP = (1 + s_QP).clamp(min=0)
        return short_QP.square(), 2 * short_QP
