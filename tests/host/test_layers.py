"""Layers of a config, and recipes with stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from xmclab.errors import ConfigError
from xmclab.host.config import Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve

STAGED = """# two stages
base: unidec
epochs: 7
pool: {beta: 2}
stages:
  phi: {head.clf: none, epochs: 3, loss: {de: triplet+bce, de.bce.weight: 0.5}}
  psi: {start: phi, freeze: [encoder, head.de], sampler: cluster, loss: {clf: bce, clf.bce.weight: 0.25}}
"""


def staged(tmp_path: Path, registry: Registry, *overrides: str, text: str = STAGED) -> tuple[Config, Config]:
    """The configs of both stages."""
    file = tmp_path / "staged.yaml"
    file.write_text(text)
    config = resolve([f"recipe={file}", *overrides], registry)
    assert [*config.earlier, config.stage] == ["phi", "psi"]
    return config.earlier["phi"], config


def test_a_stage_has_its_own_values_and_those_of_all(tmp_path: Path, registry: Registry) -> None:
    phi, psi = staged(tmp_path, registry)
    assert (phi.settings.epochs, psi.settings.epochs) == (3, 7)
    assert (phi.settings.pool.beta, psi.settings.pool.beta) == (2, 2)
    assert (phi.heads, psi.heads) == (("de",), ("de", "clf"))
    assert (phi.choice("sampler"), psi.choice("sampler")) == ("random", "cluster")
    assert (phi.settings.start.run, psi.settings.start.run) == ("", "phi")
    assert psi.settings.freeze == ("encoder", "head.de")
    assert {term.name: term.weight for term in phi.losses["de"].terms} == {"triplet": 1.0, "bce": 0.5}
    assert [term.name for term in psi.losses["de"].terms] == ["ds"]


def test_a_later_layer_beats_the_stages_of_an_earlier_one(tmp_path: Path, registry: Registry) -> None:
    phi, psi = staged(tmp_path, registry, "epochs=1", "stages.psi.pool.beta=9")
    assert (phi.settings.epochs, psi.settings.epochs) == (1, 1)
    assert (phi.settings.pool.beta, psi.settings.pool.beta) == (2, 9)
    phi, psi = staged(tmp_path, registry, "stages.phi.epochs=5", "epochs=1")
    assert (phi.settings.epochs, psi.settings.epochs) == (5, 1)  # within a layer, that of the stage


def test_a_stage_builds_on_a_recipe_of_its_own(tmp_path: Path, registry: Registry) -> None:
    text = "# two bases\nstages:\n  phi: {base: depsl, epochs: 2}\n  psi: {base: unidec, start: phi}\n"
    phi, psi = staged(tmp_path, registry, text=text)
    assert phi.heads == ("de",)
    assert phi.settings.epochs == 2
    assert psi.settings.epochs == resolve(["recipe=unidec"], registry).settings.epochs
    assert psi.choice("search") == "neighbours"


def test_the_saved_config_of_stages_is_a_recipe_for_them(tmp_path: Path, registry: Registry) -> None:
    """Also where a stage would inherit an option of a loss that only the other one sets."""
    text = STAGED.replace("clf: bce, clf.bce.weight: 0.25", "de: triplet+bce, de.triplet.margin: 0.7")
    _, config = staged(tmp_path, registry, text=text)
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
    again = resolve([f"recipe={saved}"], registry)
    assert again.settings == config.settings
    assert again.losses["de"].terms == config.losses["de"].terms
    for stage, known in zip(again.earlier.values(), config.earlier.values(), strict=True):
        assert stage.settings == known.settings
        assert [stage.choice(slot) for slot in stage.parts] == [known.choice(slot) for slot in known.parts]
        options = [[(t.weight, t.options.get("margin", 0.3)) for t in c.losses["de"].terms] for c in (stage, known)]
        assert options[0] == options[1] == [(1.0, 0.3), (0.5, 0.3)]


def test_a_stage_that_the_recipe_lacks_is_refused(tmp_path: Path, registry: Registry) -> None:
    """Trained in its place, after the others, it would be the result."""
    with pytest.raises(ConfigError) as caught:
        staged(tmp_path, registry, "stages.psy.epochs=3", "stages.psy.seed=1", "stages.psi.epochz=3")
    assert [str(problem) for problem in caught.value.problems] == [
        "stages.psy.seed: no stage 'psy' (did you mean 'psi'?)",
        "stages.psi.epochz: unknown key (did you mean 'epochs'?)",
    ]
    preset = tmp_path / "ours.yaml"
    preset.write_text("stages: {chi: {epochs: 2}}\n")
    with pytest.raises(ConfigError, match=r"ours.yaml:1.*no stage 'chi'"):
        staged(tmp_path, registry, f"preset={preset}")


def test_each_stage_says_who_set_its_values(tmp_path: Path, registry: Registry) -> None:
    _, config = staged(tmp_path, registry, "stages.phi.optim.clip=3")
    sources = {key: source for key, _, source in config.explain()}
    assert sources["stages.phi.optim.clip"] == "override"
    assert sources["stages.phi.epochs"] == "staged.yaml:6"
    assert sources["epochs"] == "staged.yaml:3"
    assert sources["start"] == "staged.yaml:7"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stages:\n  a: {epochz: 3}\n", "unknown key"),
        ("stages:\n  a: {base: nope}\n", "unknown recipe 'nope'"),
        ("stages:\n  a: {freeze: [encoders]}\n", "encoders"),
        ("stages:\n  a: {base: staged_already.yaml}\n", "has stages itself"),
    ],
)
def test_problems_of_stages_name_the_line(tmp_path: Path, registry: Registry, text: str, problem: str) -> None:
    (tmp_path / "staged_already.yaml").write_text(STAGED)
    file = tmp_path / "bad.yaml"
    file.write_text("# bad\n" + text.replace("staged_already", str(tmp_path / "staged_already")))
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve([f"recipe={file}"], registry)
    assert any("bad.yaml:3" in str(each) for each in caught.value.problems), str(caught.value)
