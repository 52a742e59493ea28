"""Every part that is installed keeps the laws of its kind."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from xmclab.host.hookspecs import KINDS
from xmclab.host.registry import default_registry
from xmclab_kit import examine

EVERY = [(kind, name) for kind in KINDS for name in default_registry().names(kind)]
VARIANTS = [
    ("loss", "ds", {"temperature": 0.05}),
    ("reduction", "ova", {"cells": "sum"}),
    ("reduction", "ova_n", {"cells": "sum"}),
    ("sampler", "cluster", {"depth": "release"}),
    ("sampler", "cluster", {"method": "k_means"}),
    ("sampler", "cluster_mix", {"cluster_size": 2, "double_at": (2,), "method": "k_means"}),
    ("index", "faiss", {"type": "hnsw"}),
    ("encoder", "bag", {"hidden": 8, "feature_dropout": 0.3}),
    ("encoder", "bag", {"towers": "separate"}),
    ("encoder", "bag", {"towers": "residual"}),
    ("encoder", "hf", {"towers": "separate", "packing": "off"}),
    ("encoder", "hf", {"pooling": "cls"}),
    ("head", "dual_encoder", {"dim": 6, "activation": "none", "init": "identity"}),
    ("head", "dual_encoder", {"dim": 0, "projection": "none", "activation": "none", "normalise": False}),
    ("head", "dual_encoder", {"dim": 0, "projection": "residual", "activation": "layer_norm", "init": "xavier"}),
    ("head", "dual_encoder", {"project_in": "training", "bias": "label"}),
    ("head", "classifier", {"dim": 0, "projection": "none", "rows": "normal", "normalise_at_search": False}),
    ("head", "classifier", {"dim": 0, "projection": "residual", "rows": "default"}),
    ("head", "classifier", {"rows": "texts", "normalise": True}),
    ("head", "classifier", {"rows": "texts+queries", "table_dtype": "bfloat16"}),
    ("head", "dual_encoder", {"bias": "label", "learn_temperature": True}),
    ("head", "dual_encoder", {"bias": "prior", "popularity": 0.1, "normalise_at_search": True}),
    ("head", "classifier", {"bias": "mean", "normalise": True, "learn_temperature": True, "popularity": 0.1}),
    ("head", "classifier", {"bias": "label", "rows": "texts", "table_dtype": "bfloat16"}),
    ("search", "neighbours", {"neighbours": 1, "tail": 0.5, "weight": 0.0}),
]


def assert_keeps_the_laws(kind: str, name: str, options: dict[str, object]) -> None:
    verdicts = examine(default_registry(), kind, name, options)
    broken = [str(verdict.violation) for verdict in verdicts if verdict.violation]
    assert not broken, "\n".join(broken)
    not_kept = {verdict.law.name: verdict.why for verdict in verdicts if verdict.state == "not kept"}
    assert not_kept == getattr(default_registry().get(kind, name), "laws_not_kept", {})


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
def test_it_keeps_the_laws(
    kind: str, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mlflow":  # it is imported when the tracker is made
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    model = {"model": str(request.getfixturevalue("tiny_bert"))} if (kind, name) == ("encoder", "hf") else {}
    assert_keeps_the_laws(kind, name, model)


@pytest.mark.parametrize(("kind", "name", "options"), VARIANTS, ids=str)
def test_it_keeps_the_laws_with_other_options(
    kind: str, name: str, options: dict[str, object], request: pytest.FixtureRequest
) -> None:
    model = {"model": str(request.getfixturevalue("tiny_bert"))} if name == "hf" else {}
    assert_keeps_the_laws(kind, name, {**options, **model})
