"""Modules of a SentenceTransformer: saved, loaded and trained as the library does with its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from xmclab.errors import ConfigError, StorageError
from xmclab.host.registry import default_registry
from xmclab.serve.export import write_export
from xmclab.serve.modules import QueryVectors, TextEncoder
from xmclab.serve.open import open_predictor

TEXTS = ["plot functions", "", "GRÖSSE: plot-functions!", "zzyzx"]


@pytest.fixture(scope="module")
def exported(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose modules are both of xmclab; not to be written to."""
    folder = tmp_path_factory.mktemp("export") / "bag"
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, folder, None, "de+clf")
    return folder


def test_a_model_is_saved_and_loaded_by_the_library(exported: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(exported), device="cpu", trust_remote_code=True)
    model.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    prompted = again.encode(["functions"], prompt="plot ")
    np.testing.assert_allclose(prompted, model.encode(["plot functions"]), atol=1e-6)


def test_heads_have_gradients(exported: Path) -> None:
    encoder, heads = TextEncoder.load(str(exported)), QueryVectors.load(str(exported), "1_QueryVectors")
    features = heads(encoder(encoder.tokenize(TEXTS)))
    assert features["sentence_embedding"].shape == (len(TEXTS), heads.get_embedding_dimension())
    features["sentence_embedding"].sum().backward()
    for tensor in (heads.heads["de"].get_parameter("g1.0.weight"), heads.heads["clf"].get_parameter("g2.0.weight")):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


def test_files_of_a_model_on_the_hub_are_fetched_first(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers.util

    asked = []

    def fetch(name: str, subfolder: str, **where: object) -> str:
        asked.append((name, subfolder, where))
        return str(exported / subfolder)

    monkeypatch.setattr(sentence_transformers.util, "load_dir_path", fetch)
    where = {"token": "t", "revision": "main", "backend": "torch"}
    assert QueryVectors.load("somebody/model", "1_QueryVectors", **where).get_embedding_dimension() == 28
    assert asked == [("somebody/model", "1_QueryVectors", {"token": "t", "revision": "main"})]


def test_a_one_stands_where_label_vectors_have_their_bias(exported: Path) -> None:
    plain = QueryVectors.load(str(exported), "1_QueryVectors")
    biased = QueryVectors(plain.parts, dict(plain.heads.items()), plain.width, ["de"])  # type: ignore[arg-type]
    x_BD = torch.randn(3, plain.width)
    with torch.no_grad():
        expected, found = plain.vectors(x_BD), biased.vectors(x_BD)
    assert torch.equal(found[:, 16], torch.ones(3))
    assert torch.equal(torch.cat([found[:, :16], found[:, 17:]], dim=1), expected)


def test_a_part_of_a_missing_plugin_and_damage_are_named(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    document = json.loads((folder / "encoder" / "part.json").read_text())
    (folder / "encoder" / "part.json").write_text(json.dumps({**document, "name": "bagg"}))
    with pytest.raises(ConfigError, match=r"unknown encoder 'bagg' .*'bag'"):
        TextEncoder.load(str(folder))
    (folder / "encoder" / "part.json").write_text("[]")
    with pytest.raises(StorageError, match="encoder: damaged"):
        TextEncoder.load(str(folder))
    (folder / "1_QueryVectors" / "model.safetensors").write_bytes(b"")
    with pytest.raises(StorageError, match="1_QueryVectors: damaged"):
        QueryVectors.load(str(folder), "1_QueryVectors")
