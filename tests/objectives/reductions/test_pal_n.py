"""Pick all labels, normalised: the weights of a query add up to one."""

from __future__ import annotations

import torch

from xmclab.objectives import Term, divisor
from xmclab.objectives.reductions.pal_n import PalN
from xmclab_losses.ds import DecoupledSoftmax


def test_positives_share_a_total_of_one_by_their_targets():
    y_QP = torch.tensor([[1.0, 0.0, 1.0], [0.75, 0.25, 0.0], [0.0, 0.0, 0.0]])
    w_QP = PalN().weights(y_QP)
    assert w_QP.tolist() == [[0.5, 0, 0.5], [0.75, 0.25, 0], [0, 0, 0]]
    assert divisor(Term("any", 1.0, DecoupledSoftmax(), PalN()), w_QP) == 2


def test_it_takes_multiclass_losses_on_all_labels():
    assert (PalN.accepts, PalN.needs) == ("multiclass", "all")
