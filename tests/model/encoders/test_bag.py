"""The `bag` encoder: a sparse product with exact gradients that touches the features of its texts only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xmclab.model.encoders.bag import Bag
from xmclab.model.tables import RowOptimizer

TEXTS = ["red green blue", "red", "", "blue blue red green green red", "green sea"]


def make(**options: object) -> Bag:
    torch.manual_seed(0)
    encoder = Bag(dim=6, pairs=True, chars_from=3, **options)
    encoder.fit(TEXTS)
    return encoder.double()


def embed(encoder: Bag, texts: list[str]) -> torch.Tensor:
    return encoder(encoder.collate(encoder.tokenise(texts)))


def dense(encoder: Bag, texts: list[str]) -> torch.Tensor:
    """The same product with a dense matrix."""
    features = encoder.featuriser.to_csr(encoder.tokenise(texts)).toarray()
    return torch.from_numpy(features).double() @ encoder.embedding.weight


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_value_and_gradient_equal_the_dense_product(decay: float) -> None:
    encoder = make()
    encoder.embedding.decay(decay)
    target = torch.randn(len(TEXTS), 6, dtype=torch.float64)
    (embed(encoder, TEXTS) * target).sum().backward()
    found = torch.zeros_like(encoder.embedding.weight).index_copy_(0, *encoder.embedding.gradient())
    value = embed(encoder, TEXTS)
    encoder.zero_grad()
    encoder.embedding.settle()
    torch.testing.assert_close(value, dense(encoder, TEXTS))
    (dense(encoder, TEXTS) * target).sum().backward()
    torch.testing.assert_close(found, encoder.embedding.weight.grad)


def test_the_gradient_lists_the_features_of_the_texts_once_in_ascending_order() -> None:
    encoder = make()
    embed(encoder, TEXTS).sum().backward()
    assert encoder.embedding.gradient()[0].tolist() == sorted(set(encoder.tokenise(TEXTS).ids.tolist()))


def test_chunks_and_order_do_not_change_a_vector() -> None:
    encoder = make(hidden=4)
    torch.nn.init.normal_(encoder.residual[2].weight)
    one_by_one = torch.cat([embed(encoder, [text]) for text in TEXTS])
    torch.testing.assert_close(embed(encoder, TEXTS[::-1]).flip(0), one_by_one)


def test_an_empty_text_is_the_zero_vector() -> None:
    assert embed(make(), [""]).tolist() == [[0.0] * 6]
    assert embed(make(), ["", ""]).shape == (2, 6)


def test_an_update_moves_the_features_of_the_batch_only() -> None:
    encoder = make()
    before = encoder.embedding.weight.detach().clone()
    embed(encoder, ["red"]).sum().backward()
    RowOptimizer([encoder.embedding]).step()
    moved = (encoder.embedding.weight.detach() != before).any(dim=1).nonzero().flatten().tolist()
    assert moved == sorted(encoder.tokenise(["red"]).ids.tolist())


def test_feature_dropout_leaves_features_out_in_training_only() -> None:
    encoder = make(feature_dropout=0.5)
    torch.manual_seed(1)
    assert not torch.allclose(embed(encoder.train(), TEXTS), dense(encoder, TEXTS))
    torch.testing.assert_close(embed(encoder.eval(), TEXTS), dense(encoder, TEXTS))


def test_the_residual_layer_starts_as_nothing_and_learns() -> None:
    encoder = make(hidden=4)
    torch.testing.assert_close(embed(encoder, TEXTS), dense(encoder, TEXTS))
    embed(encoder, TEXTS).square().sum().backward()
    assert encoder.residual[2].weight.grad.abs().max() > 0


@pytest.mark.parametrize("buckets", [0, 64])
def test_assets_bring_back_the_same_encoder(tmp_path: Path, buckets: int) -> None:
    encoder = make(buckets=buckets)
    encoder.save_assets(tmp_path)
    again = Bag(dim=6)
    again.load_assets(tmp_path)
    again.double().load_state_dict(encoder.state_dict())
    torch.testing.assert_close(embed(again, ["red sea", "unknown"]), embed(encoder, ["red sea", "unknown"]))
