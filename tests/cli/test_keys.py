"""Keys as they are typed: recognised as options, and a recipe that nobody named."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--epochs", "3"], "--epochs 3: keys have no dashes (use epochs=3)"),
        (["--epochs=3"], "--epochs=3: keys have no dashes (use epochs=3)"),
        (["--loss.clf", "ds+bce"], "--loss.clf ds+bce: keys have no dashes (use loss.clf=ds+bce)"),
        (["--batch-size", "64"], "--batch-size 64: keys have no dashes (use sampler.batch_size=64)"),
        (["--recipe", "unidec"], "--recipe unidec: keys have no dashes (use recipe=unidec)"),
        (["--beta"], "--beta: keys have no dashes (use pool.beta=...)"),
        (
            ["seed=0,1,2"],
            "seed: '0,1,2' should be a valid integer, unable to parse string as an integer "
            "(a run has one seed; compare several: xmclab bench losses seed=0,1,2)",
        ),
    ],
)
def test_what_was_meant_is_said(call: Any, words: list[str], error: str) -> None:
    assert call("run", *words) == (2, "", f"error: {error}\n")


def test_all_of_them_are_said_for_every_command_with_keys(call: Any) -> None:
    code, _, err = call("bench", "losses", "--epochs", "3", "--data", "tiny")
    assert (code, err.count("error: ")) == (2, 2)
    assert "use data=tiny" in err
    code, _, err = call("predict", "somewhere", "--epochs", "3")
    assert (code, "No such option: --epochs" in err) == (2, True)
    assert "No such option: --nonsense" in call("run", "--nonsense", "3")[2]


def test_unidec_is_the_recipe_of_a_run_without_one(call: Any) -> None:
    code, out, err = call("run", "--dry-run")
    assert (code, err) == (0, "note: no recipe given: recipe=unidec\n")
    assert call("run", "recipe=unidec", "--dry-run") == (0, out, "")


@pytest.mark.parametrize("recipe", ["recipe=unidec", "recipe=depsl", "recipe=none"])
def test_a_recipe_that_is_given_is_taken(call: Any, recipe: str) -> None:
    assert call("run", recipe, "--dry-run")[2] == ""
