"""Pick all labels: positives weigh their target."""

from __future__ import annotations

import torch

from xmclab.objectives import Term, divisor
from xmclab.objectives.reductions.pal import Pal
from xmclab_losses.ds import DecoupledSoftmax


def test_a_positive_weighs_its_target():
    y_QP = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.25, 0.0], [0.0, 0.0, 0.0]])
    w_QP = Pal().weights(y_QP)
    assert torch.equal(w_QP, y_QP)
    assert divisor(Term("any", 1.0, DecoupledSoftmax(), Pal()), w_QP) == 2


def test_it_takes_multiclass_losses_on_all_labels():
    assert (Pal.accepts, Pal.needs) == ("multiclass", "all")
