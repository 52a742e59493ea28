"""A resolved config: the parts that it makes, who set what, and a recipe for itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmclab.host.config import CHOICES, Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import SHORT

RECIPES = ("unidec", "unidec_paper", "unidec_release", "unidec_transformer", "depsl")


def test_options_reach_the_parts(registry: Registry) -> None:
    config = resolve(
        ["sampler=cluster_mix", "sampler.double_at=5,10", "encoder.dim=32", "head.clf.table=sgd"], registry
    )
    assert config.make("sampler").double_at == (5, 10)
    assert config.make("encoder").dim == 32
    assert config.make("head.clf").table == "sgd"
    assert config.make("sampler") is not config.make("sampler")


def test_every_option_that_can_be_set_is_listed(registry: Registry) -> None:
    """Setting each to its own value changes nothing, and no other key is accepted for the parts in use."""
    config = resolve(["recipe=unidec", "loss.clf=ds+focal"], registry)
    options = config.options()
    assert {"epochs", "pool.beta", "encoder.lr", "head.de.bias", "loss.clf.focal.gamma"} <= options.keys()
    assert "loss.de.focal.gamma" not in options
    keys = {key for key, _, _ in config.explain() if key not in CHOICES}
    assert {SHORT.get(key, key) for key in keys} <= options.keys() | {"baseline.neighbours"}
    for key in ("pool.beta", "encoder.lr", "loss.clf.focal.gamma"):
        value = options[key].default
        assert (
            resolve(["recipe=unidec", "loss.clf=ds+focal", f"{key}={value}"], registry).options().keys()
            == options.keys()
        )


def test_a_miner_gets_an_index_of_its_own(registry: Registry) -> None:
    config = resolve(["miner=ann", "index=faiss", "index.type=hnsw"], registry)
    miner, other = config.make("miner"), config.make("miner")
    assert miner.index.type == "hnsw"
    assert miner.index is not other.index
    assert resolve([], registry).choice("index") == "auto"


def test_the_objective_has_the_heads_temperature_and_share(registry: Registry) -> None:
    config = resolve(["head.de.temperature=0.25", "objective.de_q2l_share=0.75"], registry)
    assert config.objective("de").temperature == 0.25
    assert config.objective("de").q2l_share == 0.75
    assert config.objective("clf").q2l_share == 0.5


BASELINES = """
from dataclasses import dataclass
import xmclab
from xmclab.api import Baseline

@dataclass
class Few(Baseline):
    depth: int = xmclab.option(3, "how deep", ge=1)
    neighbours: int = xmclab.option(20, "how many", ge=1)
    def rank(self, data, k): ...

@dataclass
class Many(Baseline):
    depth: int = xmclab.option(9, "how deep", ge=1)
    def rank(self, data, k): ...

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("baseline", "few", Few), xmclab.part("baseline", "many", Many)]
"""


@pytest.fixture
def more(registry: Registry, tmp_path: Path) -> Registry:
    """The registry with two more baselines."""
    (tmp_path / "more.py").write_text(BASELINES)
    return registry.with_file(tmp_path / "more.py")


def test_all_installed_baselines_are_named_in_the_config(registry: Registry, more: Registry, tmp_path: Path) -> None:
    config = resolve([], registry)
    assert ("baseline", "tfidf_labels+tfidf_neighbours", "default") in config.explain()
    assert config.to_dict()["baseline"] == {"name": "tfidf_labels+tfidf_neighbours", "neighbours": 20}
    assert resolve([], more).choice("baseline") == "few+many+tfidf_labels+tfidf_neighbours"
    assert again(config, tmp_path, more).parts["baseline"] == config.parts["baseline"]
    assert resolve(["baseline=none", "baseline=all"], more).parts == resolve([], more).parts


def test_a_baseline_that_trains_is_used_by_name_only(registry: Registry) -> None:
    assert {"napkinxc", "one_vs_all"} <= set(registry.names("baseline"))
    assert resolve([], registry).choice("baseline") == "tfidf_labels+tfidf_neighbours"
    chosen = resolve(["baseline=tfidf_labels+one_vs_all", "baseline.delta=0.1"], registry)
    assert chosen.choice("baseline") == "tfidf_labels+one_vs_all"
    assert chosen.make_all("baseline")["one_vs_all"].delta == 0.1


def test_an_option_goes_to_each_baseline_that_has_it_or_to_one(more: Registry, tmp_path: Path) -> None:
    each = resolve(["baseline=few+many+tfidf_neighbours", "baseline.neighbours=7", "baseline.depth=5"], more)
    few, many, tfidf = each.make_all("baseline").values()
    assert (few.neighbours, tfidf.neighbours, few.depth, many.depth) == (7, 7, 5, 5)
    one = resolve(["baseline=few+many", "baseline.many.depth=6", "baseline.depth=5"], more)
    assert [made.depth for made in one.make_all("baseline").values()] == [5, 6]


@pytest.mark.parametrize("overrides", [[], ["baseline.few.depth=4"], ["baseline.depth=4"], ["baseline=many+few"]])
def test_baselines_that_differ_in_a_default_are_a_recipe_again(
    more: Registry, tmp_path: Path, overrides: list[str]
) -> None:
    config = resolve(overrides, more)
    assert again(config, tmp_path, more).parts == config.parts
    keys = [key for key, _, _ in config.explain()]
    assert len(keys) == len(set(keys))


def again(config: Config, folder: Path, registry: Registry) -> Config:
    file = folder / "again.yaml"
    file.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
    return resolve([f"recipe={file}"], registry)


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"recipe={name}"] for name in RECIPES),
        ["loss.clf=0.7*ds+ova_n(bce, cells='sum')", "loss.clf.ds.temperature=0.07", "loss.de.ds.weight=3"],
        ["reader=table", "reader.separator=;", "baseline=tfidf_neighbours", "baseline.neighbours=3"],
        ["reader.separator=;", "reader.text=title+content", "baseline=none"],
        ["data.query_text=content", "reader=table", "data.label_text=title"],
        ["data.query_text=content"],
        ["sampler=cluster_mix", "sampler.double_at=1,2,3", "tracker=none", "device=012", "encoder=hf"],
        ["loss=bce", "reduction=ova", "reduction.cells=sum", "head.de=none"],
    ],
)
def test_a_resolved_config_is_a_recipe_for_itself(registry: Registry, tmp_path: Path, overrides: list[str]) -> None:
    config = resolve(overrides, registry)
    other = again(config, tmp_path, registry)
    assert other.to_dict() == config.to_dict()
    assert other.settings == config.settings
    assert other.parts == config.parts
    assert {head: loss.terms for head, loss in other.losses.items()} == {
        head: loss.terms for head, loss in config.losses.items()
    }


finite = st.floats(min_value=1e-300, max_value=1e300)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**62), decay=finite, device=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]))
)
def test_settings_survive_the_way_through_a_file(
    registry: Registry, tmp_path: Path, seed: int, decay: float, device: str
) -> None:
    config = resolve([f"seed={seed}", f"optim.decay={decay!r}", f"device={device}"], registry)
    assert (config.settings.seed, config.settings.optim.decay, config.settings.device) == (seed, decay, device)
    assert again(config, tmp_path, registry).settings == config.settings
