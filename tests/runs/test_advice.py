"""Notes on runs that would not do what they seem to."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import Settings
from xmclab.runs.advice import advice, advice_on_validation, closing_advice, warnings
from xmclab.runs.run import run
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
        (
            ["head.clf.dim=32", "optim.no_decay=LayerNorm,own_row"],
            "optim.no_decay=LayerNorm,own_row: no parameter has such a name; there are encoder.embedding.weight, ",
        ),
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
        ["optim.no_decay=LayerNorm,psi"],
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


def step(epoch: int, **terms: float) -> dict[str, Any]:
    return {"event": "step", "epoch": epoch, "terms": {name.replace("_", "/"): value for name, value in terms.items()}}


def test_a_term_that_has_not_moved_is_noted() -> None:
    records = [
        {"event": "start"},
        step(0, de_ds=2.0, clf_bce=0.5),
        step(0, de_ds=4.0, clf_bce=0.7),
        step(1, de_ds=9.0, clf_bce=9.0),
        step(2, de_ds=2.5, clf_bce=0.601),
    ]
    [text] = closing_advice(records, {}, {})
    assert text.startswith("loss.clf: bce has not moved (0.6 in the first epoch, 0.601 in the last)")
    assert closing_advice(records[:3], {}, {}) == [], "one epoch says nothing"


def test_a_head_below_a_baseline_is_noted() -> None:
    metrics = {"de": {"P@1": 20.0}, "clf": {"P@1": 40.0}, "de+clf": {"P@1": 10.0}}
    baselines = {"tfidf_labels": {"P@1": 12.0}, "tfidf_neighbours": {"P@1": 30.0}}
    [text] = closing_advice([], metrics, baselines)
    assert text == ("de: P@1 20.00 is below that of tfidf_neighbours (30.00), which is not trained; clf has 40.00")
    assert closing_advice([], metrics, {}) == []


def test_a_baseline_that_beats_the_run_is_noted_with_all_numbers() -> None:
    metrics = {"de": {"P@1": 20.0}, "clf": {"P@1": 24.0}, "de+clf": {"P@1": 26.5}}
    baselines = {"tfidf_labels": {"P@1": 12.0}, "tfidf_neighbours": {"P@1": 30.0}}
    lost = (
        "tfidf_neighbours, which is not trained, beats this run on 40 test queries: its P@1 is 30.00, "
        "that of the best search, de+clf, is 26.50; "
    )
    [text] = closing_advice([], metrics, baselines, "40 test queries")
    assert text.startswith(f"{lost}train longer")
    validated = {"epoch": 2, "last": 7, "metric": "P@1", "metrics": metrics, "queries": 40}
    [text] = closing_advice([], metrics, baselines, "40 test queries", validated)
    assert text.startswith(f"{lost}epoch 2 of 7 was the best, so training longer does not help")
    [text] = closing_advice([], metrics, baselines, "40 test queries", validated, steps=7)
    assert text == f"{lost}7 steps are few: lower sampler.batch_size or train longer, or check the data"
    [text] = closing_advice([], metrics, baselines, "40 test queries", validated | {"last": 2})
    assert text.startswith(f"{lost}train longer")
    assert closing_advice([], {**metrics, "nn": {"P@1": 31.0}}, {"tfidf_labels": {"P@1": 12.0}}) == []


def test_a_search_that_validates_better_than_the_last_one_is_noted() -> None:
    metrics = {"de": {"P@1": 20.0}, "de+clf": {"P@1": 50.0}, "de+clf+nn": {"P@1": 44.0}}
    validation = {"epoch": 1, "last": 1, "metric": "P@1", "metrics": metrics, "queries": 100}
    [text] = closing_advice([], metrics, {}, "", validation)
    assert text == (
        "on the validation queries, de+clf has P@1 50.00 and de+clf+nn, which predicts by default, 44.00: "
        "predict with --head de+clf"
    )
    few = validation | {"queries": 60}  # a standard error of 6.45
    assert closing_advice([], metrics, {}, "", few) == []


def test_a_run_ends_with_its_notes(tmp_path: Path) -> None:
    said = io.StringIO()
    overrides = ["data=tiny", "encoder.dim=8", "head.de.dim=8", "head.clf.dim=8", "epochs=2", "encoder.lr=1e-9"]
    config = resolve([*overrides, "head.de.lr=1e-9", "head.clf.lr=1e-9", "head.clf.table_lr=1e-9"], default_registry())
    result = run(config, tmp_path / "run", Console(file=said, width=300))
    assert len(result.document["notes"]) > 2
    for text in result.document["notes"]:
        assert f"note: {text}\n" in said.getvalue()


def settings(*overrides: str) -> Settings:
    return resolve(["recipe=unidec", *overrides], default_registry()).settings


@pytest.mark.parametrize(
    ("overrides", "patience", "by_default", "expected"),
    [
        ([], None, True, []),
        (["stop.patience=3"], None, True, ["stop.patience: no effect without validation"]),
        ([], 5, True, ["validation is on, so the best epoch is kept, and training stops 5 epochs after it"]),
        (["epochs=4"], 5, True, ["validation is on, so the best epoch is kept (validate.share=0"]),
        (["validate.share=0.1"], 0, False, []),
        (["validate.share=0.1", "evaluate.every=1"], 0, False, ["evaluate.every: no effect, as with validation"]),
    ],
)
def test_how_the_epoch_is_chosen_is_said(
    overrides: list[str], patience: int | None, by_default: bool, expected: list[str]
) -> None:
    found = advice_on_validation(settings(*overrides), patience, by_default)
    assert len(found) == len(expected)
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["sampler.batch_size=2048", "epochs=2"],
            "sampler.batch_size=2048 is more than the 1262 training queries, so each epoch is one step, 2 in all; "
            "sampler.batch_size=16 makes 158",
        ),
        (
            ["sampler.batch_size=700", "epochs=3"],
            "only 6 steps for 1262 training queries; sampler.batch_size=32 makes 120",
        ),
        (["sampler.batch_size=700", "epochs=9"], None),
        (["sampler.batch_size=128", "epochs=1"], None),
    ],
)
def test_batches_too_large_for_the_data_are_a_warning(overrides: list[str], expected: str | None) -> None:
    config = resolve(
        ["recipe=unidec", "data=tiny", "encoder.dim=32", "head.de.dim=32", "head.clf.dim=32", *overrides],
        default_registry(),
    )
    trainer = Trainer(config, open_dataset("tiny", "title", default_registry()), prepares=False)
    assert warnings(trainer) == ([expected] if expected else [])


def test_a_plan_that_is_not_a_partition_is_a_warning() -> None:
    config = resolve(["recipe=unidec", "data=tiny", "encoder.dim=8", "head.clf=none"], default_registry())
    trainer = Trainer(config, open_dataset("tiny", "title", default_registry()), prepares=False)
    assert warnings(trainer) == []
    trainer.planned = 0, [trainer.rows_N[:-30], trainer.rows_N[:2]]
    assert warnings(trainer) == [
        "sampler random drops 30 and repeats 2 of the 1,262 training queries with labels in an epoch, "
        "which should have each of them once: see xmclab check sampler:random"
    ]
