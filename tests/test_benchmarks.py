"""Scripts of `benchmarks/` that exchange files with other programs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset
from xmclab.data import open_data, open_dataset
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_baselines.tfidf import features
from xmclab_datatools.rankings import read_ranking

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PECOS = BENCHMARKS / "pecos"
# In place of libpecos: a query scores a label by its inner product with the label's features.
FAKE = {
    "__init__.py": "",
    "xmc/__init__.py": """
class LabelEmbeddingFactory:
    @staticmethod
    def create(Y, X, method, threads):
        assert type(X).__name__ == type(Y).__name__ == "csr_matrix" and X.has_sorted_indices
        return (Y.T @ X).tocsr()

class Indexer:
    @staticmethod
    def gen(labels, **options):
        return labels
""",
    "xmc/xlinear/__init__.py": "",
    "xmc/xlinear/model.py": """
import numpy as np

class XLinearModel:
    @staticmethod
    def train(X, Y, C, threads):
        assert type(Y).__name__ == "csc_matrix" and (Y.data == 1).all()
        model = XLinearModel()
        model.labels = C
        return model

    def predict(self, X, beam_size, only_topk, threads):
        scores = (X @ self.labels.T).tocsr()
        for start, end in zip(scores.indptr[:-1], scores.indptr[1:]):
            row = scores.data[start:end]
            row[np.argsort(-row, kind="stable")[only_topk:]] = 0
        scores.eliminate_zeros()
        return scores
""",
}


@pytest.fixture(scope="module")
def predict() -> dict[str, Any]:
    return runpy.run_path(str(PECOS / "predict.py"))


@pytest.fixture(scope="module")
def tiny() -> Dataset:
    return open_dataset("tiny", "title", default_registry())


@pytest.fixture
def fake_pecos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FAKE.items():
        file = tmp_path / "site" / "pecos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_the_other_program_gets_the_features_of_the_baselines(
    predict: dict[str, Any], tiny: Dataset, tmp_path: Path
) -> None:
    predict["write_inputs"](tiny, tmp_path)
    test_QF, train_NF = features(tiny, tiny.train.texts)
    expected = {"test": test_QF, "train": train_NF, "targets": tiny.train.targets_NL}
    for name, matrix in expected.items():
        found = sp.load_npz(tmp_path / f"{name}.npz")
        assert isinstance(found, sp.csr_matrix)
        assert (found != matrix).nnz == 0


@pytest.mark.usefixtures("fake_pecos")
def test_its_predictions_are_read_without_filter_pairs(predict: dict[str, Any], tiny: Dataset, tmp_path: Path) -> None:
    predict["write_inputs"](tiny, tmp_path)
    taken = predict["predicted"](sys.executable, tmp_path, 12)
    assert taken.keys() == {"cpu", "memory", "version"}
    file = tmp_path / "tiny.npz"
    predict["write_predictions"](predict["filtered"](tmp_path / "scores.npz", tiny, 5), file)
    ranking = read_ranking(file, tiny.test.targets_NL.shape, 5)

    raw, hidden = sp.load_npz(tmp_path / "scores.npz").toarray(), tiny.test.filter_NL.toarray() > 0
    test_QF, train_NF = features(tiny, tiny.train.texts)
    all_of_them = (test_QF @ train_NF.T @ (tiny.train.targets_NL > 0).astype(np.float32)).toarray()
    np.testing.assert_allclose(raw[raw > 0], all_of_them[raw > 0], rtol=1e-4)
    assert (raw * hidden).any()
    for query, row in enumerate(raw * ~hidden):
        best = [label for label in np.lexsort((np.arange(len(row)), -row))[:5] if row[label] > 0]
        assert [label for label in ranking.ids_NK[query] if label >= 0] == best
    assert Evaluator.of_data(tiny).metrics(ranking)["P@1"] > 30


def test_an_environment_that_cannot_be_made_says_why(predict: dict[str, Any], tmp_path: Path) -> None:
    base = tmp_path / "python"
    base.write_text(
        """#!/bin/sh
mkdir -p "$4/bin"
printf '#!/bin/sh\\necho No matching distribution found for $6 >&2; exit 1' > "$4/bin/python"
chmod +x "$4/bin/python"
"""
    )
    base.chmod(0o755)
    with pytest.raises(SystemExit, match=r"(?s)no environment with libpecos: .* failed\nNo matching .*--python"):
        predict["environment"](tmp_path / "venv", str(base))


def test_the_page_of_linear_programs_is_that_of_its_numbers(predict: dict[str, Any]) -> None:
    results = json.loads((PECOS / "results.json").read_text(encoding="utf-8"))
    assert predict["page"](results) == (PECOS / "results.md").read_text(encoding="utf-8")


def test_the_table_of_related_things_has_queries_that_are_labels(tmp_path: Path) -> None:
    script = runpy.run_path(str(BENCHMARKS / "data" / "related.py"))
    rows = script["rows_of"]("tiny", 200)
    labels = {label for _, found in rows for label in found}
    named = sum(text in labels for text, _ in rows)
    assert len(rows) == 200
    assert named > 20
    script["write"](tmp_path / "related.csv", rows)
    data = open_data(resolve([f"data={tmp_path / 'related.csv'}"], default_registry()))
    assert data.train.filter_NL.nnz + data.test.filter_NL.nnz == named, "none of these pairs is true"


def test_the_page_on_data_has_the_committed_numbers_of_that_table() -> None:
    runs = json.loads((BENCHMARKS / "data" / "related.json").read_text(encoding="utf-8"))
    page = (BENCHMARKS.parent / "docs" / "data.md").read_text(encoding="utf-8")
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        best = max(second["epochs"])
        shown = (f"{first['P@1']:.1f}", f"{best:.1f} ({second['epochs'].index(best) + 1})", f"{second['P@1']:.1f}")
        assert f"| `{first['same_text']}` | {' | '.join(shown)} |" in page
