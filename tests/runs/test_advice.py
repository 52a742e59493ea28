"""Notes on runs that would not do what they seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.advice import advice
from xmclab.training.trainer import Trainer


def notes(*overrides: str, bag: tuple[str, ...] = ("encoder.dim=32",)) -> list[str]:
    config = resolve(["recipe=unidec", "data=tiny", *bag, "head.de.dim=32", *overrides], default_registry())
    return advice(Trainer(config, open_dataset("tiny", "title", default_registry())))


def test_a_recipe_as_it_is_needs_no_note() -> None:
    assert notes("head.clf.dim=32") == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["head.clf.dim=32", "epochs=2", "refresh_every=2"],
            "no refresh falls into this run (epochs=2, refresh_every=2)",
        ),
        (["head.clf.dim=16"], "head.clf.init=identity keeps 16 of the encoder's 32 numbers"),
        (["head.clf.dim=40"], "head.clf.init=identity pads 32 numbers to 40"),
        (["head.clf.dim=32", "loss.clf=bce", "head.clf.bias=none"], "set head.clf.bias=label"),
        (["head.clf.dim=32", "head.clf.rows=xavier", "head.clf.table_lr=1e-4"], "hardly move random label rows"),
    ],
)
def test_a_note_says_what_will_happen(overrides: list[str], expected: str) -> None:
    (found,) = notes(*overrides)
    assert expected in found


@pytest.mark.parametrize(
    "overrides",
    [
        ["epochs=2", "refresh_every=1"],
        ["epochs=2", "refresh_every=2", "miner=none"],
        ["epochs=2", "refresh_every=2", "pool.eta=0"],
        ["head.clf.init=default", "head.clf.dim=16"],
        ["loss.clf=ds+bce", "head.clf.bias=none"],
        ["loss.clf=bce", "head.clf.bias=label"],
        ["head.clf.rows=xavier", "head.clf.table_lr=1e-1"],
    ],
)
def test_no_note_where_the_choice_is_sound(overrides: list[str]) -> None:
    assert notes("head.clf.dim=32", *overrides) == []


def test_a_transformer_in_a_recipe_for_a_bag_is_pointed_to_its_own_recipes(tiny_bert: Path) -> None:
    found = notes("encoder=hf", f"encoder.model={tiny_bert}", "head.clf.dim=32", bag=())
    (text,) = [text for text in found if "is for encoder=bag" in text]
    assert "unidec_paper" in text
    assert "unidec_transformer" in text


def test_the_recipe_for_a_transformer_needs_no_note(tiny_bert: Path) -> None:
    config = resolve(["recipe=unidec_transformer", f"encoder.model={tiny_bert}", "data=tiny"], default_registry())
    assert advice(Trainer(config, open_dataset("tiny", "title", default_registry()))) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["miner=random", "pool.eta=923"], "pool.eta=923: there are only 922 labels; no more are used"),
        (["evaluate.depth=923"], "evaluate.depth=923: there are only 922 labels; no more are used"),
        (
            ["search=neighbours", "search.neighbours=1263"],
            "search.neighbours=1263: there are only 1262 training queries; no more are used",
        ),
    ],
)
def test_more_than_there_is_gets_a_note(overrides: list[str], expected: str) -> None:
    assert expected in notes("head.clf.dim=32", *overrides)
    less = [word.replace("923", "922").replace("1263", "1262") for word in overrides]
    assert not [text for text in notes("head.clf.dim=32", *less) if "there are only" in text]
