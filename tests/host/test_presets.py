"""Presets: what they set between a recipe and the overrides, for which recipes, and those that ship."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from xmclab.errors import ConfigError
from xmclab.host.presets import all_presets, find_preset, presets_of_sizes, rows_of
from xmclab.host.recipes import recipe_layers
from xmclab.host.registry import Registry, load_registry
from xmclab.host.resolver import resolve

SHIPPED = (
    *("LF-Amazon-131K", "LF-WikiSeeAlso-320K", "LF-AmazonTitles-131K", "LF-WikiSeeAlsoTitles-320K"),
    *("LF-WikiTitles-500K", "LF-AmazonTitles-1.3M", "LF-Wikipedia-500K", "Query2Bid-450M"),
)
MINE = """\
# A set of mine.
sizes: {train: 10, test: 4, labels: 3}
pool: {beta: 7}           # counted
recipes:
  unidec_paper:
    pool: {cap: 77}       # page 3
    head: {de: {dim: 24}, clf: {dim: 24}}
    encoder: {max_length: 9}
  "unidec_release, depsl": {pool.eta: 5}
paper:
  unidec: {UniDEC: {P@1: 50.5, hours: 3}}
  depsl: {DePSL: {P@1: 40.5}}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return write(tmp_path, MINE)


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_preset_stands_between_the_recipe_and_the_overrides(registry: Registry, mine: Path) -> None:
    def pool(*overrides: str) -> tuple[int, int]:
        settings = resolve(overrides, registry).settings.pool
        return settings.beta, settings.cap

    recipe, preset = "recipe=unidec_paper", f"preset={mine}"
    assert pool(recipe) == (3, 3000)
    assert pool(recipe, preset) == (7, 77)
    assert pool("pool.cap=5", preset, recipe) == (7, 5)
    assert pool(preset) == (7, 0)


def test_the_last_preset_counts(registry: Registry, mine: Path, tmp_path: Path) -> None:
    other = write(tmp_path, "pool.beta: 8\n", "other.yaml")
    config = resolve([f"preset={mine}", f"preset={other}"], registry)
    assert (config.settings.pool.beta, config.preset and config.preset.name) == (8, "other")
    assert resolve([], registry).preset is None


def test_every_value_of_a_preset_has_its_source(registry: Registry, mine: Path) -> None:
    sources = {key: source for key, _, source in resolve(["recipe=unidec_paper", f"preset={mine}"], registry).explain()}
    assert sources["pool.beta"] == "mine.yaml:3: counted"
    assert sources["pool.cap"] == "mine.yaml:6: page 3"
    assert sources["head.clf.dim"] == "mine.yaml:7"


@pytest.mark.parametrize(
    ("recipe", "cap", "eta"), [("unidec", 0, 6), ("unidec_paper", 77, 6), ("unidec_release", 77, 5), ("depsl", 0, 5)]
)
def test_a_section_is_for_its_recipe_and_those_that_build_on_it(
    registry: Registry, mine: Path, recipe: str, cap: int, eta: int
) -> None:
    settings = resolve([f"recipe={recipe}", f"preset={mine}"], registry).settings
    assert (settings.pool.cap, settings.pool.eta) == (cap, eta)


def test_a_recipe_of_ones_own_takes_the_sections_of_its_bases(registry: Registry, mine: Path, tmp_path: Path) -> None:
    ours = write(tmp_path, "base: unidec_release\npool.cap: 5\nseed: 3\n", "ours.yaml")
    config = resolve([f"recipe={ours}", f"preset={mine}"], registry)
    assert (config.settings.pool.cap, config.settings.pool.eta, config.settings.seed) == (77, 5, 3)
    assert config.lineage == ("ours", "unidec_release", "unidec_paper", "unidec")


@pytest.mark.parametrize(
    "text",
    [
        "# Small.\n# group: small forms\nbase: unidec_paper\n",
        "base: unidec_paper\nstages: {first: {epochs: 1}, second: {epochs: 2}}\n",
    ],
)
def test_small_forms_and_stages_take_no_sections_of_their_bases(
    registry: Registry, mine: Path, tmp_path: Path, text: str
) -> None:
    ours = write(tmp_path, text, "ours.yaml")
    settings = resolve([f"recipe={ours}", f"preset={mine}"], registry).settings
    assert (settings.pool.beta, settings.pool.cap) == (7, 3000)
    mine.write_text(MINE.replace("unidec_paper:", "ours:"))
    assert resolve([f"recipe={ours}", f"preset={mine}"], registry).settings.pool.cap == 77


def test_options_of_a_part_that_was_replaced_are_skipped(registry: Registry, mine: Path, tmp_path: Path) -> None:
    """A dual encoder with a bag has neither a width of a classifier nor a length in tokens."""
    text = "base: unidec_paper\nencoder: bag\nhead: {clf: none}\nobjective.de_share: 1\n"
    ours = write(tmp_path, text, "ours.yaml")
    config = resolve([f"recipe={ours}", f"preset={mine}"], registry)
    assert (config.settings.pool.cap, config.make("head.de").dim, config.choice("encoder")) == (77, 24, "bag")
    mistaken = write(tmp_path, "recipes: {unidec_paper: {head.de.dimm: 3, pol.cap: 3}}\n", "mistaken.yaml")
    with pytest.raises(ConfigError, match=r"mistaken\.yaml:1:\d+: recipes\.unidec_paper\.head\.de\.dimm: unknown key"):
        resolve(["recipe=unidec_paper", f"preset={mistaken}"], registry)


def test_a_section_may_choose_a_part(registry: Registry, tmp_path: Path) -> None:
    text = "recipes: {unidec_paper: {sampler: {name: random, batch_size: 31}}}\n"
    config = resolve(["recipe=unidec_paper", f"preset={write(tmp_path, text)}"], registry)
    assert (config.choice("sampler"), config.make("sampler").batch_size) == ("random", 31)


def test_a_section_may_set_a_stage(registry: Registry, tmp_path: Path) -> None:
    ours = write(tmp_path, "base: unidec\nstages: {phi: {epochs: 3}, psi: {epochs: 4}}\n", "ours.yaml")
    preset = write(tmp_path, "recipes: {ours: {stages: {phi: {epochs: 5}}}}\n")
    config = resolve([f"recipe={ours}", f"preset={preset}"], registry)
    assert (config.earlier["phi"].settings.epochs, config.settings.epochs) == (5, 4)


def test_an_unknown_preset_is_refused_with_a_suggestion(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'LF-AmazonTitle-131K'.*mean 'LF-AmazonTitles-131K'"):
        resolve(["preset=LF-AmazonTitle-131K"], registry)
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such file"):
        resolve([f"preset={tmp_path / 'nowhere.yaml'}"], registry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sizes: {train: 3}\n", r"sizes: expected train, test, labels, each a whole number"),
        ("sizes: {train: 3, test: many, labels: 4}\n", r"sizes: expected train"),
        ("paper: {unidec: {UniDEC: {P@1: high}}}\n", r"paper: expected numbers"),
        ("paper: {unidec: 47.8}\n", r"paper: expected numbers"),
        ("paper: 47.8\n", r"paper: expected numbers"),
        ("recipe: unidec\n", r"mine\.yaml:1:1: recipe: cannot be set in a preset"),
        ("base: other\n", r"mine\.yaml:1:1: base: cannot be set in a preset"),
        ("epochs: ten\n", r"mine\.yaml:1:1: epochs: 'ten' should be a valid integer"),
        ("pool: [\n", r"malformed YAML"),
        ("- 3\n", r"must be a mapping"),
    ],
)
def test_a_malformed_preset_is_refused_with_its_place(
    registry: Registry, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve([f"preset={write(tmp_path, text)}"], registry)


def test_a_recipe_cannot_have_a_preset(registry: Registry, tmp_path: Path) -> None:
    file = write(tmp_path, "preset: LF-Amazon-131K\n")
    with pytest.raises(ConfigError, match=r"preset: cannot be set in a recipe \(pass preset=NAME on the command line"):
        resolve([f"recipe={file}"], registry)


def test_an_empty_preset_sets_nothing(registry: Registry, tmp_path: Path) -> None:
    for text in ("", "# Nothing.\n"):
        preset = find_preset(str(write(tmp_path, text)), registry)
        assert (preset.sizes, preset.settings, preset.sections, preset.paper) == ({}, [], {}, {})


def test_sets_are_found_by_their_sizes_and_of_two_by_the_name(registry: Registry) -> None:
    presets = all_presets(registry)
    sizes = {"train": 294_805, "test": 134_835, "labels": 131_073}

    def found(name: str) -> list[str]:
        return [preset.name for preset in presets_of_sizes(sizes, name, presets)]

    assert found("mine") == ["LF-Amazon-131K", "LF-AmazonTitles-131K"]
    assert found("lf_amazontitles_131k") == ["LF-AmazonTitles-131K"]
    assert presets_of_sizes(sizes | {"test": 134_834}, "LF-Amazon-131K", presets) == []


def test_a_preset_that_cannot_be_read_hides_no_other(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "from pathlib import Path\nimport xmclab\n@xmclab.hookimpl\n"
        "def xmclab_presets(): return {'bad': Path(__file__).parent / 'gone.yaml'}\n"
    )
    assert [preset.name for preset in all_presets(registry.with_file(file))] == sorted(SHIPPED)
    with pytest.raises(ConfigError, match="no such file"):
        resolve([f"plugin={file}", "preset=bad"], registry)


def test_rows_are_those_of_the_system_and_not_of_what_it_builds_on(registry: Registry, tmp_path: Path) -> None:
    """DePSL builds on `unidec`, whose row is another system's, even where the paper has no DePSL."""
    preset = find_preset(str(write(tmp_path, MINE)), registry)
    bare = find_preset(str(write(tmp_path, "paper: {unidec: {UniDEC: {P@1: 1}}}\n", "bare.yaml")), registry)

    def rows(of: object, recipe: str) -> list[str]:
        lineage = [layer.name for layer in reversed(recipe_layers(recipe, registry))]
        return list(rows_of(preset if of is preset else bare, lineage, [preset, bare]))

    assert rows(preset, "unidec_release") == rows(bare, "unidec_release") == ["UniDEC"]
    assert (rows(preset, "depsl"), rows(bare, "depsl")) == (["DePSL"], [])
    assert rows_of(preset, ["custom"], [preset]) == {}


CASES = [
    (name, recipe)
    for name in SHIPPED
    for recipe in sorted({*find_preset(name, load_registry({})).sections} & {*load_registry({}).names("recipe")})
]


def test_the_sets_of_the_paper_ship(registry: Registry) -> None:
    assert registry.names("preset") == sorted(SHIPPED)
    for name in SHIPPED:
        preset, lines = find_preset(name, registry), registry.preset(name).read_text().splitlines()
        assert bool(preset.sizes) == (name != "Query2Bid-450M")
        assert lines[0].startswith("# ")
        assert all("#" in line for line in lines if line.startswith(("sizes", "data", "evaluate")))


@pytest.mark.parametrize(("name", "recipe"), CASES)
def test_a_shipped_preset_resolves_with_every_recipe_that_it_names(registry: Registry, name: str, recipe: str) -> None:
    config = resolve([f"recipe={recipe}", f"preset={name}"], registry)
    stages = [*config.earlier.values(), config]
    sources = [source for stage in stages for _, _, source in stage.explain()]
    for entry in find_preset(name, registry).sections[recipe]:
        assert ": " in entry.source, entry.where
        assert entry.source in sources, entry.where


@pytest.mark.parametrize("name", SHIPPED)
def test_a_small_form_takes_texts_and_propensities_from_a_shipped_preset(registry: Registry, name: str) -> None:
    for recipe in ("unidec", "depsl"):
        before = values(registry, f"recipe={recipe}")
        after = values(registry, f"recipe={recipe}", f"preset={name}")
        changed = {key for key in after if after[key] != before.get(key)}
        texts = {"data.query_text", "data.label_text"}
        assert texts <= changed <= {*texts, "evaluate.propensity", "evaluate.k"}
        reader = resolve([f"recipe={recipe}", f"preset={name}", "reader=lf_json"], registry).make("reader")
        assert reader.text_of("query") == after["data.query_text"]
        assert reader.text_of("label") == after["data.label_text"] == "title"


def values(registry: Registry, *overrides: str) -> dict[str, object]:
    return {key: value for key, value, _ in resolve(overrides, registry).explain()}


def test_the_numbers_of_the_paper_are_in_force(registry: Registry) -> None:
    """|Q|, |L_B| and the width of each head, as the table of settings per data set has them."""
    expected = {
        "LF-Amazon-131K": (576, 3000, 384, 384),
        "LF-WikiSeeAlso-320K": (677, 3500, 384, 384),
        "LF-AmazonTitles-1.3M": (1098, 3000, 256, 256),
    }
    for name, numbers in expected.items():
        config = resolve(["recipe=unidec_paper", f"preset={name}"], registry)
        widths = [config.make(f"head.{head}").dim for head in ("de", "clf")]
        assert (config.make("sampler").batch_size, config.settings.pool.cap, *widths) == numbers
        sizes, asked = config.preset.sizes if config.preset else {}, 1024 if "1.3M" in name else 512
        release = resolve(["recipe=unidec_release", f"preset={name}"], registry)
        assert release.make("sampler").batch_size == asked
        assert round(sizes["train"] / 2 ** int(math.log2(sizes["train"] / asked))) == numbers[0]
