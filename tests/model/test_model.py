"""Vectors as searched: of every head, by rows of the right texts, side by side in one tensor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from xmclab.data import open_dataset
from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.model import Model, with_constant
from xmclab.training.trainer import Trainer

SMALL = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=8", "head.clf.rows=xavier"]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    registry = default_registry()
    return Trainer(resolve(SMALL, registry), open_dataset("tiny", "title", registry))


def test_heads_lie_side_by_side_without_a_copy(trainer: Trainer) -> None:
    for vectors in (
        trainer.model.query_vectors(trainer.query_tokens, 100),
        trainer.model.label_vectors(trainer.label_tokens, 100),
    ):
        assert list(vectors) == ["de", "clf"]
        torch.testing.assert_close(vectors.together, torch.cat([vectors["de"], vectors["clf"]], dim=1), rtol=0, atol=0)
        assert vectors.together.untyped_storage().data_ptr() == vectors["clf"].untyped_storage().data_ptr()
        assert vectors.together.untyped_storage().nbytes() == 4 * len(vectors["de"]) * (16 + 8)


def test_queries_get_a_1_where_labels_have_a_bias() -> None:
    q_ND = torch.rand(3, 4)
    assert with_constant(q_ND, torch.rand(5, 4)) is q_ND
    assert torch.equal(with_constant(q_ND, torch.rand(5, 5)), torch.cat([q_ND, torch.ones(3, 1)], dim=1))


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_vectors_are_those_of_their_texts_whatever_the_chunks(trainer: Trainer, chunk: int) -> None:
    model: Model = trainer.model
    with torch.inference_mode():
        x_LD = model.encoder.eval()(model.encoder.collate(trainer.label_tokens), "label")
        expected = F.normalize(model.head("de").eval().labels(x_LD, torch.arange(len(x_LD))), dim=1)
    vectors = model.label_vectors(trainer.label_tokens, chunk)
    torch.testing.assert_close(vectors["de"], expected)
    rows_LD = F.normalize(model.get_parameter("heads.clf.psi.weight").detach(), dim=1)
    torch.testing.assert_close(vectors["clf"], rows_LD)
    alone = model.label_vectors(trainer.label_tokens, chunk, ["clf"])
    torch.testing.assert_close(alone["clf"], rows_LD)


def test_no_texts_have_no_vectors(trainer: Trainer) -> None:
    nothing = trainer.query_tokens.take(np.zeros(0, np.int64))
    assert trainer.model.query_vectors(nothing, 8) == {}


def test_a_width_that_a_head_cannot_have_is_named_with_its_key() -> None:
    config = resolve([*SMALL, "head.clf.projection=residual"], default_registry())
    with pytest.raises(
        ConfigError, match=r"head\.clf\.dim=8: projection=residual keeps .* encoder, 16 \(set it to 0\)"
    ):
        Trainer(config, open_dataset("tiny", "title", default_registry()))
