"""Pick some labels: the weights of `pal_n`, on the pool."""

from __future__ import annotations

import torch

from xmclab.objectives import Term, divisor
from xmclab.objectives.reductions.psl import Psl
from xmclab_losses.ds import DecoupledSoftmax


def test_positives_in_the_pool_share_a_total_of_one_by_their_targets():
    y_QP = torch.tensor([[2.0, 1.0, 1.0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.0]])
    w_QP = Psl().weights(y_QP)
    assert w_QP.tolist() == [[0.5, 0.25, 0.25], [0, 1, 0], [0, 0, 0]]
    assert divisor(Term("any", 1.0, DecoupledSoftmax(), Psl()), w_QP) == 2


def test_it_takes_multiclass_losses_on_the_pool():
    assert (Psl.accepts, Psl.needs) == ("multiclass", "pool")
