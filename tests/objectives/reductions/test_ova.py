"""One versus all: every cell counts once."""

from __future__ import annotations

import torch

from xmclab.objectives.reductions.ova import Ova


def test_every_cell_weighs_one_and_the_mean_divides_by_their_number():
    w_QP = Ova().weights(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.3]]))
    assert w_QP.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert Ova().normaliser(w_QP) == 6


def test_cells_without_a_weight_are_not_counted():
    assert Ova().normaliser(torch.tensor([[1.0, 0.0], [1.0, 1.0]])) == 3
    assert Ova().normaliser(torch.zeros(2, 2)) == 1


def test_the_sum_divides_by_nothing():
    assert Ova(cells="sum").normaliser(torch.ones(2, 3)) == 1


def test_it_takes_binary_losses_on_all_labels_and_leaves_targets_alone():
    y_QP = torch.rand(2, 3)
    assert (Ova.accepts, Ova.needs) == ("binary", "all")
    assert torch.equal(Ova().targets(y_QP), y_QP)
