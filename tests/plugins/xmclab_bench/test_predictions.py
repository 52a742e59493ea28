"""Predictions of other programs beside a bench: scored as rankings of runs are, and tested against the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Dataset, Keys
from xmclab.data import open_dataset
from xmclab.errors import DataError
from xmclab.host import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_bench.document import Group, Wanted, compare
from xmclab_bench.predictions import scored
from xmclab_bench.run_folder import Run
from xmclab_bench.tables import footnote, markdown


@pytest.fixture(scope="module")
def tiny() -> Dataset:
    return open_dataset("tiny", "title", default_registry())


@pytest.fixture(scope="module")
def config() -> Config:
    return resolve(["recipe=unidec", "data=tiny"], default_registry())


def some_scores(data: Dataset, noise: float) -> sp.csr_array:
    """Scores of 10 labels a query: 1 for its own, and noise; filter pairs are among them."""
    rng = np.random.default_rng(0)
    scores = np.zeros((len(data.test), data.num_labels))
    for query in range(len(data.test)):
        scores[query, rng.choice(data.num_labels, 10, replace=False)] = rng.random(10)
    scores += data.test.targets_NL.toarray() * (1 - noise * rng.random((len(data.test), 1)))
    return sp.csr_array(scores + 5 * (data.test.filter_NL.toarray() > 0))


def written(folder: Path, scores: sp.csr_array) -> str:
    """A file named after the data set, in sparse text; the spec's name of it."""
    lines = [f"{scores.shape[0]} {scores.shape[1]}"]
    for start, end in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
        lines.append(" ".join(f"{scores.indices[at]}:{scores.data[at]:.6f}" for at in range(start, end)))
    (folder / "tiny.txt").write_text("\n".join(lines) + "\n")
    return str(folder / "{data}.txt")


def precision(scores: sp.csr_array, data: Dataset, k: int) -> np.ndarray:
    """P@k of every query, one by one."""
    filtered, true = data.test.filter_NL.toarray() > 0, data.test.targets_NL.toarray() > 0
    found = []
    for query, row in enumerate(scores.toarray()):
        shown = [label for label in range(len(row)) if row[label] > 0 and not filtered[query, label]]
        best = sorted(shown, key=lambda label: (-round(row[label], 6), label))[:k]
        found.append(sum(true[query, label] for label in best) / k)
    return 100 * np.array(found)


def test_a_file_is_scored_as_a_loop_does(tiny: Dataset, config: Config, tmp_path: Path) -> None:
    scores = some_scores(tiny, 1.0)
    same = resolve(["recipe=depsl", "data=tiny", "seed=3", "evaluate.every=2"], default_registry())
    (found,) = scored({"mine": written(tmp_path, scores)}, [config, same])
    assert (found.name, found.file) == ("mine", str(tmp_path / "tiny.txt"))
    assert found.data == tiny.fingerprint
    for k in (1, 3, 5):
        assert found.metrics[f"P@{k}"] == pytest.approx(precision(scores, tiny, k).mean())
    points = found.points.of(["P@1"])
    order = np.argsort(Keys(0).rng("points").permutation(len(tiny.test)))  # the same in every run, whatever its seed
    shown = 100 * points.found_GM[:, 0] / points.best_GM[:, 0]
    np.testing.assert_allclose(shown, precision(scores, tiny, 1)[order])


def test_other_propensities_give_other_numbers(tiny: Dataset, config: Config, tmp_path: Path) -> None:
    file = written(tmp_path, some_scores(tiny, 1.0))
    other = resolve(["recipe=unidec", "data=tiny", "evaluate.propensity=0.6,2.6"], default_registry())
    ours, theirs = scored({"mine": file}, [config, other])
    assert ours.metrics["P@1"] == theirs.metrics["P@1"]
    assert ours.metrics["PSP@1"] != theirs.metrics["PSP@1"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2 922\n0:1\n1:1\n", "has 2 rows, but the test set of tiny has 399"),
        ("399 923\n" + "922:1\n" * 399, "923"),
        ("399 922\n" + "0:1\n" * 398 + "922:1\n", "922"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_does_not_fit_is_a_data_error(config: Config, tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "p.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(DataError) as caught:
        scored({"mine": str(file)}, [config])
    assert caught.value.exit_code == 3
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def a_run(data: Dataset, scores: Any, folder: Path, seed: int, propensity: tuple[float, float]) -> Run:
    """A finished run whose ranking is that of a file."""
    config = resolve(["recipe=unidec", "data=tiny"], default_registry())
    (found,) = scored({"run": written(folder, scores)}, [config])
    arrays = {"metrics": found.points.metrics, "found de": found.points.found_GM, "best": found.points.best_GM}
    np.savez(folder / "points.npz", **{name: np.array(value) for name, value in arrays.items()})
    sizes = {"name": data.name, "train": 1262, "test": 399, "labels": 922, "sha256": data.fingerprint}
    document = {"metrics": {"de": found.metrics}, "data": sizes, "seconds": {"train": 1.0}}
    document["propensity"] = {"A": propensity[0], "B": propensity[1], "source": "default"}
    return Run(folder, {"seed": seed, "epochs": 1}, {}, [], document)


def test_rows_are_tested_against_predictions(tiny: Dataset, config: Config, tmp_path: Path) -> None:
    runs = []
    for seed, noise in enumerate((0.5, 0.6)):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        runs.append(a_run(tiny, some_scores(tiny, noise), folder, seed, (0.55, 1.5)))
    worse = some_scores(tiny, 1.5)
    predictions = scored({"XR": written(tmp_path, worse)}, [config])
    wanted = Wanted("one", "One row.", ["P@1", "P@5"], ["de", "clf"], predictions=predictions)
    document = compare([Group("UniDEC", "", runs)], wanted)
    ours = np.mean([precision(some_scores(tiny, noise), tiny, 1).mean() for noise in (0.5, 0.6)])
    (test, _) = document["tests"]
    assert (test["a"], test["b"], test["metric"], test["search"]) == ("UniDEC", "XR", "P@1", "de")
    assert test["value"] == pytest.approx(ours - precision(worse, tiny, 1).mean())
    assert test["low"] < test["value"] < test["high"]
    assert test["p"] < 0.01
    first, second = document["verdict"]["sentences"]
    assert first == "P@1 of de: UniDEC is the only row."
    assert second.startswith("The predictions XR are behind UniDEC, by ")
    assert document["predictions"][0]["metrics"]["P@1"]["mean"] == pytest.approx(precision(worse, tiny, 1).mean())
    assert f"| XR |  | {precision(worse, tiny, 1).mean():.2f} |" in markdown(document)
    assert "Predictions of other programs, from files: XR." in footnote(document)
    other = compare([Group("UniDEC", "", [a_run(tiny, worse, tmp_path, 0, (0.6, 2.6))])], wanted)
    assert other["tests"] == []  # PSP of other propensities cannot be compared
