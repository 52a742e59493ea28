"""Losses that break a law each: a part is named after the law, with what is wrong behind two underscores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from xmclab import hookimpl, option, part
from xmclab.api import BinaryLoss, Loss, MultiClassLoss, Pairs


@dataclass
class Softmax(MultiClassLoss):
    """What the others spoil."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - s_QP


class NoDataclass(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP


@dataclass
class Abstract(MultiClassLoss):
    pass


@dataclass
class DefaultOutOfBounds(Softmax):
    margin: float = option(-1.0, "margin by which a positive must lead", ge=0)


@dataclass
class RefusesItsDefaults(Softmax):
    def __post_init__(self) -> None:
        raise ValueError("margin and slack exclude each other")


@dataclass
class NeitherFamily(Loss):
    kind = "multiclass"
    closed_form = "none"

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - s_QP


@dataclass
class Mean(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP, y_QP)[y_QP > 0].mean()


@dataclass
class PerAnchor(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP, y_QP).sum(dim=1, keepdim=True)


@dataclass
class SinglePrecision(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP.float(), y_QP)


@dataclass
class Raises(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP / self.temperature, y_QP)


@dataclass
class Noise(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP, y_QP) + 0.1 * torch.rand_like(s_QP)


@dataclass
class RunningMean(Softmax):
    def __post_init__(self) -> None:
        self.seen = 0.0

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        self.seen = 0.9 * self.seen + 0.1 * float(s_QP.mean())
        return super().terms(s_QP, y_QP) + self.seen


@dataclass
class WritesScores(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP.sub_(1), y_QP)


@dataclass
class WritesTargets(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        l_QP = super().terms(s_QP, y_QP)
        y_QP.mul_(0.9)
        return l_QP


@dataclass
class DetachedNegatives(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True).detach() - s_QP


@dataclass
class MeanOfNoNegatives(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        rivals_QP = (y_QP == 0) & ~s_QP.isneginf()
        mean_Q1 = s_QP.masked_fill(~rivals_QP, 0).sum(dim=1, keepdim=True) / rivals_QP.sum(dim=1, keepdim=True)
        return softplus(mean_Q1 - s_QP)


@dataclass
class Exponentials(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.exp().sum(dim=1, keepdim=True).log() - s_QP


@dataclass
class SumAsProduct(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        top_Q1 = s_QP.amax(dim=1, keepdim=True).detach()
        sum_Q1 = (s_QP - top_Q1).exp() @ s_QP.new_ones(s_QP.shape[1], 1)
        return top_Q1 + sum_Q1.to(s_QP.dtype).log() - s_QP


@dataclass
class FirstFive(MultiClassLoss):
    """Sees the first five candidates as rivals, and not the hardest five."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        rivals_QK = s_QP.masked_fill(y_QP > 0, -torch.inf)[:, :5]
        return softplus(rivals_QK.logsumexp(dim=1, keepdim=True) - s_QP)


@dataclass
class FirstPositive(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        first_QP = torch.zeros_like(y_QP).scatter(1, (y_QP > 0).long().argmax(dim=1, keepdim=True), 1)
        return super().terms(s_QP, y_QP) * first_QP


@dataclass
class DividesByBatch(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP, y_QP) / len(s_QP)


@dataclass
class CompetingCells(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP.logsumexp(dim=1, keepdim=True) - y_QP * s_QP


@dataclass
class NeedsContiguous(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP.view(-1).view(s_QP.shape), y_QP)


@dataclass
class CountsAbsent(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        negatives_Q1 = (y_QP == 0).sum(dim=1, keepdim=True).clamp(min=1)
        return softplus(s_QP.masked_fill(y_QP > 0, -torch.inf).logsumexp(dim=1, keepdim=True) - s_QP) / negatives_Q1


@dataclass
class WrongSlope(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return softplus(s_QP.masked_fill(y_QP > 0, -torch.inf).logsumexp(dim=1, keepdim=True) - s_QP)

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        behind_E = negatives_Q[pairs.row_E] - s_E
        pull_E = pairs.weight_E * behind_E.sigmoid()
        pull_Q = torch.zeros_like(negatives_Q).index_add_(0, pairs.row_E, behind_E.sigmoid())
        return (pairs.weight_E * softplus(behind_E)).sum(), -pull_E, pull_Q


@dataclass
class ForgetsHalf(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return softplus(s_QP) - y_QP * s_QP

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(s_QP).sum(), s_QP.sigmoid() / 2


@dataclass
class NotSoftplus(BinaryLoss):
    softplus_negatives = True

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return 2 * softplus(s_QP) - y_QP * s_QP


@dataclass
class UnweightedPairs(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return softplus(s_QP) - y_QP * s_QP

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(s_QP).sum(), s_QP.sigmoid()

    def of_pairs(self, s_E: Tensor, y_E: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        return (weight_E * self.terms(s_E, y_E)).sum(), s_E.sigmoid() - y_E


@dataclass
class HeavyPositives(BinaryLoss):
    weight_of_positives: float = option(10.0, "weight of a positive", gt=0)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return (1 - y_QP) * softplus(s_QP) + self.weight_of_positives * y_QP * softplus(-s_QP)


@dataclass
class NotTheEntropy(HeavyPositives):
    weight_of_positives: float = option(2.0, "weight of a positive", gt=0)

    terms = HeavyPositives.terms

    softplus_negatives = True


@dataclass
class EveryTriplet(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        behind_QPN = softplus(s_QP.unsqueeze(1) - s_QP.unsqueeze(2))
        return behind_QPN.masked_fill((y_QP > 0).unsqueeze(1), 0).sum(dim=2)


@dataclass
class DividesAgain(Softmax):
    temperature: float = option(1.0, "divides the scores", gt=0)

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return super().terms(s_QP / self.temperature, y_QP)


@dataclass
class OwnWeight(Softmax):
    weight: float = option(1.0, "of the hard negatives", ge=0)


@dataclass
class WrongSign(Softmax):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return -super().terms(s_QP, y_QP)


@dataclass
class NoSlope(MultiClassLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        hardest_Q1 = s_QP.masked_fill(y_QP > 0, -torch.inf).amax(dim=1, keepdim=True)
        return (hardest_Q1 - s_QP).sign().clamp(min=0)


@hookimpl
def xmclab_parts() -> list[object]:
    classes = {
        "part__no_dataclass": NoDataclass,
        "part__abstract": Abstract,
        "options__default": DefaultOutOfBounds,
        "options__refused": RefusesItsDefaults,
        "family__neither": NeitherFamily,
        "shape__mean": Mean,
        "shape__anchor": PerAnchor,
        "shape__type": SinglePrecision,
        "shape__raises": Raises,
        "repeatable__noise": Noise,
        "repeatable__state": RunningMean,
        "unchanged__scores": WritesScores,
        "unchanged__targets": WritesTargets,
        "gradient__detached": DetachedNegatives,
        "edge_rows__mean_of_none": MeanOfNoNegatives,
        "extreme__exponentials": Exponentials,
        "precision__product": SumAsProduct,
        "order__first_positive": FirstPositive,
        "order__first_five": FirstFive,
        "alone__batch": DividesByBatch,
        "alone__cells": CompetingCells,
        "transposed__view": NeedsContiguous,
        "absent__counted": CountsAbsent,
        "closed_form__slope": WrongSlope,
        "closed_form__negatives": ForgetsHalf,
        "closed_form__not_softplus": NotSoftplus,
        "closed_form__pairs": UnweightedPairs,
        "prior__heavy_positives": HeavyPositives,
        "prior__not_the_entropy": NotTheEntropy,
        "memory__triplets": EveryTriplet,
        "temperature__twice": DividesAgain,
        "expression__weight": OwnWeight,
        "expression-dash": Softmax,
        "learns__sign": WrongSign,
        "learns__no_slope": NoSlope,
    }
    return [part("loss", name, cls) for name, cls in classes.items()]
