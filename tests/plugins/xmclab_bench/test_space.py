"""What tuning tries: declared by options, or read from a file."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from xmclab.api import linear, log, one_of
from xmclab.errors import ConfigError
from xmclab.host import Config, resolve
from xmclab.host.registry import default_registry
from xmclab.options import OneOf, Span
from xmclab_bench.space import Axis, declared, described, read_space, typed, values_of


def config(*overrides: str) -> Config:
    return resolve(["recipe=unidec", "data=tiny", *overrides], default_registry())


def test_options_declare_what_is_tried() -> None:
    found = described(declared(config()))
    assert found["encoder.lr"] == "log(0.001, 0.03)"
    assert found["encoder.feature_dropout"] == "linear(0, 0.5)"
    assert found["head.clf.bias"] == "one_of(none, label)"
    assert "encoder.dim" not in found


def test_a_loss_brings_its_own_space() -> None:
    found = described(declared(config("loss.clf=ds+focal")))
    assert found["loss.clf.focal.gamma"] == "linear(0, 4)"
    assert "loss.clf.focal.gamma" not in described(declared(config("loss.clf=ds+focal(gamma=1)")))


def test_what_was_typed_is_not_tried() -> None:
    found = described(declared(config("encoder.lr=0.01", "head.clf=none")))
    assert "encoder.lr" not in found
    assert not any(key.startswith("head.clf.") for key in found)


def test_the_value_in_use_is_always_among_those_tried(tmp_path: Path) -> None:
    recipe = tmp_path / "wide.yaml"
    recipe.write_text("base: unidec\nencoder.lr: 0.5\nhead.de.bias: prior\n")
    found = described(declared(resolve([f"recipe={recipe}"], default_registry())))
    assert found["encoder.lr"] == "log(0.001, 0.5)"
    assert found["head.de.bias"] == "one_of(none, label, prior)"


def test_a_file_says_what_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("encoder.lr: log(1e-3, 1e-2)\npool:\n  beta: linear(1, 10)\n")
    axes = read_space(file, config())
    assert axes == [Axis("encoder.lr", log(1e-3, 1e-2)), Axis("pool.beta", linear(1, 10), whole=True)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("encoder.lrr: log(1e-3, 1e-2)", "encoder.lr"),
        ("encoder.lr: 0.1 to 1", r"is not a space; write log"),
        ("loss.clf: [ds, bce]", "a space holds options"),
        ("sampler: [random, cluster]", "a space holds options"),
        ("encoder.lr: log(0.1, 0.01)", "must be smaller"),
        ("encoder.lr: log(0, 0.01)", "above 0"),
        ("encoder.lr: linear(-1, 1)", "greater than 0"),
        ("head.de.bias: [none, lable]", "lable"),
        ("pool.beta: [3]", "at least two"),
        ("{}", "nothing to try"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=said):
        read_space(file, config())


def test_draws_are_typed_as_overrides_and_stay_in_the_space() -> None:
    axes = [Axis("a", log(1e-3, 1e-1)), Axis("b", linear(2, 4), whole=True), Axis("c", one_of("none", True))]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [{axis.key: axis.draw(trial) for axis in axes} for trial in (study.ask() for _ in range(50))]
    assert all(1e-3 <= float(each["a"]) <= 1e-1 and len(each["a"].lstrip("0.").replace(".", "")) <= 3 for each in drawn)
    assert {each["b"] for each in drawn} == {"2", "3", "4"}
    assert {each["c"] for each in drawn} == {"none", "true"}
    assert sum(float(each["a"]) < 1e-2 for each in drawn) in range(15, 36)  # half of them, in the logarithm


def test_values_are_typed_as_overrides() -> None:
    assert [typed(value) for value in (0.123456, 3, True, None, "label")] == ["0.123", "3", "true", "none", "label"]


def test_a_span_and_a_choice_check_themselves() -> None:
    with pytest.raises(ValueError, match="smaller"):
        Span(1.0, 1.0)
    with pytest.raises(ValueError, match="two"):
        OneOf(("a",))


STAGES = """\
# Two stages.
base: unidec
stages:
  phi: {head.clf: none, epochs: 3}
  psi: {freeze: encoder, start: phi, epochs: 2, head.clf.table_lr: 0.02}
"""


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    recipe = tmp_path / "staged.yaml"
    recipe.write_text(STAGES)
    return recipe


def test_every_stage_tries_its_own_options_but_not_what_it_freezes(staged: Path) -> None:
    config = resolve([f"recipe={staged}", "stages.phi.head.de.temperature=0.1"], default_registry())
    found = described(declared(config))
    assert found["stages.phi.encoder.lr"] == "log(0.001, 0.03)"
    assert "stages.psi.head.clf.table_lr" in found
    assert not any(key.startswith(("stages.psi.encoder.", "stages.phi.head.clf.")) for key in found)
    assert not {"encoder.lr", "stages.phi.head.de.temperature"} & found.keys()
    assert "stages.psi.head.de.temperature" in found
    values = values_of(config)
    assert (values["stages.psi.head.clf.table_lr"], values["stages.phi.head.de.temperature"]) == (0.02, 0.1)


def test_a_key_without_a_stage_stands_for_all_that_have_it(staged: Path, tmp_path: Path) -> None:
    config, file = resolve([f"recipe={staged}"], default_registry()), tmp_path / "space.yaml"
    file.write_text("encoder.lr: log(1e-3, 1e-2)\nhead.de.lr: log(1e-3, 1e-2)\nstages.psi.pool.beta: [3, 10]\n")
    axes = read_space(file, config)
    places = ["stages.phi.encoder.lr", "stages.phi.head.de.lr", "stages.psi.head.de.lr", "stages.psi.pool.beta"]
    assert [axis.key for axis in axes] == places
    drawn = [f"{axis.key}={axis.draw(optuna.trial.FixedTrial({axis.key: '3'}))}" for axis in axes if "beta" in axis.key]
    again = resolve([f"recipe={staged}", *drawn], default_registry())
    assert (again.settings.pool.beta, again.earlier["phi"].settings.pool.beta) == (3, 10)
