"""Faults around inference and evaluation: what a user sees, and that no number is wrong in silence.

49  k beyond the labels, padding of faiss, vectors that are not finite
50  a truncated or changed index
51  metrics against independent programs
52  exports in other libraries; exact and faiss search
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from xmclab.api import Ranking
from xmclab.data import propensity
from xmclab.evaluation import metrics
from xmclab.evaluation.search import Space, rank
from xmclab.evaluation.searches.heads import Heads
from xmclab.host.registry import default_registry
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor

Call = Callable[..., tuple[int, str, str]]
TEXT = ["--text", "plot functions", "-k", "3", "--json"]


@pytest.fixture
def exported(small_run: Path, tmp_path: Path) -> Path:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    return tmp_path / "export"


# 49


def test_k_beyond_the_labels_is_clipped_with_a_note(exported: Path) -> None:
    """And, from a real process, that a damaged index is said on stderr."""
    (exported / "index.faiss").unlink()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ["predict", str(exported), "--text", "perl", "-k", "100000", "--format", "xmc"]
    command = [sys.executable, "-m", "xmclab", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    note, warning = done.stderr.splitlines()
    assert note == "note: -k 100000: there are only 922 labels; all are ranked"
    assert "index.faiss: missing" in warning
    header, row = done.stdout.splitlines()
    assert header == "1 922"
    assert sorted(int(entry.split(":")[0]) for entry in row.split()) == list(range(922))


@pytest.mark.parametrize("index", [Exact(), Faiss(), Faiss(type="hnsw"), Faiss(type="ivf", lists=4, probes=1)])
def test_padding_never_reaches_the_metrics(index: Any) -> None:
    """A search deeper than what the index finds: -1 fills up, and is neither a hit nor the last label."""
    generator = torch.Generator().manual_seed(0)
    z_LD, q_ND = (torch.randn(rows, 4, generator=generator) for rows in (160, 30))
    index.build(z_LD)
    nothing = sp.csr_array((30, 160))
    space = Space(("de",), 160, lambda head: z_LD, lambda heads: (index, True))
    ranking = rank(Heads(), "de", {"de": q_ND}, space, nothing, 160)
    found = [[label for label in row if label >= 0] for row in ranking.ids_NK.tolist()]
    assert all(len(set(row)) == len(row) for row in found)
    if isinstance(index, Faiss) and index.type == "ivf":
        assert any(len(row) < 160 for row in found)
    truth = sp.csr_array(np.eye(30, 160, 130))  # the last labels, which -1 would be in Python
    values = metrics.evaluate(ranking, truth, np.ones(160), (), (160,))
    hits = sum(130 + row in labels for row, labels in enumerate(found))
    assert values["R@160"] == pytest.approx(100 * hits / 30)


@pytest.mark.parametrize(
    ("tensor", "ids"), [("heads.clf.psi.weight", "label 5, 9"), ("heads.de.g1.0.bias", "label 0, 1")]
)
def test_vectors_that_are_not_finite_are_refused_with_their_ids(
    call: Call, train: Callable[..., Path], tmp_path: Path, tensor: str, ids: str
) -> None:
    run = train(tmp_path / "run", "head.de.dim=8", "head.clf.dim=8")
    weights = load_file(run / "model.safetensors")
    weights[tensor][[5, 9] if "psi" in tensor else [0]] = math.nan
    save_file(weights, run / "model.safetensors")
    (run / "manifest.json").unlink()  # as if it had been trained to that
    head = "clf" if "psi" in tensor else "de"
    code, out, err = call("predict", run, *TEXT, "--head", head)
    assert (code, out) == (3, "")
    assert ids in err or "query 0" in err
    assert "not finite" in err
    code, out, err = call("export", run, "--to", tmp_path / "export")
    assert (code, out) == (3, "")
    assert ids in err
    assert not (tmp_path / "export").exists()


# 50


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_a_damaged_index_is_rebuilt_from_the_vectors_or_exits_7(call: Call, exported: Path, how: str) -> None:
    expected = names(call("predict", exported, *TEXT)[1])
    index = exported / "index.faiss"
    content = bytearray(index.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        content[-3] ^= 4  # within the vectors, where faiss alone notices nothing
    index.write_bytes(content)
    code, out, err = call("predict", exported, *TEXT)
    assert (code, names(out)) == (0, expected)
    assert "index.faiss" in err

    vectors = exported / "vectors" / "de.npy"
    vectors.write_bytes(vectors.read_bytes()[:-8])
    code, out, err = call("predict", exported, *TEXT)
    assert (code, out) == (7, "")
    assert "de.npy: truncated or changed" in err


def names(output: str) -> list[str]:
    return [label["name"] for label in json.loads(output)["labels"]]


# 51


def naive(ids: list[list[int]], truth: np.ndarray, weights: np.ndarray, k: int) -> dict[str, float]:
    """Every metric by its definition, row after row, in exact sums."""
    gained: dict[str, list[float]] = {kind: [] for kind in metrics.KINDS}
    best: dict[str, list[float]] = {kind: [] for kind in metrics.KINDS}
    for row, labels in enumerate(ids):
        true = set(np.flatnonzero(truth[row]).tolist())
        if not true:
            continue
        ideal = math.fsum(1 / math.log2(place + 2) for place in range(min(k, len(true))))
        hits = [(place, weights[label]) for place, label in enumerate(labels[:k]) if label in true]
        perfect = list(enumerate(sorted((weights[label] for label in true), reverse=True)[:k]))
        for sums, places in ((gained, hits), (best, perfect)):
            discounts = [1 / math.log2(place + 2) for place, _ in places]
            sums["P"].append(len(places) / k)
            sums["R"].append(len(places) / len(true))
            sums["nDCG"].append(math.fsum(discounts) / ideal)
            sums["PSP"].append(math.fsum(weight for _, weight in places))
            sums["PSR"].append(math.fsum(weight for _, weight in places) / len(true))
            sums["PSnDCG"].append(math.fsum(d * w for d, (_, w) in zip(discounts, places, strict=True)) / ideal)
    means = {kind: math.fsum(gained[kind]) / len(ids) for kind in ("P", "R", "nDCG")}
    ratios = {kind: math.fsum(gained[kind]) / (math.fsum(best[kind]) or 1.0) for kind in ("PSP", "PSR", "PSnDCG")}
    return {f"{kind}@{k}": value for kind, value in {**means, **ratios}.items()}


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_metrics_equal_their_definition_to_1e_12(seed: int, k: int, rows: int) -> None:
    """Rows without true labels, equal scores, filter pairs."""
    rng = np.random.default_rng(seed)
    labels = 15
    scores = np.where(rng.random((rows, labels)) < 0.7, rng.integers(0, 4, (rows, labels)) / 4, np.nan)
    truth = rng.random((rows, labels)) < rng.choice([0.02, 0.2])
    hidden = (rng.random((rows, labels)) < 0.15) & ~truth
    weights = propensity.inverse_propensity(sp.csr_array(rng.random((50, labels)) < 0.2), 0.55, 1.5)
    ids = []
    for row in range(rows):
        known = [label for label in range(labels) if not np.isnan(scores[row, label]) and not hidden[row, label]]
        ids.append(sorted(known, key=lambda label: (-scores[row, label], label)))
    entries = np.nonzero(~np.isnan(scores))
    stored = sp.csr_array((scores[entries], entries), shape=scores.shape)
    ranking = metrics.drop_filtered(metrics.ranking_from_scores(stored, labels), sp.csr_array(hidden), labels)
    values = metrics.evaluate(ranking, sp.csr_array(truth), weights, (k,), (k,))
    for name, expected in naive(ids, truth, weights, k).items():
        assert values[name] / 100 == pytest.approx(expected, abs=1e-12, rel=0), name


def test_metrics_equal_those_of_napkinxc_to_1e_12() -> None:
    golden = np.load(Path(__file__).parents[1] / "golden" / "napkinxc.npz", allow_pickle=False)

    def matrix(name: str) -> sp.csr_array:
        data, indices, indptr, shape = (golden[f"{name}_{part}"] for part in ("data", "indices", "indptr", "shape"))
        return sp.csr_array((data, indices, indptr), shape=tuple(shape))

    ks = tuple(range(1, 11))
    ranking = metrics.ranking_from_scores(matrix("scores"), 40)
    ranking = metrics.drop_filtered(ranking, matrix("filter"), 10)
    weights = propensity.inverse_propensity(matrix("train"), 0.6, 2.6)
    values = metrics.evaluate(ranking, matrix("truth"), weights, ks, ks)
    for kind in metrics.KINDS:
        ours = [values[f"{kind}@{k}"] / 100 for k in ks]
        np.testing.assert_allclose(ours, golden[kind], rtol=0, atol=1e-12, err_msg=kind)


def test_the_order_of_the_queries_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(50)[:20] for _ in range(200)])
    truth = sp.csr_array(rng.random((200, 50)) < 0.05)
    weights = 1 + rng.random(50)
    order = rng.permutation(200)
    first = metrics.evaluate(Ranking(ids, np.zeros(ids.shape, np.float32)), truth, weights)
    second = metrics.evaluate(Ranking(ids[order], np.zeros(ids.shape, np.float32)), sp.csr_array(truth[order]), weights)
    assert first == pytest.approx(second, abs=1e-11)


# 52; what sentence-transformers makes of an export is in tests/serve/test_export.py


def test_exact_and_flat_faiss_search_find_the_same_labels(small_run: Path) -> None:
    predictor = open_predictor(small_run, default_registry(), "cpu")
    q_ND = predictor.model.query_vectors(predictor.model.encoder.tokenise(predictor.labels.texts[:200]), 512, ["de"])[
        "de"
    ]
    found = []
    for index in (Exact(), Faiss()):
        index.build(predictor.space.vectors("de"))
        found.append(index.search(q_ND, 50))
    (ids, scores), (faiss_ids, faiss_scores) = found
    torch.testing.assert_close(scores, faiss_scores, rtol=0, atol=1e-5)
    certain = scores > scores[:, -1:] + 1e-5  # labels that tie with the last may be others
    assert certain.float().mean() > 0.9
    for row in range(len(ids)):
        assert set(ids[row][certain[row]].tolist()) <= set(faiss_ids[row].tolist())
