"""Every part that is installed keeps the laws of its kind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from xmclab.hookspecs import KINDS
from xmclab.plugins import default_registry
from xmclab.testing import examine
from xmclab_pml import LAWS_NOT_KEPT

EVERY = [(kind, name) for kind in KINDS for name in default_registry().names(kind)]
VARIANTS = [
    ("loss", "ds", {"temperature": 0.05}),
    ("reduction", "ova", {"cells": "sum"}),
    ("reduction", "ova_n", {"cells": "sum"}),
    ("sampler", "cluster", {"depth": "release"}),
    ("sampler", "cluster", {"method": "k_means"}),
    ("sampler", "cluster_mix", {"cluster_size": 2, "double_at": (2,), "method": "k_means"}),
    ("miner", "ann", {"index": "faiss", "faiss_type": "flat"}),
    ("encoder", "bag", {"hidden": 8, "feature_dropout": 0.3}),
    ("encoder", "hf", {"towers": "separate", "packing": "off"}),
    ("encoder", "hf", {"pooling": "cls"}),
    ("head", "dual_encoder", {"dim": 6, "activation": "none", "init": "identity"}),
    ("head", "classifier", {"rows": "texts", "normalise": True}),
    ("head", "classifier", {"rows": "texts+queries", "table_dtype": "bfloat16"}),
]


# Laws that a part does not keep by its nature, and says so where it is documented.
NOT_KEPT = {("loss", f"pml.{name}"): set(laws) for name, laws in LAWS_NOT_KEPT.items()}


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT for the encoder that needs a model."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "grey", "pink", "cyan"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)
    return folder


def assert_keeps_the_laws(kind: str, name: str, options: dict[str, object]) -> None:
    verdicts = examine(default_registry(), kind, name, options)
    broken = {verdict.law.name: str(verdict.violation) for verdict in verdicts if verdict.violation}
    assert broken.keys() == NOT_KEPT.get((kind, name), set()), "\n".join(broken.values())
    assert all(set(verdict.because) <= broken.keys() for verdict in verdicts)


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
def test_it_keeps_the_laws(
    kind: str, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mlflow":  # it is imported when the tracker is made
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    model = {"model": str(request.getfixturevalue("bert"))} if (kind, name) == ("encoder", "hf") else {}
    assert_keeps_the_laws(kind, name, model)


@pytest.mark.parametrize(("kind", "name", "options"), VARIANTS, ids=str)
def test_it_keeps_the_laws_with_other_options(
    kind: str, name: str, options: dict[str, object], request: pytest.FixtureRequest
) -> None:
    model = {"model": str(request.getfixturevalue("bert"))} if name == "hf" else {}
    assert_keeps_the_laws(kind, name, {**options, **model})
