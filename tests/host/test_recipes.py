"""Recipe files: those that are shipped, what builds on what, and what is refused with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xmclab.errors import ConfigError
from xmclab.host.recipes import LONGEST_COMMENT, MAX_BYTES, group, read_recipe, summary
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve

RECIPES = ("unidec", "unidec_paper", "unidec_release", "unidec_transformer", "depsl")  # those of other systems: theirs


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
    assert {key: release[key] for key in paper if paper[key] != release[key]} == {
        "encoder.model": "sentence-transformers/msmarco-distilbert-base-v4",
        "head.de.init": "xavier",
        "head.clf.init": "xavier",
        "head.clf.row_dropout": 0.1,
        "head.clf.table": "dense_adamw",
        "optim.schedule": "linear",
        "optim.warmup": 3,
        "optim.decay": 0.05,
        "optim.no_decay": ["LayerNorm.weight"],
        "optim.clip": 0,
        "sampler.batch_size": 512,
        "sampler.depth": "release",
        "sampler.method": "two_means",
        "pool.replacement": True,
        "epochs": 150,
    }
    assert (release["pool.cap"], release["refresh_every"], release["head.clf.rows"]) == (3000, 5, "xavier")
    for key in ("head.de.temperature", "head.clf.temperature"):
        assert release[key] == pytest.approx(1 / 18, rel=1e-4)


def test_the_paper_recipe_keeps_nothing_that_was_tuned_for_the_bag(registry: Registry) -> None:
    """What `unidec` sets for the bag and the paper does not state is back at its default."""
    paper = resolve(["recipe=unidec_paper"], registry)
    for slot, options in {
        "head.de": {"init": "default", "activation": "tanh", "dropout": 0.1, "dim": 384, "lr": 2e-4},
        "head.clf": {"init": "default", "normalise": False, "rows": "xavier", "row_dropout": 0, "table_lr": 1e-3},
        "encoder": {"lr": 1e-4, "pooling": "mean", "towers": "shared"},
        "sampler": {"batch_size": 576},
    }.items():
        part = paper.make(slot) if slot != "encoder" else paper.parts[slot].options
        for name, value in options.items():
            assert (part[name] if slot == "encoder" else getattr(part, name)) == value
    assert paper.choice("sampler") == "cluster"
    assert paper.settings.refresh_every == 5
    assert paper.settings.pool.cap == 3000


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


def test_the_group_of_a_recipe_is_a_comment_below_its_summary(tmp_path: Path) -> None:
    assert group(write(tmp_path, "# What it does.\n# group: rivals \nepochs: 3\n")) == "rivals"
    assert group(write(tmp_path, "# What it does.\nepochs: 3  # group: rivals\n# group: rivals\n")) == ""
    assert group(write(tmp_path, "")) == group(tmp_path / "missing.yaml") == ""


COMMENTED = """\
# Not a source.
epochs: 3               # a table
# Neither is this.
loss: {de: "ds # no", clf: 'bce'} # printed #1 \t
head:                   # of a map, so of nothing in it
  de: {dim: 4, init: xavier,   # the first line
    lr: 1e-3, temperature: 0.1
    }                   # nothing ends here
  clf: none
sampler: {name: cluster, batch_size: 5} # close
reader.columns: [a, b]    # a list
device: >               # a block
  cpu
# below it
data: tiny#5
miner:                  # nothing
index: "exact"          #
"""


def test_the_comment_of_a_line_is_the_source_of_every_value_on_it(tmp_path: Path) -> None:
    file = write(tmp_path, COMMENTED)
    sources = {entry.key: entry.source.removeprefix("mine.yaml:") for entry in read_recipe(file)}
    assert sources == {
        "epochs": "2: a table",
        "loss.de": "4: printed #1",
        "loss.clf": "4: printed #1",
        "head.de.dim": "6: the first line",
        "head.de.init": "6: the first line",
        "head.de.lr": "7",
        "head.de.temperature": "7",
        "head.clf": "9",
        "sampler.name": "10: close",
        "sampler.batch_size": "10: close",
        "reader.columns": "11: a list",
        "device": "12",
        "data": "15",
        "miner": "16: nothing",
        "index": "17",
    }


def test_a_comment_is_not_inherited_and_is_cut(registry: Registry, tmp_path: Path) -> None:
    write(tmp_path, "base: unidec\nepochs: 4  # long enough\npool: {beta: 5}  # theirs\n", "parent.yaml")
    child = write(tmp_path, f"base: ./parent.yaml\nepochs: 6\nseed: 1  # {'x' * 10_000}\n")
    sources = {key: source for key, _, source in resolve([f"recipe={child}"], registry).explain()}
    assert sources["epochs"] == "mine.yaml:2"
    assert sources["pool.beta"] == "parent.yaml:3: theirs"
    assert sources["seed"] == f"mine.yaml:3: {'x' * LONGEST_COMMENT}"


def test_an_empty_recipe_is_the_defaults(registry: Registry, tmp_path: Path) -> None:
    assert resolve([f"recipe={write(tmp_path, '# nothing')}"], registry).to_dict() == resolve([], registry).to_dict()
