"""The recipes of other systems: what each is made of, where its numbers come from, and that its small form learns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import xmclab_systems
from xmclab.host.recipes import group, read_recipe
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run

FOLDER = Path(xmclab_systems.__file__).parent / "recipes"
NAMES = sorted(file.stem for file in FOLDER.iterdir())
SMALL = [name for name in NAMES if name.endswith("_small")]
PUBLISHED = [name for name in NAMES if name not in SMALL]
LONGEST = 40  # lines of a recipe
P_AT_1 = 30  # of a small form on `tiny`, in percent; TF-IDF neighbours have 36
MSMARCO = "sentence-transformers/msmarco-distilbert-base-v4"

# What stands out in each system's paper and program: keys, those of an earlier stage with its name in front. Short
# names of keys are written out by `key_of`.
NGAME_ENCODER: dict[str, Any] = {
    "encoder": "hf", "encoder.model": MSMARCO, "encoder.pooling": "mean", "encoder.lr": 2e-4,
    "de": "dual_encoder", "de.projection": "none", "de.normalise": True, "de.temperature": 1, "clf": "none",
    "sampler": "cluster_mix", "sampler.batch_size": 1600, "sampler.cluster_size": 1,
    "refresh_from": 10, "refresh_every": 5, "epochs": 300, "miner": "none", "pool.beta": 1, "pool.eta": 0,
    "reduction.de": "pol", "loss.de": "triplet", "loss.de.triplet.margin": 0.3, "loss.de.triplet.negatives": 10,
    "loss.de.triplet.softmax": 0.1, "optim.schedule": "linear", "q2l": 1,
}  # fmt: skip
NGAME_CLASSIFIER: dict[str, Any] = {
    "start": "phi", "freeze": ["encoder", "head.de"], "epochs": 100, "search": "heads",
    "clf": "classifier", "clf.projection": "none", "clf.rows": "texts", "clf.dropout": 0.5, "clf.normalise": True,
    "clf.table": "adamw", "clf.table_lr": 1e-3, "sampler.batch_size": 2048, "miner": "none", "pool.eta": 0,
    "reduction.clf": "psl", "loss.clf": "triplet", "loss.clf.triplet.margin": 0.2, "loss.clf.triplet.negatives": 5,
    "loss.clf.triplet.positives": 3, "clf_q2l": 1,
}  # fmt: skip
ALL_LABELS: dict[str, Any] = {
    "de": "none", "clf": "classifier", "clf.projection": "none", "clf.bias": "none", "clf.normalise": False,
    "clf.normalise_at_search": False, "clf.rows": "normal", "clf.rows_std": 0.02, "clf.dropout": 0.85,
    "clf.table_lr": 0.05, "sampler": "random", "sampler.batch_size": 512, "transform": "labels_as_queries",
    "reduction.clf": "ova", "reduction.clf.cells": "sum", "loss.clf": "bce", "clf_q2l": 1, "encoder.lr": 1e-5,
    "encoder.model": MSMARCO, "optim.schedule": "cosine",
}  # fmt: skip
DEXML: dict[str, Any] = {
    "encoder": "hf", "encoder.model": "distilbert-base-uncased", "encoder.pooling": "cls", "encoder.max_length": 32,
    "encoder.lr": 3e-4, "de.projection": "none", "de.normalise": True, "de.temperature": 0.05, "clf": "none",
    "sampler": "random", "sampler.batch_size": 3000, "loss.de": "ds", "q2l": 1, "epochs": 100,
    "optim.schedule": "linear", "optim.warmup": 0.1, "optim.decay": 0.01,
}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "dpr": {
        "encoder": "hf", "encoder.model": "bert-base-uncased", "encoder.pooling": "cls", "encoder.towers": "separate",
        "encoder.lr": 1e-5, "de.projection": "none", "de.normalise": False, "de.temperature": 1, "clf": "none",
        "sampler": "random", "sampler.batch_size": 128, "miner": "bm25", "pool.beta": 1, "pool.eta": 1,
        "reduction.de": "pol", "loss.de": "softmax", "optim.decay": 0, "q2l": 1,
    },
    "ance": {
        "encoder": "hf", "encoder.model": "roberta-base", "encoder.towers": "shared", "de.projection": "linear",
        "de.activation": "layer_norm", "de.normalise": False, "de.temperature": 1, "clf": "none", "sampler": "random",
        "miner": "ann", "miner.depth": 200, "pool.beta": 1, "pool.eta": 1, "refresh_every": 1, "reduction.de": "pol",
        "loss.de": "snm", "loss.de.snm.hardest": 1, "q2l": 1,
    },
    "simcse": {
        "encoder": "hf", "encoder.model": "bert-base-uncased", "encoder.pooling": "cls", "de.activation": "tanh",
        "de.project_in": "training", "de.normalise": True, "de.temperature": 0.05, "clf": "none", "sampler": "random",
        "miner": "none", "pool.beta": 1, "pool.eta": 0, "reduction.de": "pol", "loss.de": "softmax", "q2l": 1,
    },
    "ngame_phi": NGAME_ENCODER,
    "ngame": {**NGAME_CLASSIFIER, **{f"phi/{key}": value for key, value in NGAME_ENCODER.items()}},
    "dexa": {
        **NGAME_CLASSIFIER,
        **{f"phi/{key}": value for key, value in NGAME_ENCODER.items()},
        "phi/de": "label_clusters", "phi/de.clusters": 65536, "phi/de.private": 1000, "de": "label_clusters",
        "phi/optim.no_decay": ["own_rows"], "phi/optim.decay": 0.01, "phi/sampler.cluster_size": 4,
    },
    "dexml": {
        **DEXML, "miner": "ann", "miner.depth": 100, "pool.beta": 1, "pool.eta": 1, "refresh_every": 5,
        "reduction.de": "pol",
    },
    "dexml_full": {**DEXML, "miner": "none", "pool.eta": 0, "reduction.de": "pal_n"},
    "renee": {
        **ALL_LABELS, **{f"phi/{key}": value for key, value in NGAME_ENCODER.items()}, "start": "phi",
        "start.parts": ["encoder"], "freeze": [], "clf.table": "momentum", "clf.table_momentum": 0.9,
        "optim.table_schedule": "cosine", "phi/transform": "none",
    },
    "elmo": {**ALL_LABELS, "clf.table": "sgd", "clf.table_dtype": "bfloat16"},
    "siamesexml": {
        "phi/encoder": "bag", "phi/encoder.dim": 300, "phi/de": "dual_encoder", "phi/de.normalise": True,
        "phi/loss.de": "k_prob_contrastive", "phi/q2l": 0.5, "phi/pool.eta": 0, "phi/sampler.batch_size": 4095,
        "start": "phi", "freeze": ["encoder"], "de": "label_residual", "de.rows": "zeros", "de.unit_texts": True,
        "de.normalise": True, "de.projection": "residual", "loss.de": "prob_contrastive", "miner": "ann",
        "miner.depth": 500, "clf": "none", "optim.decay": 0,
    },
    "decaf": {
        "encoder": "bag", "encoder.dim": 300, "de": "label_residual", "de.projection": "residual",
        "de.unit_texts": False, "de.normalise": False, "de.table": "adamw", "clf": "none", "loss.de": "bce",
        "sampler": "random", "miner": "ann", "miner.depth": 200, "start": "phi", "freeze": [], "optim.decay": 0,
        "phi/de": "dual_encoder", "phi/miner": "random",
    },
    "gandalf": {
        "transform": "gandalf", "de": "none", "clf": "classifier", "loss.clf": "bce", "reduction.clf": "ova",
        "sampler": "random",
    },
}  # fmt: skip
SHORT = {"de": "head.de", "clf": "head.clf", "q2l": "objective.de_q2l_share", "clf_q2l": "objective.clf_q2l_share"}


def key_of(short: str) -> str:
    stage, _, key = short.rpartition("/")
    first, dot, option = key.partition(".")
    return f"{f'stages.{stage}.' if stage else ''}{SHORT.get(first, first)}{dot}{option}"


def explained(recipe: str, *overrides: str) -> dict[str, tuple[Any, str]]:
    found = resolve([f"recipe={recipe}", "data=tiny", *overrides], default_registry()).explain()
    return {key: (value, source) for key, value, source in found}


def test_every_file_is_a_recipe_of_its_group() -> None:
    ours = {c.name for c in default_registry().claims if c.kind == "recipe" and c.origin.plugin == "systems"}
    assert ours == set(NAMES)
    groups = {name: group(FOLDER / f"{name}.yaml") for name in NAMES}
    assert groups == {**dict.fromkeys(PUBLISHED, "rivals"), **dict.fromkeys(SMALL, "small forms")}
    assert {f"{name}_small" for name in PUBLISHED} == set(SMALL)
    assert set(SYSTEMS) == set(PUBLISHED)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= LONGEST
    assert re.match(r"# \S.*[.:]", lines[0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_is_made_as_its_system(name: str) -> None:
    found = explained(name)
    expected = {key_of(short): value for short, value in SYSTEMS[name].items()}
    assert {key: found[key][0] for key in expected} == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_of_a_recipe_has_a_source(name: str) -> None:
    numbers = [entry for entry in read_recipe(FOLDER / f"{name}.yaml") if is_number(entry.value)]
    assert [entry.key for entry in numbers if not re.search(r"\.yaml:\d+: \S", entry.source)] == []


def is_number(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", value)) and float(value) != 0


@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_changes_no_part_but_the_encoder(name: str) -> None:
    small, full = explained(name), explained(name.removesuffix("_small"))
    parts = re.compile(r"(stages\.\w+\.)?(head\.\w+|reduction\.\w+|loss\.\w+|sampler|miner|search|transform)")
    assert {key: value for key, (value, _) in small.items() if parts.fullmatch(key)} == {
        key: value for key, (value, _) in full.items() if parts.fullmatch(key)
    }
    assert {value for key, (value, _) in small.items() if re.fullmatch(r"(stages\.\w+\.)?encoder", key)} == {"bag"}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_form_learns(name: str, tmp_path: Path) -> None:
    config = resolve([f"recipe={name}", "data=tiny", "baseline=none"], default_registry())
    metrics = run(config, tmp_path / "run", Console(quiet=True)).metrics
    assert max(values["P@1"] for values in metrics.values()) >= P_AT_1


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_trains_with_a_transformer(name: str, tmp_path: Path, tiny_bert: Path) -> None:
    """A short run of every published form, stages and all, on a network of one layer."""
    stages = [f"stages.{stage}." for stage in ("phi", "psi", "renee") if f"stages.{stage}." in text_of(name)]
    places = stages or [""]
    settings = [f"{place}{key}" for place in places for key in ("epochs=2", "sampler.batch_size=512")]
    small = f"encoder.model={tiny_bert}" if explained(name)["encoder"][0] == "hf" else "encoder.dim=16"
    config = resolve([f"recipe={name}", "data=tiny", "baseline=none", small, *settings], default_registry())
    result = run(config, tmp_path / "run", Console(quiet=True))
    assert all(0 <= values["P@1"] <= 100 for values in result.metrics.values())


def text_of(name: str) -> str:
    return " ".join(f"{key} " for key in explained(name))
