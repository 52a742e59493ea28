"""The dual encoder: one projection for queries and labels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from xmclab.model.heads.dual_encoder import DualEncoder

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([3, 0, 2, 9, 1])


def built(**options: Any) -> DualEncoder:
    torch.manual_seed(0)
    head = DualEncoder(**{"dim": 6, **options})
    head.build(8, 10)
    return head.eval()


def test_dual_encoder_is_the_normalised_tanh_projection_on_both_sides() -> None:
    head = DualEncoder(dim=6)
    head.build(8, 10)
    head.eval()
    linear = head.g1[0]
    expected = torch.tanh(X @ linear.weight.T + linear.bias)
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(head.queries(X), expected)
    torch.testing.assert_close(head.labels(X, IDS), expected)


def test_dual_encoder_drops_units_in_training_only() -> None:
    head = DualEncoder(dim=64, dropout=0.5)
    head.build(8, 10)
    assert (head.train().queries(X) == 0).float().mean() > 0.3
    assert (head.eval().queries(X) == 0).sum() == 0


def test_dual_encoder_without_activation_from_the_identity_keeps_the_encoder_s_direction() -> None:
    head = DualEncoder(dim=8, activation="none", init="identity")
    head.build(8, 10)
    torch.testing.assert_close(head.eval().queries(X), torch.nn.functional.normalize(X))


def test_un_normalised_scores_are_inner_products_in_training_and_in_searches() -> None:
    head = built(normalise=False, init="xavier")
    weight, bias = (p.detach().double() for p in head.g1[0].parameters())
    vectors = [torch.tanh(weight @ x + bias).tolist() for x in X.double()]
    expected = [[math.fsum(a * b for a, b in zip(q, z, strict=True)) for z in vectors] for q in vectors]
    for queries, labels in ((head.queries, head.labels), (head.search_queries, head.search_labels)):
        torch.testing.assert_close(queries(X) @ labels(X, IDS).T, torch.tensor(expected))
    assert head.score_bound == float("inf")
    assert not head.searched_at_unit_length
    assert built(normalise=False, normalise_at_search=True).searched_at_unit_length


def test_a_layer_norm_may_follow_the_linear_map() -> None:
    head = built(activation="layer_norm", normalise=False)
    linear, norm = head.g1[0], head.g1[1]
    torch.nn.init.normal_(norm.weight)
    v_BD = (X @ linear.weight.T + linear.bias).double()
    centred_BD = v_BD - v_BD.mean(dim=1, keepdim=True)
    expected_BD = centred_BD / (centred_BD.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(head.queries(X).double(), expected_BD, rtol=1e-4, atol=1e-5)
    assert head.query_projection() is None


@pytest.mark.parametrize("normalise", [True, False])
def test_a_projection_in_training_alone_is_left_out_of_searches(normalise: bool) -> None:
    head = built(project_in="training", normalise=normalise, dropout=0.0)
    expected_BD = torch.nn.functional.normalize(X) if normalise else X
    torch.testing.assert_close(head.search_queries(X), expected_BD)
    torch.testing.assert_close(head.search_labels(X, IDS), expected_BD)
    always = built(normalise=normalise, dropout=0.0)
    always.load_state_dict(head.state_dict())
    assert torch.equal(head.train().queries(X), always.train().queries(X))
    linear, activation = head.query_projection() or (None, "")
    assert linear is not None
    assert torch.equal(linear(X), X)
    assert activation == "none"
