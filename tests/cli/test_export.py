"""`xmclab export`: a folder that `predict` and `eval` take, and the exit codes of mistakes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
QUESTION = ["--text", "plot functions", "--text", "perl", "-k", "4", "--json"]


@pytest.fixture
def exported(call: Call, small_run: Path, tmp_path: Path) -> Path:
    code, out, err = call("export", small_run, "--to", tmp_path / "export")
    assert code == 0
    assert out.startswith(f"{tmp_path / 'export'}: 922 labels, ")
    assert err == "note: to load the folder, sentence-transformers needs xmclab installed and trust_remote_code=True\n"
    return tmp_path / "export"


@pytest.mark.parametrize("head", ["de", "clf", "de+clf"])
def test_predict_and_eval_take_the_folder(call: Call, small_run: Path, exported: Path, head: str) -> None:
    answers = []
    for folder in (small_run, exported):
        _, out, _ = call("predict", folder, *QUESTION, "--head", head)
        answers.append([[label["name"] for label in json.loads(line)["labels"]] for line in out.splitlines()])
    assert answers[0] == answers[1]
    _, out, _ = call("eval", exported, "--json")
    expected = json.loads((small_run / "result.json").read_text())["metrics"]
    assert json.loads(out)["metrics"][head] == pytest.approx(expected[head], abs=1e-9)


def test_index_json_has_the_sha256_of_every_file(call: Call, small_run: Path, tmp_path: Path) -> None:
    code, out, _ = call("export", small_run, "--to", tmp_path / "export", "--json", "--index", "hnsw")
    assert code == 0
    document = json.loads(out)
    assert document == json.loads((tmp_path / "export" / "index.json").read_text())
    assert document["index"]["options"]["type"] == "hnsw"
    assert {"index.faiss", "labels.jsonl", "vectors/de.npy", "config.yaml"} <= set(document["files"])
    for name, file in document["files"].items():
        assert hashlib.sha256((tmp_path / "export" / name).read_bytes()).hexdigest() == file["sha256"]
    assert document["trained"]["metrics"] == json.loads((small_run / "result.json").read_text())["metrics"]


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """A file of two labels, one of which has the name of another."""
    (tmp_path / "more.csv").write_text("name,text\nplotter,plotter: plot functions\noctave,octave: again\n")
    return tmp_path / "more.csv"


def test_one_search_and_added_labels(call: Call, small_run: Path, tmp_path: Path, more: Path) -> None:
    code, out, err = call("export", small_run, "--to", tmp_path / "export", "--search", "de", "--add-labels", more)
    assert code == 0
    assert out.startswith(f"{tmp_path / 'export'}: 924 labels, search de, ")
    assert f"{more}: these names belong to several labels; tell them apart by label number: octave" in err
    _, added, _ = call("predict", small_run, *QUESTION, "--head", "de", "--add-labels", more)
    _, exported, _ = call("predict", tmp_path / "export", *QUESTION, "--head", "de")
    for line, expected in zip(exported.splitlines(), added.splitlines(), strict=True):
        found, wanted = (json.loads(text)["labels"] for text in (line, expected))
        assert [label["name"] for label in found] == [label["name"] for label in wanted]
        assert [label["score"] for label in found] == pytest.approx([label["score"] for label in wanted], abs=1e-5)
    _, out, _ = call("predict", tmp_path / "export", "--text", "plotter: plot functions", "--head", "de", "--json")
    assert json.loads(out)["labels"][0]["name"] == "plotter"


def test_a_flipped_byte_of_the_index_is_said_and_harmless(call: Call, exported: Path) -> None:
    _, before, _ = call("predict", exported, *QUESTION)
    index = exported / "index.faiss"
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)
    code, out, err = call("predict", exported, *QUESTION)
    assert code == 0
    assert [label["name"] for line in out.splitlines() for label in json.loads(line)["labels"]] == [
        label["name"] for line in before.splitlines() for label in json.loads(line)["labels"]
    ]
    assert "index.faiss: changed: its sha256 does not match index.json" in err


def test_damaged_vectors_exit_7(call: Call, exported: Path) -> None:
    (exported / "index.faiss").unlink()
    (exported / "vectors" / "clf.npy").write_bytes((exported / "vectors" / "clf.npy").read_bytes()[:-4])
    code, out, err = call("predict", exported, *QUESTION)
    assert (code, out) == (7, "")
    assert "clf.npy: truncated or changed" in err


def test_mistakes(call: Call, small_run: Path, exported: Path, more: Path, tmp_path: Path) -> None:
    shutil.copytree(small_run, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "result.json").unlink()
    for arguments, expected_code, message in [
        ([small_run], 2, "--to"),
        ([small_run, "--to", tmp_path / "x", "--index", "tree"], 2, "--index"),
        ([small_run, "--to", tmp_path / "x", "--search", "clff"], 2, "--search clff: the model has no such search"),
        ([small_run, "--to", tmp_path / "x", "--search", "clf", "--add-labels", more], 2, "(use --search de)"),
        ([small_run, "--to", tmp_path / "x", "--add-labels", tmp_path / "no.csv"], 3, "no.csv: cannot be read"),
        ([small_run, "--to", exported], 7, "not an empty folder"),
        ([tmp_path / "nowhere", "--to", tmp_path / "x"], 7, "not a run folder (it has no config.yaml)"),
        ([tmp_path / "unfinished", "--to", tmp_path / "x"], 7, "it has no result.json"),
        ([exported, "--to", tmp_path / "x"], 2, "is already an export"),
    ]:
        code, out, err = call("export", *arguments)
        assert (code, out) == (expected_code, "")
        assert message in err
        assert "Traceback" not in err
    assert not (tmp_path / "x").exists()
