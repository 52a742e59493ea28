"""Transforms: what a run trains on, and what it goes on measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xmclab.data.propensity import frequency_bands, inverse_propensity
from xmclab.data.transform import transformed
from xmclab.data.validation import Opened, open_with_validation
from xmclab.errors import ConfigError, DataError, PluginError
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.trainer import Trainer

PLUGIN = '''
from dataclasses import dataclass, replace

import xmclab
from xmclab.api import Transform
from xmclab.data.holdout import take


@dataclass
class First(Transform):
    """Only the first queries."""

    queries: int = xmclab.option(100, "how many", ge=0)

    def apply(self, data):
        import numpy as np

        return replace(data, train=take(data.train, np.arange(self.queries)))


@dataclass
class Spoiler(Transform):
    """Changes something else."""

    what: str = "test"

    def apply(self, data):
        train = data.train
        if self.what == "test":
            return replace(data, test=train)
        if self.what == "names":
            return replace(data, train=replace(train, names=train.names[:-1]))
        return replace(data, train=replace(train, targets_NL=train.targets_NL[:, :5]))


@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("transform", "first", First), xmclab.part("transform", "spoiler", Spoiler)]
'''


@pytest.fixture
def config(tmp_path: Any) -> Callable[..., Config]:
    (tmp_path / "first.py").write_text(PLUGIN)
    common = f"plugin={tmp_path / 'first.py'}", "recipe=unidec", "data=tiny", "encoder.dim=8"
    return lambda *words: resolve([*common, *words], default_registry())


def opened(config: Config) -> Opened:
    return open_with_validation(config)


def test_transforms_follow_each_other(config: Callable[..., Config]) -> None:
    one = opened(config("transform=first+labels_as_queries", "transform.queries=50"))
    other = opened(config("transform=labels_as_queries+first", "transform.first.queries=50"))
    assert len(one.training.train) == 50 + one.whole.num_labels
    assert len(other.training.train) == 50
    for each in (one, other):
        assert len(each.training.real) == len(each.whole.train) == 1262
        assert each.training.test is each.whole.test
    plain = opened(config())
    assert plain.training is plain.whole
    assert plain.whole.real is plain.whole.train


def test_labels_are_counted_over_the_real_queries(config: Callable[..., Config]) -> None:
    """For propensities, biases and bands; evaluation never sees the others."""
    chosen = config("transform=labels_as_queries", "objective.label_weights=propensity", "head.clf.bias=label")
    found = opened(chosen)
    trainer, real_NL = Trainer(chosen, found.training), found.whole.train.targets_NL
    weights_L = inverse_propensity(real_NL, 0.55, 1.5)
    assert trainer.label_weight_L is not None
    assert trainer.label_weight_L.numpy() == pytest.approx(weights_L / weights_L.mean(), rel=1e-6)
    assert np.array_equal(trainer.bands.group_L, frequency_bands(real_NL).group_L)
    plain = Trainer(config("head.clf.bias=label"), found.whole)
    ours, theirs = (each.model.head("clf").label_rows for each in (trainer, plain))
    assert ours is not None
    assert theirs is not None
    assert np.array_equal(ours.weight[:, -1].detach().numpy(), theirs.weight[:, -1].detach().numpy())
    assert np.array_equal(Evaluator.of_data(found.whole).weights_L, weights_L)


def test_validation_queries_are_set_aside_before(config: Callable[..., Config]) -> None:
    found = opened(config("transform=labels_as_queries", "validate.share=0.2"))
    assert found.validation is not None
    real = len(found.training.real)
    assert real < 1262
    assert len(found.training.train) == real + found.whole.num_labels
    assert len(found.validation.train) == real


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["transform=spoiler"], PluginError, "transform=spoiler: changed `test`, not only the training queries"),
        (["transform=spoiler", "transform.what=names"], PluginError, "made 1262 texts, but 1261 names"),
        (
            ["transform=spoiler", "transform.what=x"],
            PluginError,
            "made targets_NL of shape .* for 1262 queries and 922",
        ),
        (["transform=first", "transform.queries=0"], DataError, "leaves no training query with a label"),
        (["transform=gandalff"], ConfigError, "gandalf"),
        (["transform=gandalf", "transform.threshold=2"], ConfigError, "transform.threshold"),
        (["transform.threshold=0.2"], ConfigError, "transform is none and has no options"),
    ],
)
def test_bad_transforms_are_named(
    config: Callable[..., Config], words: list[str], error: type[Exception], message: str
) -> None:
    whole = opened(config()).whole
    with pytest.raises(error, match=message):
        transformed(config(*words), whole)
