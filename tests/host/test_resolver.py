"""Resolving overrides: what wins over what, and every problem in one message."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.errors import ConfigError, PluginError, XmclabError
from xmclab.host.registry import Registry, default_registry, load_registry
from xmclab.host.resolver import resolve, settle, unsettle
from xmclab.host.schema import SLOTS


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
    known = "reader.label_text, reader.query_text, reader.text"
    unknown = f"reader.test_share: unknown key for reader 'lf_json' (known: {known})"
    assert str(caught.value) == f"{file}:3:3: {unknown}"
    back = unsettle(table, "reader")
    assert back.to_dict()["reader"] == {"name": "auto", "text": "title+content"}


def test_queries_and_labels_have_texts_of_their_own(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data: {query_text: content}\nreader.text: title+content\n")
    config = resolve([f"recipe={file}", "data.label_text=title"], registry)
    assert ("data.query_text", "content", "mine.yaml:1") in config.explain()
    assert ("data.label_text", "title", "override") in config.explain()
    table = settle(config, "reader", "table")
    again = unsettle(table, "reader")
    chosen = resolve([f"recipe={file}", "reader=table", "data.label_text=title"], registry)
    other = resolve([f"recipe={file}", "reader=table", "reader.label_text=title", "reader=lf_json"], registry)
    for each in (table, settle(again, "reader", "lf_json"), chosen, other):
        reader = each.make("reader")
        assert (reader.text_of("query"), reader.text_of("label")) == ("content", "title")
    assert ("data.query_text", "content", "mine.yaml:1") in table.explain()
    assert "reader.query_text" not in {key for key, _, _ in table.explain()}
    assert resolve(["reader=table", "reader.text=content"], registry).make("reader").text_of("label") == "content"


def test_without_baselines_there_are_none() -> None:
    bare = load_registry({"XMCLAB_PLUGINS": "losses"})
    assert resolve([], bare).to_dict()["baseline"] == {"name": "none"}
    with pytest.raises(ConfigError, match=r"baseline\.neighbours: unknown key"):
        resolve(["baseline.neighbours=3"], bare)
    with pytest.raises(ConfigError, match=r"baseline\.neighbours: baseline is none and has no options"):
        resolve(["baseline=none", "baseline.neighbours=3"], bare)


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
    ("miner.index=faiss", "miner.index: unknown key (renamed to 'index')"),
    ("miner.faiss_type=hnsw", "miner.faiss_type: unknown key (renamed to 'index.type')"),
    ("sampler.bta=3", "sampler.bta: unknown key (did you mean 'pool.beta'?)"),
    ("sampler.batchsize=3", "sampler.batchsize: unknown key (did you mean 'sampler.batch_size'?)"),
    ("batch_size=3", "batch_size: unknown key (did you mean 'sampler.batch_size'?)"),
    ("lr=3", "lr: unknown key (did you mean 'encoder.lr' or 'head.clf.lr' or 'head.de.lr'?)"),
    ("pool.zzz=3", "pool.zzz: unknown key (known: pool.beta, pool.cap, pool.eta, pool.gap, pool.replacement)"),
    ("encoder.=bag", "encoder.: unknown key"),
    ("sampler=clustr", "sampler: unknown sampler 'clustr' (did you mean 'cluster'?)"),
    ("reduction=pls", "reduction: unknown reduction 'pls'"),
    ("pool.beta=x", "pool.beta: 'x' should be a valid integer"),
    ("pool.eta=-1", "pool.eta: '-1' should be greater than or equal to 0"),
    ("reader=tabel", "reader: unknown reader 'tabel' (did you mean 'table'?)"),
    ("reader=none", "reader: unknown reader 'none'"),
    ("reader.seperator=;", "reader.seperator: unknown key (did you mean 'reader.separator'?)"),
    ("reader.text=titel", "reader.text: 'titel' should be 'title', 'content' or 'title+content'"),
    ("data.query_text=titel", "data.query_text: 'titel' should be 'title', 'content' or 'title+content'"),
    ("data.querytext=title", "data.querytext: unknown key (did you mean 'data.query_text'?)"),
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


@pytest.mark.parametrize("value", ["false", "False", " false"])
def test_trust_was_a_setting_and_may_still_be_off(registry: Registry, value: str) -> None:
    for encoder in ("bag", "hf"):
        config = resolve([f"encoder={encoder}", f"encoder.trust_remote_code={value}"], registry)
        assert "trust_remote_code" not in str(config.to_dict())


@pytest.mark.parametrize("value", ["true", "True", "yes", "1", "on", ""])
def test_trust_is_no_setting(registry: Registry, tmp_path: Path, value: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"encoder:\n  name: hf\n  trust_remote_code: {value!r}\n")
    for overrides in ([f"recipe={recipe}"], ["encoder=hf", f"encoder.trust_remote_code={value}"]):
        with pytest.raises(ConfigError, match=r"no longer a setting \(pass --trust-remote-code") as caught:
            resolve(overrides, registry)
        assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["evaluate.k=0,1"], "evaluate.k: '0,1' is not a list of different numbers >= 1"),
        (["evaluate.k=1,1"], "evaluate.k: '1,1' is not a list of different numbers >= 1"),
        (["evaluate.k="], "evaluate.k: '' is not a list"),
        (["evaluate.k=1,200"], "evaluate.k: 200 is more than the evaluate.depth=100 labels ranked for a query"),
        (["evaluate.recall_k=10,50", "evaluate.depth=20"], "evaluate.recall_k: 50 is more than the evaluate.depth=20"),
        (["evaluate.propensity=0.6"], "evaluate.propensity: '0.6' is not A,B with A >= 0 and B > 0"),
        (["evaluate.propensity=0.6,0"], "evaluate.propensity: '0.6,0' is not A,B with A >= 0 and B > 0"),
    ],
)
def test_cut_offs_and_propensities_are_checked(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(overrides, default_registry())


def test_cut_offs_are_sorted_and_the_default_ones_need_no_depth() -> None:
    settings = resolve(["evaluate.k=10,1", "evaluate.propensity=0.6,2.6"], default_registry()).settings.evaluate
    assert (settings.k, settings.propensity) == ((1, 10), (0.6, 2.6))
    assert resolve(["evaluate.depth=2"], default_registry()).settings.evaluate.k == (1, 3, 5)
