"""The dual encoder: one projection for queries and labels."""

from __future__ import annotations

import torch

from xmclab.model.heads.dual_encoder import DualEncoder

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([3, 0, 2, 9, 1])


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
