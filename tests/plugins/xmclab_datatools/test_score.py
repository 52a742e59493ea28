"""`xmclab score`: metrics of predictions from any program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.data import open_dataset
from xmclab.data.propensity import Propensity, inverse_propensity
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry

Call = Callable[..., tuple[int, str, str]]
GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "napkinxc.npz", allow_pickle=False)
KINDS = ("P", "PSP", "nDCG", "PSnDCG")


def golden(name: str) -> sp.csr_array:
    data, indices, indptr, shape = (GOLDEN[f"{name}_{part}"] for part in ("data", "indices", "indptr", "shape"))
    return sp.csr_array((data, indices, indptr), shape=tuple(shape))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The problem of the golden values, as files: scores with ties, rows without true labels, filter pairs."""
    for name in ("train", "truth", "scores"):
        sp.save_npz(tmp_path / f"{name}.npz", golden(name))
    rows, labels = golden("filter").nonzero()
    (tmp_path / "filter.txt").write_text("".join(f"{row} {label}\n" for row, label in zip(rows, labels, strict=True)))
    return {path.stem: path for path in tmp_path.iterdir()}


def arguments(files: dict[str, Path]) -> list[object]:
    return [
        "--pred",
        files["scores"],
        "--truth",
        files["truth"],
        "--train",
        files["train"],
        "--filter",
        files["filter"],
    ]


@pytest.mark.parametrize("weights", [["--family", "amazon"], ["--propensity", "0.6,2.6"]])
def test_metrics_are_those_of_an_independent_program(call: Call, files: dict[str, Path], weights: list[str]) -> None:
    code, out, _ = call("score", *arguments(files), *weights, "--json", "--bootstrap", "0")
    assert code == 0
    metrics = json.loads(out)["metrics"]
    for kind in KINDS:
        for k in (1, 3, 5):
            assert metrics[f"{kind}@{k}"] / 100 == pytest.approx(GOLDEN[kind][k - 1], abs=1e-12)
    assert metrics["R@10"] / 100 == pytest.approx(GOLDEN["R"][9], abs=1e-12)
    assert metrics["PSR@10"] / 100 == pytest.approx(GOLDEN["PSR"][9], abs=1e-12)


def test_parts_sum_to_the_whole(call: Call, files: dict[str, Path]) -> None:
    _, out, _ = call("score", *arguments(files), "--json")
    document = json.loads(out)
    assert list(document["bands"]) == ["head", "torso", "tail"]
    assert len(document["deciles"]) == 10
    for kind in ("bands", "deciles"):
        parts = list(document[kind].values())
        assert sum(part["labels"] for part in parts) == document["labels"] == 40
        for name, value in document["metrics"].items():
            assert sum(part[name] for part in parts) == pytest.approx(value, abs=1e-9)
    for name, (low, high) in document["intervals"].items():
        assert low <= document["metrics"][name] <= high
    assert document["propensity"] == {"A": 0.55, "B": 1.5, "source": "default"}
    assert document["rows"] == 60


def test_the_table_shows_intervals_bands_and_deciles(call: Call, files: dict[str, Path]) -> None:
    code, out, _ = call("score", *arguments(files))
    assert code == 0
    names = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert names[-16:] == ["all", "95", "95", "head", "torso", "tail", *["decile"] * 10]
    assert "95 %" not in call("score", *arguments(files), "--bootstrap", "0")[1]


def test_what_predict_writes_has_the_metrics_of_the_run(call: Call, small_run: Path, tmp_path: Path) -> None:
    data = open_dataset("tiny", "title", default_registry())
    (tmp_path / "queries.txt").write_text("".join(f"{text}\n" for text in data.test.texts))
    depth = 100 + int(np.diff(data.test.filter_NL.indptr).max())
    call(
        *("predict", small_run, "--input", tmp_path / "queries.txt", "--head", "de", "-k", depth),
        *("--format", "xmc", "--out", tmp_path / "p.txt"),
    )
    code, out, err = call("score", "--pred", tmp_path / "p.txt", "--data", "tiny", "--json")
    assert (code, err) == (0, "")
    metrics = json.loads((small_run / "result.json").read_text())["metrics"]["de"]
    assert json.loads(out)["metrics"] == pytest.approx(metrics, abs=1e-9)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A data set of 40 test queries and three labels, one of which has the text of a query; and two predictions."""
    folder = tmp_path / "shop"
    folder.mkdir()
    names = ("socks", "boots", "query 3")
    (folder / "labels.csv").write_text("uid,title\n" + "".join(f"{name},{name}\n" for name in names))
    for table, rows in (("train", range(40, 80)), ("test", range(40))):
        lines = (f"{table[0]}{row},query {row},{names[row % 2]}\n" for row in rows)
        (folder / f"{table}.csv").write_text("id,query,labels\n" + "".join(lines))
    for file, right in (("good.csv", 40), ("bad.csv", 10)):
        lines = (f"query {row},{names[(row + (row >= right)) % 2]}\n" for row in reversed(range(40)))
        (tmp_path / file).write_text("query,name\n" + "".join(lines))
    return folder


def test_several_predictions_are_tested_against_each_other(call: Call, shop: Path) -> None:
    files = shop.parent / "bad.csv", shop.parent / "good.csv"
    code, out, err = call("score", *files, f"data={shop}", "--json", "-k", "1")
    assert (code, "Traceback" in err) == (0, False)
    found = json.loads(out)
    assert [each["metrics"]["P@1"] for each in found["predictions"]] == [25, 100]
    [test] = [each for each in found["tests"] if each["metric"] == "P@1"]
    assert (test["a"], test["b"], test["value"]) == (*map(str, files), -75)
    assert test["low"] < -75 < test["high"] < -50
    assert test["p"] < 0.01
    [sentence] = found["verdict"]
    assert sentence.startswith(f"P@1: {files[1]} is ahead of {files[0]} by 75.00 points (95 % interval ")
    code, out, _ = call("score", *files, f"data={shop}", "-k", "1")
    assert (code, sentence in out) == (0, True)
    (shop.parent / "same.csv").write_text(files[1].read_text())
    _, out, _ = call("score", files[1], shop.parent / "same.csv", f"data={shop}", "-k", "1", "--json")
    assert "cannot be told apart" in json.loads(out)["verdict"][0]


def test_every_key_of_the_data_works(call: Call, shop: Path) -> None:
    scored = ("score", shop.parent / "good.csv", f"data={shop}", "--bootstrap", "0")
    code, out, err = call(
        *scored, "--json", "evaluate.k=1,2", "evaluate.propensity=0.6,2.6", "data.merge_same_text=true"
    )
    assert code == 0
    assert "data.same_text=keep keeps it" in err
    assert set(json.loads(out)["metrics"]) == {f"{kind}@1" for kind in KINDS}
    assert json.loads(out)["propensity"]["A"] == 0.6
    code, _, err = call(*scored, "data.same_text=keep", "reader=table", "data.query_text=title")
    assert (code, "same_text" in err) == (0, False)
    code, _, err = call(*scored, "--data", "tiny")
    assert (code, f"--data: the data is also given by data={shop}" in err) == (2, True)
    code, _, err = call("score", shop.parent / "good.csv", shop.parent / "good.csv", f"data={shop}")
    assert (code, "good.csv: is given twice" in err) == (2, True)


def test_the_data_is_read_as_its_keys_say(call: Call, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("query,labels\nred,a+b\n")
    (tmp_path / "test.csv").write_text("query,labels\nblue,a\n")
    (tmp_path / "p.txt").write_text("1 2\n0:1\n")
    scored = ("score", "--pred", tmp_path / "p.txt", "--bootstrap", "0", "--json", "--data", tmp_path)
    code, out, _ = call(*scored, "reader=table", "reader.separator=+")
    assert code == 0
    assert json.loads(out)["metrics"]["P@1"] == 100
    code, out, err = call(*scored, "reader.seperator=+")
    assert (code, out) == (2, "")
    assert "reader.seperator: unknown key (did you mean 'reader.separator'?)" in err
    code, out, err = call(*scored, "epochs=3")
    assert (code, out) == (2, "")
    assert "epochs=3: only data.* and reader keys, data, preset, evaluate.depth" in err
    code, _, err = call("score", "--pred", tmp_path / "p.txt", "reader=table")
    assert code == 2
    assert "reader=table: no data set is given (add data=NAME)" in err


def test_metrics_deeper_than_the_predictions_are_left_out(call: Call, files: dict[str, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "top.npy", np.tile(np.arange(4), (60, 1)))
    code, out, err = call("score", *arguments({**files, "scores": tmp_path / "top.npy"}), "--json")
    assert code == 0
    assert set(json.loads(out)["metrics"]) == {f"{kind}@{k}" for kind in KINDS for k in (1, 3)}
    assert "at most 4 labels per query: metrics beyond @4 are omitted" in err


def test_a_data_set_known_by_name_has_its_own_propensities(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "LF-AmazonTitles-tiny"
    folder.mkdir()
    (folder / "lbl.json").write_text('{"title": "a"}\n{"title": "b"}\n')
    for name in ("trn.json", "tst.json"):
        (folder / name).write_text('{"title": "x", "target_ind": [0]}\n' * 20)
    np.save(tmp_path / "top.npy", np.tile([1, 0], (20, 1)))
    _, out, _ = call("score", "--pred", tmp_path / "top.npy", "--data", folder, "--json")
    assert json.loads(out)["propensity"] == {"A": 0.6, "B": 2.6, "source": f"from the name {folder.name}"}
    train = sp.csr_array(np.tile([1, 0], (20, 1)))
    assert json.loads(out)["metrics"] == Evaluator(train, train, Propensity(0.6, 2.6)).metrics(
        Ranking(np.tile([1, 0], (20, 1)), np.zeros((20, 2), np.float32))
    )
    assert inverse_propensity(train, 0.6, 2.6)[1] > 1


def test_cut_offs_can_be_chosen(call: Call, files: dict[str, Path]) -> None:
    code, out, _ = call("score", *arguments(files), "-k", "10,2", "--json")
    assert code == 0
    assert [name for name in json.loads(out)["metrics"] if name.startswith("P@")] == ["P@2", "P@10"]
    code, out, _ = call("score", *arguments(files), "-k", "2,10", "--propensity", "0.6,2.6")
    assert "(60 queries, propensities A=0.6 B=2.6 (--propensity)), in %" in " ".join(out.split())
    code, _, err = call("score", *arguments(files), "-k", "0,2")
    assert (code, "-k: '0,2' is not a list of different numbers" in err) == (2, True)


MISTAKES = {
    "nothing to compare with": (["--pred", "scores.npz"], 2, "give --truth and --train, or data=NAME"),
    "no training labels": (["--pred", "scores.npz", "--truth", "truth.npz"], 2, "give --truth and --train"),
    "no predictions": (["--truth", "truth.npz", "--train", "train.npz"], 2, "no predictions are given"),
    "data and files": (["--pred", "scores.npz", "--data", "tiny", "--truth", "truth.npz"], 2, "cannot be combined"),
    "propensity twice": (["--pred", "scores.npz", "--family", "amazon", "--propensity", "1,1"], 2, "give either"),
    "propensity of one number": (["--pred", "scores.npz", "--propensity", "0.5"], 2, "must be A,B"),
    "propensity below 0": (["--pred", "scores.npz", "--propensity", "0.5,-1"], 2, "must be A,B"),
    "unknown family": (["--pred", "scores.npz", "--family", "debian"], 2, "--family"),
    "missing file": (["--pred", "p.txt", "--truth", "truth.npz", "--train", "train.npz"], 3, "p.txt: cannot be read"),
    "other shape": (
        ["--pred", "train.npz", "--truth", "truth.npz", "--train", "train.npz"],
        3,
        "train.npz: has 200 rows, but truth.npz has 60",
    ),
    "other labels": (
        ["--pred", "scores.npz", "--truth", "truth.npz", "--train", "few.txt"],
        3,
        "few.txt: has 3 labels, but truth.npz has 40",
    ),
    "other filter": (
        ["--pred", "scores.npz", "--truth", "truth.npz", "--train", "train.npz", "--filter", "train.npz"],
        3,
        "train.npz: has 200 rows, but truth.npz has 60",
    ),
    "array of other queries": (
        ["--pred", "top.npy", "--truth", "truth.npz", "--train", "train.npz"],
        3,
        "top.npy: has 2 rows, but truth.npz has 60",
    ),
    "predictions for other data": (
        ["--pred", "few.txt", "--data", "tiny"],
        3,
        "has 1 rows, but the test set of tiny has 399",
    ),
    "bad line": (
        ["--pred", "bad.txt", "--truth", "truth.npz", "--train", "train.npz"],
        3,
        "bad.txt:2: not `label:value`",
    ),
    "no data": (["--pred", "scores.npz", "--data", "./nowhere"], 3, "no such folder"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(call: Call, files: dict[str, Path], case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files["scores"].parent)
    Path("few.txt").write_text("1 3\n0:1\n")
    np.save("top.npy", np.zeros((2, 1), np.int64))
    Path("bad.txt").write_text("60 40\nx\n")
    given, expected_code, message = MISTAKES[case]
    code, out, err = call("score", *given)
    assert (code, out) == (expected_code, "")
    assert message in err
    assert "Traceback" not in err
