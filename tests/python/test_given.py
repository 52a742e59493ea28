"""Keywords and objects mean what the same words mean on the command line; what has no word is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from xmclab.api import BinaryLoss, option
from xmclab.errors import ConfigError, PluginError, XmclabError
from xmclab.host import default_registry, resolve
from xmclab.plan.samplers.cluster import Cluster
from xmclab.python.given import Given, text_of

Class = type[Any]


@dataclass
class HalfBCE(BinaryLoss):
    """A loss whose name has an acronym."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return s_QP - y_QP


@dataclass
class Bce(HalfBCE):
    """Takes the name of another loss."""


@dataclass
class Listed(HalfBCE):
    """Has an option that one cannot type."""

    table: tuple[tuple[int, int], ...] = option((), "pairs")


class Plain(HalfBCE):
    """Forgot its decorator, and has a field."""

    weight: float = 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (1e-5, "1e-05"),
        (True, "true"),
        (None, "none"),
        ((1, 3, 5), "1,3,5"),
        (["a", "b"], "a,b"),
        (Path("x/y"), "x/y"),
        (np.int64(7), "7"),
        (np.float32(0.5), "0.5"),
    ],
)
def test_values_are_written_as_one_types_them(value: object, text: str) -> None:
    assert text_of(value, "key") == text
    assert Given.of(keywords={"key": value}).words == [f"key={text}"]


def test_what_cannot_be_typed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"head: \{'de': 1\} is neither a value nor a part"):
        Given.of(keywords={"head": {"de": 1}})


def test_overrides_win_over_keywords_and_plugin_files_are_several() -> None:
    given = Given.of(["epochs=3"], {"epochs": 5, "plugin": ["a.py", "b.py"]})
    assert given.words == ["epochs=5", "plugin=a.py", "plugin=b.py", "epochs=3"]


def test_a_class_is_a_part_of_its_name(margin_loss: Class) -> None:
    given = Given.of(["loss.clf=pairwise_margin+bce"], {"loss.de": HalfBCE}, [margin_loss])
    assert given.words == ["loss.de=half_bce", "loss.clf=pairwise_margin+bce"]
    assert given.registry.get("loss", "pairwise_margin") is margin_loss
    assert given.registry.get("loss", "half_bce") is HalfBCE
    assert "pairwise_margin" not in default_registry().names("loss")
    assert Given.of(parts={"mine": margin_loss}).registry.get("loss", "mine") is margin_loss


def test_the_options_of_an_object_are_those_of_its_part(margin_loss: Class) -> None:
    given = Given.of([], {"loss": margin_loss(margin=0.3), "sampler": Cluster(batch_size=32)})
    assert given.words[:2] == ["loss=pairwise_margin", "loss.pairwise_margin.margin=0.3"]
    config = resolve(["recipe=unidec", *given.words], given.registry)
    assert [config.objective(head).terms[0].loss.margin for head in ("de", "clf")] == [0.3, 0.3]  # type: ignore[attr-defined]
    assert config.make("sampler").batch_size == 32
    assert config.choice("sampler") == "cluster", "it has a name already"
    assert given.registry.given == {"loss pairwise_margin": f"{margin_loss.__module__}.PairwiseMargin"}


def test_a_class_with_the_name_of_a_known_part_is_used_under_another_one(margin_loss: Class) -> None:
    class_ = dataclass(type("Bce", (margin_loss,), {}))
    given = Given.of([], {"loss": class_(margin=0.3)}, {"my_bce": class_})
    assert given.words == ["loss=my_bce", "loss.my_bce.margin=0.3"]


def test_several_losses_add_up(margin_loss: Class) -> None:
    given = Given.of([], {"loss.clf": [margin_loss(), "bce"]})
    assert given.words == ["loss.clf=pairwise_margin+bce"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sampler", HalfBCE(), "sampler: HalfBCE is a loss, not a sampler"),
        ("loss", nn.Linear(2, 2), r"loss: Linear is not a part \(subclass xmclab.api.Loss\)"),
        ("loss.clf", Bce, "Bce: loss 'bce' is supplied by xmclab .* already .*parts={'my_bce': Bce}"),
        ("loss.clf", Listed(table=((1, 2),)), r"loss.clf.listed.table: \(\(1, 2\),\) cannot be written"),
    ],
)
def test_what_is_not_a_part_for_the_key_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Given.of([], {key: value})


def test_a_class_that_is_not_a_dataclass_is_refused() -> None:
    with pytest.raises(PluginError, match=r"class .*Plain: loss 'plain' must be a dataclass: decorate Plain"):
        Given.of([], {"loss": Plain})


def test_attributes_that_were_set_later_are_not_lost_in_silence(margin_loss: Class) -> None:
    changed = margin_loss()
    changed.later = 3
    with pytest.raises(ConfigError, match="pairwise_margin has attributes that were set later: later"):
        Given.of([], {"loss": changed})


def test_an_unknown_key_is_reported_by_the_resolver(margin_loss: Class) -> None:
    given = Given.of([], {"losss": margin_loss})
    with pytest.raises(XmclabError, match="losss: unknown key"):
        resolve(["recipe=unidec", *given.words], given.registry)
