"""Configs: what overrides and recipes resolve to, who set what, and every problem in one message."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmclab.errors import ConfigError, PluginError, XmclabError
from xmclab.host.config import Config
from xmclab.host.options import make_part
from xmclab.host.recipes import MAX_BYTES, summary
from xmclab.host.registry import Registry, load_registry
from xmclab.host.resolver import resolve, settle, unsettle
from xmclab.host.schema import SLOTS
from xmclab.options import option

RECIPES = ("unidec", "unidec_paper", "unidec_release", "depsl")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry({})


@dataclass
class Sample:
    """One option of every type."""

    count: int = option(1, "a number", ge=1, le=100)
    rate: float = option(0.5, "a share", gt=0, lt=1)
    flag: bool = False
    word: str = "a"
    maybe: float | None = option(None, "perhaps", gt=0)
    mode: Literal["fast", "none"] = "fast"
    level: Literal[1, 2] = 1
    steps: tuple[int, ...] = ()
    names: list[str] | None = None
    needed: dataclasses.InitVar[None] = None


@dataclass
class Demanding:
    size: int = option(help="of the thing")

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ValueError("13 brings bad luck")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "012", 12),
        ("count", "7", 7),
        ("rate", "1e-3", 1e-3),
        ("flag", "on", True),
        ("flag", "off", False),
        ("flag", "true", True),
        ("flag", "0", False),
        ("word", "on", "on"),
        ("word", "012", "012"),
        ("word", "none", "none"),
        ("word", "", ""),
        ("maybe", "none", None),
        ("maybe", "null", None),
        ("maybe", "0.25", 0.25),
        ("mode", "none", "none"),
        ("level", "2", 2),
        ("steps", "10,20", (10, 20)),
        ("steps", "[3]", (3,)),
        ("steps", "", ()),
        ("names", "a, b", ["a", "b"]),
        ("names", "none", None),
    ],
)
def test_text_means_what_was_typed(name: str, text: str, value: Any) -> None:
    made = getattr(make_part(Sample, {name: text}, "sample"), name)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("count", "x", "'x' should be a valid integer"),
        ("count", "1.5", "should be a valid integer"),
        ("count", "0", "'0' should be greater than or equal to 1"),
        ("count", "101", "should be less than or equal to 100"),
        ("rate", "1", "should be less than 1"),
        ("rate", "nan", "should be a finite number"),
        ("maybe", "inf", "should be a finite number"),
        ("maybe", "-1", "should be greater than 0"),
        ("flag", "perhaps", "should be a valid boolean"),
        ("mode", "fats", "'fats' should be 'fast' or 'none'"),
        ("level", "3", "should be 1 or 2"),
        ("steps", "1,b", "should be a valid integer"),
        ("cuont", "3", "unknown option 'cuont' (did you mean 'count'?)"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_part(Sample, {name: text}, "sample")
    [problem] = caught.value.problems
    assert problem.where == f"sample.{name}"
    assert reason in str(problem)


def test_a_part_reports_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_part(Sample, {"count": "x", "rate": 7, "wrod": "b"}, "sample")
    assert len(caught.value.problems) == 3


def test_required_options_and_a_parts_own_checks() -> None:
    with pytest.raises(ConfigError, match=r"thing\.size: must be set \(int\)"):
        make_part(Demanding, {}, "thing")
    with pytest.raises(ConfigError, match="thing: 13 brings bad luck"):
        make_part(Demanding, {"size": 13}, "thing")
    assert make_part(Demanding, {"size": "12"}, "thing").size == 12


def test_defaults(registry: Registry) -> None:
    config = resolve([], registry)
    assert config.heads == ("de", "clf")
    assert config.settings.pool.beta == 3
    assert config.settings.data.source == "debian"
    defaults = {slot: SLOTS[slot].default for slot in SLOTS} | {"baseline": "tfidf_labels+tfidf_neighbours"}
    assert {slot: config.choice(slot) or "none" for slot in SLOTS} == defaults
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.settings.epochs = 3  # type: ignore[misc]


def test_overrides_go_left_to_right_over_the_recipe_wherever_it_stands(registry: Registry) -> None:
    config = resolve(["epochs=2", "epochs=3", "pool.beta=7", "recipe=depsl", "data=tiny"], registry)
    assert (config.settings.epochs, config.settings.pool.beta) == (3, 7)
    assert config.settings.data.source == "tiny"
    assert config.recipe == "depsl"
    assert config.heads == ("de",)
    assert config.make("head.clf") is None
    assert config.make("head.de").dim == 512
    assert config.settings.objective.de_share == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_shipped_recipes_are_short_and_resolve(registry: Registry, recipe: str) -> None:
    config = resolve([f"recipe={recipe}"], registry)
    assert config.objective("de").q2l_share == 0.5
    lines = registry.recipe(recipe).read_text().splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("# ")


def test_the_release_differs_from_the_paper_only_where_it_says(registry: Registry) -> None:
    paper = {key: value for key, value, _ in resolve(["recipe=unidec_paper"], registry).explain()}
    release = {key: value for key, value, _ in resolve(["recipe=unidec_release"], registry).explain()}
    assert {key for key in paper if paper[key] != release[key]} == {
        "optim.schedule",
        "optim.decay",
        "optim.warmup",
        "sampler.depth",
    }
    for key in ("head.de.temperature", "head.clf.temperature"):
        assert release[key] == pytest.approx(1 / 18, rel=1e-4)


def test_the_paper_recipe_keeps_nothing_that_was_tuned_for_the_bag(registry: Registry) -> None:
    """What `unidec` sets for the bag and the paper does not state is back at its default."""
    paper = resolve(["recipe=unidec_paper"], registry)
    for slot, options in {
        "head.de": {"init": "default", "activation": "tanh", "dropout": 0.1, "dim": 384, "lr": 2e-4},
        "head.clf": {"init": "default", "normalise": False, "rows": "xavier", "row_dropout": 0.1, "table_lr": 1e-3},
        "encoder": {"lr": 1e-4, "pooling": "mean", "towers": "shared"},
        "sampler": {"batch_size": 576},
    }.items():
        part = paper.make(slot) if slot != "encoder" else paper.parts[slot].options
        for name, value in options.items():
            assert (part[name] if slot == "encoder" else getattr(part, name)) == value
    assert paper.choice("sampler") == "cluster"
    assert paper.settings.refresh_every == 5
    assert paper.settings.pool.cap == 3000


def test_options_reach_the_parts(registry: Registry) -> None:
    config = resolve(
        ["sampler=cluster_mix", "sampler.double_at=5,10", "encoder.dim=32", "head.clf.table=sgd"], registry
    )
    assert config.make("sampler").double_at == (5, 10)
    assert config.make("encoder").dim == 32
    assert config.make("head.clf").table == "sgd"
    assert config.make("sampler") is not config.make("sampler")


def test_another_part_drops_what_the_recipe_set_for_the_previous_one(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("sampler: {name: cluster, batch_size: 77, depth: release}\n")
    kept = resolve([f"recipe={file}", "sampler=cluster", "sampler.depth=fit"], registry)
    assert (kept.make("sampler").batch_size, kept.make("sampler").depth) == (77, "fit")
    dropped = resolve([f"recipe={file}", "sampler.batch_size=5", "sampler=random"], registry)
    assert dropped.make("sampler").batch_size == 5
    assert resolve([f"recipe={file}", "sampler=random"], registry).make("sampler").batch_size != 77
    with pytest.raises(ConfigError, match=r"sampler\.depth: unknown key"):
        resolve([f"recipe={file}", "sampler=random", "sampler.depth=fit"], registry)


def test_another_expression_drops_the_options_of_its_terms(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("loss.clf: {expression: ds+bce, bce: {weight: 0.3}}\n")
    weights = {term.name: term.weight for term in resolve([f"recipe={file}"], registry).objective("clf").terms}
    assert weights == {"ds": 1, "bce": 0.3}
    config = resolve([f"recipe={file}", "loss.clf=supcon+bce"], registry)
    assert [term.weight for term in config.objective("clf").terms] == [1, 1]


def test_expressions_and_the_options_of_their_terms(registry: Registry) -> None:
    config = resolve(
        ["loss.clf=ds+bce", "loss.clf.bce.weight=0.3", "loss.de=2*ds", "loss.de.ds.temperature=0.1"], registry
    )
    ds, bce = config.objective("clf").terms
    assert (ds.weight, bce.weight, ds.loss.temperature) == (1, 0.3, None)
    [de] = config.objective("de").terms
    assert (de.weight, de.loss.temperature) == (2, 0.1)


def test_the_objective_has_the_heads_temperature_and_share(registry: Registry) -> None:
    config = resolve(["head.de.temperature=0.25", "objective.de_q2l_share=0.75"], registry)
    assert config.objective("de").temperature == 0.25
    assert config.objective("de").q2l_share == 0.75
    assert config.objective("clf").q2l_share == 0.5


def test_shorthands_set_both_heads(registry: Registry) -> None:
    config = resolve(["loss=bce", "reduction=ova", "reduction.cells=sum", "loss.bce.weight=2"], registry)
    for head in ("de", "clf"):
        [term] = config.objective(head).terms
        assert (term.weight, term.reduction.cells) == (2, "sum")
    mixed = resolve(["loss.clf=bce", "reduction.clf=ova", "reduction.cells=sum"], registry)
    assert mixed.make("reduction.clf").cells == "sum"
    assert mixed.choice("reduction.de") == "psl"
    with pytest.raises(ConfigError, match=r"reduction\.cells: unknown key"):
        resolve(["loss.clf=bce", "reduction.clf=ova", "reduction.cells=sum", "head.clf=none"], registry)


def test_a_head_that_is_none_needs_no_loss(registry: Registry) -> None:
    config = resolve(["head.clf=none", "loss.clf=nonsense+", "reduction.clf=nonsense", "reduction.clf.x=1"], registry)
    assert config.heads == ("de",)
    assert config.choice("head.clf") is None
    assert config.choice("reduction.clf") is None
    with pytest.raises(ConfigError, match="at least one head is required"):
        resolve(["head.clf=none", "head.de=none"], registry)
    with pytest.raises(ConfigError, match=r"head\.clf\.dim: head\.clf is none and has no options"):
        resolve(["head.clf=none", "head.clf.dim=3"], registry)


def test_an_optional_slot_may_be_empty_and_others_not(registry: Registry) -> None:
    assert resolve(["tracker=none"], registry).make("tracker") is None
    assert resolve(["miner=none"], registry).make("miner") is not None
    with pytest.raises(ConfigError, match="sampler: unknown sampler 'none'"):
        resolve(["sampler=none"], registry)


def test_a_reader_that_is_found_later_keeps_what_was_set_for_it(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("reader: {text: title+content, separator: ;}\n")
    config = resolve([f"recipe={file}"], registry)
    assert config.to_dict()["reader"] == {"name": "auto", "text": "title+content", "separator": ";"}
    assert ("reader.separator", ";", "mine.yaml:1") in config.explain()
    chosen = resolve([f"recipe={file}", "reader=table"], registry).make("reader")
    assert (chosen.text, chosen.separator) == ("title+content", ";")


def test_another_reader_keeps_the_text_and_nothing_else(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("reader: {name: table, text: title+content, separator: ;}\n")
    assert resolve([f"recipe={file}", "reader=lf_json"], registry).make("reader").text == "title+content"
    assert resolve([f"recipe={file}", "reader=auto"], registry).to_dict()["reader"] == {
        "name": "auto",
        "text": "title+content",
    }
    with pytest.raises(ConfigError, match=r"^reader\.separator: unknown key"):
        resolve([f"recipe={file}", "reader=lf_json", "reader.separator=+"], registry)


def test_what_is_set_for_auto_is_checked_once_the_reader_is_known(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("reader:\n  text: title+content\n  test_share: 0.2\n")
    config = resolve([f"recipe={file}"], registry)
    table = settle(config, "reader", "table")
    assert (table.make("reader").text, table.make("reader").test_share) == ("title+content", 0.2)
    assert ("reader.test_share", 0.2, "mine.yaml:3") in table.explain()
    with pytest.raises(ConfigError) as caught:
        settle(config, "reader", "lf_json")
    unknown = "reader.test_share: unknown key for reader 'lf_json' (known: reader.text)"
    assert str(caught.value) == f"{file}:3:3: {unknown}"
    back = unsettle(table, "reader")
    assert back.to_dict()["reader"] == {"name": "auto", "text": "title+content"}


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


def test_without_baselines_there_are_none() -> None:
    bare = load_registry({"XMCLAB_PLUGINS": "losses"})
    assert resolve([], bare).to_dict()["baseline"] == {"name": "none"}
    with pytest.raises(ConfigError, match=r"baseline\.neighbours: unknown key"):
        resolve(["baseline.neighbours=3"], bare)
    with pytest.raises(ConfigError, match=r"baseline\.neighbours: baseline is none and has no options"):
        resolve(["baseline=none", "baseline.neighbours=3"], bare)


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


PROBLEMS = [
    ("recipe=unidecc", "recipe: unknown recipe 'unidecc' (did you mean 'unidec'?)"),
    ("loss.clf=ds+bcee", "loss.clf: column 4: unknown loss 'bcee' (did you mean 'bce'?)"),
    ("loss.clf=ds+", "loss.clf: column 4 of 'ds+': missing term"),
    ("loss.clf=ds+ds", "'ds' appears twice"),
    ("loss.de=ova(ds)", "'ova' takes binary losses"),
    ("loss.clf=__import__('os')", "loss.clf: column 1"),
    ("loss.de.ds.temprature=1", "loss.de.ds.temprature: unknown key (did you mean 'loss.de.ds.temperature'?)"),
    ("loss.de.ds.temperature=-1", "loss.de.ds.temperature: '-1' should be greater than 0"),
    ("loss.de.ds.weight=heavy", "loss.de.ds.weight: 'heavy' should be a valid number"),
    ("loss.de.bce.weight=1", "loss.de.bce.weight: unknown key (no term 'bce' in loss.de=ds)"),
    ("loss.focal.gamma=1", "loss.focal.gamma: unknown key (no term 'focal' in loss.de=ds or loss.clf=ds+bce)"),
    ("loss.bce.wait=1", "loss.bce.wait: unknown key (did you mean 'loss.clf.bce.weight'?)"),
    ("loss=zzz", "unknown loss 'zzz' (known: asl, bce, ds,"),
    ("loss=zzz", "triplet, unbiased_bce, pml.* (14);"),
    ("loss.cls=ds", "loss.cls: unknown key (did you mean 'loss.clf'?)"),
    ("sampler.bta=3", "sampler.bta: unknown key (did you mean 'pool.beta'?)"),
    ("sampler.batchsize=3", "sampler.batchsize: unknown key (did you mean 'sampler.batch_size'?)"),
    ("batch_size=3", "batch_size: unknown key (did you mean 'sampler.batch_size'?)"),
    ("lr=3", "lr: unknown key (did you mean 'encoder.lr' or 'head.clf.lr' or 'head.de.lr'?)"),
    ("pool.zzz=3", "pool.zzz: unknown key (known: pool.beta, pool.cap, pool.eta)"),
    ("encoder.=bag", "encoder.: unknown key"),
    ("sampler=clustr", "sampler: unknown sampler 'clustr' (did you mean 'cluster'?)"),
    ("reduction=pls", "reduction: unknown reduction 'pls'"),
    ("pool.beta=x", "pool.beta: 'x' should be a valid integer"),
    ("pool.eta=-1", "pool.eta: '-1' should be greater than or equal to 0"),
    ("reader=tabel", "reader: unknown reader 'tabel' (did you mean 'table'?)"),
    ("reader=none", "reader: unknown reader 'none'"),
    ("reader.seperator=;", "reader.seperator: unknown key (did you mean 'reader.separator'?)"),
    ("reader.text=titel", "reader.text: 'titel' should be 'title' or 'title+content'"),
    ("reader.test_share=2", "reader.test_share: '2' should be less than 1"),
    ("data.text=title", "data.text: unknown key (did you mean 'reader.text'?)"),
    ("baseline=tfidf_label", "baseline: unknown baseline 'tfidf_label' (did you mean 'tfidf_labels'?)"),
    ("baseline=all+tfidf_labels", "baseline: unknown baseline 'all'"),
    ("baseline.neighbors=3", "baseline.neighbors: unknown key (did you mean 'baseline.neighbours'?)"),
    ("baseline.neighbours=0", "baseline.neighbours: '0' should be greater than or equal to 1"),
    ("baseline.tfidf_labels.neighbours=3", "unknown key (did you mean 'baseline.neighbours'?)"),
    ("tracker=all", "tracker: unknown tracker 'all'"),
    ("sampler=auto", "sampler: unknown sampler 'auto'"),
    ("optim.schedule=cosin", "optim.schedule: 'cosin' should be 'cosine', 'linear' or 'constant'"),
    ("epochs", "epochs: expected KEY=VALUE"),
    ("unidec", "did you mean recipe=unidec?"),
    ("=3", "=3: expected KEY=VALUE"),
    ("recipe=/no/such.yaml", "/no/such.yaml: no such file"),
    ("plugin=/no/such.py", "plugin=/no/such.py: no such file"),
]


@pytest.mark.parametrize(("override", "message"), PROBLEMS)
def test_problems_in_the_users_words(registry: Registry, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve([override], registry)
    [problem] = caught.value.problems
    assert message in str(problem)
    assert caught.value.exit_code == 2


def test_all_problems_come_in_one_message(registry: Registry) -> None:
    overrides = ["recipe=unidecc", "loss.clf=ds+bcee", "sampler.bta=3", "pool.beta=x", "encoder=bga", "reduction=pls"]
    with pytest.raises(ConfigError) as caught:
        resolve([*overrides, "nonsense"], registry)
    assert len(caught.value.problems) == 7


def test_a_missing_recipe_causes_no_problems_of_its_own(registry: Registry) -> None:
    # The recipe that was meant chooses a cluster sampler, which has a depth; without a guess nobody can know.
    for recipe in ("unidec_papr", "something_else"):
        with pytest.raises(ConfigError) as caught:
            resolve([f"recipe={recipe}", "sampler.depth=fit"], registry)
        assert len(caught.value.problems) == 1


def test_a_plugin_at_fault_decides_the_exit_code(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "faulty.py"
    file.write_text("raise RuntimeError('out of order')")
    with pytest.raises(PluginError) as caught:
        resolve([f"plugin={file}", "pool.beta=x"], registry)
    assert caught.value.exit_code == 4
    assert "out of order" in str(caught.value)
    assert "pool.beta" in str(caught.value)


def test_a_plugin_file_supplies_parts(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "my_loss.py"
    file.write_text(
        "from dataclasses import dataclass\nimport xmclab\nfrom xmclab.api import MultiClassLoss\n"
        "@dataclass\nclass Mine(MultiClassLoss):\n    power: int = 2\n    def terms(self, s_QP, y_QP): return -s_QP\n"
        "@xmclab.hookimpl\ndef xmclab_parts(): return [xmclab.part('loss', name, Mine) for name in ('mine', 'ds')]\n"
    )
    config = resolve([f"plugin={file}", "loss=mine", "loss.mine.power=3"], registry)
    assert config.objective("de").terms[0].loss.power == 3
    qualified = resolve([f"plugin={file}", "loss=my_loss.ds+xmclab.ds", "loss.my_loss.ds.weight=0.5"], registry)
    assert [term.weight for term in qualified.objective("de").terms] == [0.5, 1]
    with pytest.raises(PluginError, match=r"loss\.de: .*'ds' is supplied by both"):
        resolve([f"plugin={file}", "loss.clf=mine"], registry)


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_recipes_build_on_one_base(registry: Registry, tmp_path: Path) -> None:
    write(tmp_path, "base: unidec\nepochs: 4\npool: {beta: 5}\n", "parent.yaml")
    child = write(tmp_path, "base: ./parent.yaml\nepochs: 6\nhead.de.dim: 8\n")
    config = resolve([f"recipe={child}", "pool.eta=1"], registry)
    assert (config.settings.epochs, config.settings.pool.beta, config.settings.pool.eta) == (6, 5, 1)
    assert config.recipe == "mine"
    sources = {key: source for key, _, source in config.explain()}
    assert sources["epochs"] == "mine.yaml:2"
    assert sources["pool.beta"] == "parent.yaml:3"
    assert sources["pool.eta"] == "override"
    assert sources["pool.cap"] == "default"
    assert sources["head.de.dim"] == "mine.yaml:3"
    assert sources["encoder.lowercase"] == "default of bag"
    assert sources["loss.clf"].startswith("unidec.yaml:")


def test_values_of_a_recipe_mean_what_was_typed(registry: Registry, tmp_path: Path) -> None:
    file = write(tmp_path, "seed: 012\ncompile: on\ndevice: on\nencoder: {lr: 1e-3}\nloss.de.ds.temperature: ~\n")
    config = resolve([f"recipe={file}"], registry)
    assert config.settings.seed == 12
    assert config.settings.compile is True
    assert config.settings.device == "on"
    assert config.make("encoder").lr == 1e-3
    assert config.objective("de").terms[0].loss.temperature is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: [1\npool: 3\n", r"mine\.yaml:2:5: malformed YAML"),
        ("epochs: 1\n\tpool: 3\n", r"mine\.yaml:2:1: malformed YAML"),
        ("- epochs\n", r"mine\.yaml:1:1: a recipe must be a mapping"),
        ("a: &a [x]\nb: *a\n", r"mine\.yaml:2:4: aliases .* are not allowed"),
        ("epochs: !!python/object/apply:os.system [ls]\n", r"mine\.yaml:1:9: the tag .* is not allowed"),
        ("epochs: 1\nepochs: 2\n", r"mine\.yaml:2:1: 'epochs' is set twice"),
        ("pool: {beta: 1}\npool.beta: 2\n", r"mine\.yaml:2:1: 'pool.beta' is set twice"),
        ("epochs: 1\n---\nepochs: 2\n", r"mine\.yaml:2:1: malformed YAML"),
        ("? [a]\n: 3\n", r"mine\.yaml:1:3: a key must be a plain word"),
        ("loss: [[ds]]\n", r"mine\.yaml:1:8: a list may only hold plain values"),
        ("pool:\n  bta: 3\n", r"mine\.yaml:2:3: pool\.bta: unknown key \(did you mean 'pool\.beta'\?\)"),
        ("pool:\n  beta: x\n", r"mine\.yaml:2:3: pool\.beta: 'x' should be a valid integer"),
        ("sampler: {name: clustr}\n", r"mine\.yaml:1:11: sampler\.name: unknown sampler 'clustr'"),
        ("loss: {clf: ds+bcee}\n", r"mine\.yaml:1:8: loss\.clf: column 4: unknown loss 'bcee'"),
        ("base: [a, b]\n", r"mine\.yaml:1:1: base: a recipe has one base"),
        ("base: unidecc\n", r"mine\.yaml:1:1: base: unknown recipe 'unidecc' \(did you mean 'unidec'\?\)"),
        ("base: ./mine.yaml\n", r"circular bases: mine\.yaml -> mine\.yaml"),
        ("plugin: evil.py\n", r"mine\.yaml:1:1: plugin: cannot be set in a recipe"),
        (
            "recipe: unidec\n",
            r"mine\.yaml:1:1: recipe: cannot be set in a recipe \(use `base:` to build on another recipe",
        ),
        ("[" * 100_000, "nested deeper than 20 levels"),
        ("a" * (MAX_BYTES + 1), "larger than 1,000,000 bytes"),
    ],
)
def test_a_bad_recipe_is_refused_with_its_place(registry: Registry, tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        resolve([f"recipe={file}"], registry)
    assert len(caught.value.problems) == 1
    assert re.search(message, str(caught.value))


def test_a_recipe_that_is_no_text_is_refused(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"epochs: \xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve([f"recipe={file}"], registry)
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve([f"recipe={tmp_path}/"], registry)


def test_the_first_comment_sums_a_recipe_up(tmp_path: Path) -> None:
    assert summary(write(tmp_path, "# What it does.\nepochs: 3\n")) == "What it does."
    assert summary(write(tmp_path, "epochs: 3\n")) == ""
    assert "No such file" in summary(tmp_path / "missing.yaml")


def test_an_empty_recipe_is_the_defaults(registry: Registry, tmp_path: Path) -> None:
    assert resolve([f"recipe={write(tmp_path, '# nothing')}"], registry).to_dict() == resolve([], registry).to_dict()


def again(config: Config, folder: Path, registry: Registry) -> Config:
    file = write(folder, yaml.safe_dump(config.to_dict(), sort_keys=False), "again.yaml")
    return resolve([f"recipe={file}"], registry)


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"recipe={name}"] for name in RECIPES),
        ["loss.clf=0.7*ds+ova_n(bce, cells='sum')", "loss.clf.ds.temperature=0.07", "loss.de.ds.weight=3"],
        ["reader=table", "reader.separator=;", "baseline=tfidf_neighbours", "baseline.neighbours=3"],
        ["reader.separator=;", "reader.text=title+content", "baseline=none"],
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


@settings(max_examples=30, deadline=None)
@given(overrides=st.lists(st.text(max_size=20) | st.sampled_from([text for text, _ in PROBLEMS]), max_size=4))
def test_no_override_is_worse_than_an_error_message(registry: Registry, overrides: list[str]) -> None:
    with contextlib.suppress(XmclabError):
        assert resolve(overrides, registry).heads


def test_a_reduction_may_have_a_required_option(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "power.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "import xmclab\n"
        "from xmclab.api import Reduction\n"
        "@dataclass\n"
        "class Power(Reduction):\n"
        "    power: float\n"
        "    def weights(self, y_QP):\n"
        "        return y_QP.pow(self.power).masked_fill(y_QP <= 0, 0)\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts():\n"
        "    return [xmclab.part('reduction', 'power', Power)]\n"
    )
    chosen = [f"plugin={file}", "reduction.clf=power"]
    assert resolve([*chosen, "reduction.clf.power=0.5"], registry).objective("clf").terms[0].reduction.power == 0.5
    with pytest.raises(ConfigError, match=r"reduction\.clf\.power: must be set"):
        resolve(chosen, registry)
