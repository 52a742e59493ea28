"""Shares of the heads, and what their losses know of the labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.training.objectives import label_weights, objectives_of


@pytest.fixture(scope="module")
def tiny() -> Dataset:
    return open_dataset("tiny", "title", default_registry())


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        (["objective.de_share=0.3"], {"de": 0.3, "clf": 0.7}),
        (["objective.de_share=0.3", "freeze=head.de"], {"clf": 1.0}),
        (["objective.de_share=0.3", "freeze=head.clf"], {"de": 1.0}),
    ],
)
def test_trained_heads_share_the_loss(
    overrides: list[str], shares: dict[str, float], small_config: Callable[..., Any]
) -> None:
    found = objectives_of(small_config(*overrides))
    assert {name: objective.share for name, objective in found.items()} == pytest.approx(shares)


def test_labels_weigh_as_much_as_their_inverse_propensity(tiny: Dataset, small_config: Callable[..., Any]) -> None:
    config = small_config("objective.label_weights=propensity", "evaluate.propensity=0.6,2.6")
    weight_L, inverse_L = label_weights(tiny, config.settings, objectives_of(config))
    having_L = (tiny.train.targets_NL.toarray() > 0).sum(axis=0)
    expected_L = 1 + (np.log(len(tiny.train)) - 1) * 3.6**0.6 * (having_L + 2.6) ** -0.6
    assert inverse_L is None
    assert weight_L is not None
    np.testing.assert_allclose(weight_L, expected_L / expected_L.mean(), rtol=1e-5)


def test_only_losses_that_need_propensities_get_them(tiny: Dataset, small_config: Callable[..., Any]) -> None:
    plain = small_config()
    assert label_weights(tiny, plain.settings, objectives_of(plain)) == (None, None)
    config = small_config("loss.clf=pw_bce", "reduction.clf=ova")
    weight_L, inverse_L = label_weights(tiny, config.settings, objectives_of(config))
    assert weight_L is None
    assert inverse_L is not None
    assert (inverse_L >= 1).all()
