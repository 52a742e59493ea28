"""One folder of recipes, one hook: the file name is the recipe's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import xmclab_unidec
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor

FOLDER = Path(xmclab_unidec.__file__).parent / "recipes"


def test_every_file_is_a_recipe_and_there_are_no_others():
    ours = {c.name for c in default_registry().claims if c.kind == "recipe" and c.origin.plugin == "unidec"}
    assert ours == {file.stem for file in FOLDER.iterdir()}
    assert {"unidec", "unidec_paper", "unidec_release", "unidec_transformer", "depsl", "depsl_paper"} == ours


@pytest.mark.parametrize("name", sorted(xmclab_unidec.xmclab_recipes()))
def test_a_recipe_is_read_from_its_file_and_resolves(name):
    assert default_registry().recipe(name) == FOLDER / f"{name}.yaml"
    assert resolve([f"recipe={name}", "data=tiny"], default_registry()).recipe == name


def test_depsl_is_unidec_without_the_classifier():
    unidec, depsl = (resolve([f"recipe={name}", "data=tiny"], default_registry()) for name in ("unidec", "depsl"))
    assert unidec.parts["head.clf"] is not None
    assert depsl.parts["head.clf"] is None


def test_depsl_as_in_the_paper_is_its_dual_encoder_in_one_direction():
    unidec, depsl = (
        resolve([f"recipe={name}", "data=tiny"], default_registry()) for name in ("unidec_paper", "depsl_paper")
    )
    assert (depsl.heads, depsl.settings.objective.de_share, depsl.objective("de").q2l_share) == (("de",), 1, 1)
    assert depsl.make("head.de").dim == 512
    assert depsl.settings.pool == unidec.settings.pool
    assert [depsl.choice(slot) for slot in ("encoder", "sampler", "miner")] == ["hf", "cluster", "ann"]


def test_a_transformer_of_any_width_trains_and_is_exported(
    train: Callable[..., Path], tiny_bert: Path, tmp_path: Path
) -> None:
    encoder = ("recipe=unidec_transformer", f"encoder.model={tiny_bert}")
    run = train(tmp_path / "run", "epochs=2", encoder=encoder)
    events = [json.loads(line)["event"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert "refresh" in events
    assert list(json.loads((run / "result.json").read_text())["metrics"])[-1] == "de+clf+nn"
    predictor = open_predictor(run, default_registry(), "cpu")
    assert {predictor.space.vectors(head).shape[1] for head in ("de", "clf")} == {predictor.model.encoder.width}
    write_export(predictor, run, tmp_path / "export", None)
    exported = open_predictor(tmp_path / "export", default_registry(), "cpu")
    expected, found = (each.rank(["red", "green and blue"], 5, "de+clf+nn") for each in (predictor, exported))
    np.testing.assert_allclose(found.scores_NK, expected.scores_NK, atol=1e-6)
