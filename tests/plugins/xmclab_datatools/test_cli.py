"""`xmclab data`: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmclab.data

TINY = Path(xmclab.data.__file__).parent / "embedded" / "tiny"


@pytest.fixture
def call(call: Any) -> Any:
    """`xmclab data` in this process: arguments to (exit code, stdout, stderr)."""
    return partial(call, "data")


def test_check_of_a_good_set(call: Any) -> None:
    code, out, err = call("check", TINY)
    sizes = "1,262 training queries, 399 test queries, 922 labels, 4,655 pairs, 291 filter pairs"
    assert (code, out, err) == (0, f"{TINY}: OK, read as lf_json: {sizes}\n", "")


def test_check_as_json(call: Any) -> None:
    code, out, _ = call("check", "tiny", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["ok"], found["reader"], found["problems"], found["warnings"]) == (True, "lf_json", [], [])
    assert found["sizes"]["labels"] == 922


def test_check_tells_what_was_decided_and_what_is_odd(call: Any, tmp_path: Path) -> None:
    rows = "".join(f"q{row},a|b\n" for row in range(9))
    (tmp_path / "own.csv").write_text(f"query,labels\n{rows}q9,\n")
    code, out, err = call("check", tmp_path / "own.csv")
    assert (code, err) == (0, "")
    assert f"note: {tmp_path / 'own.csv'}: labels are separated by '|'" in out
    assert f"warning: {tmp_path / 'own.csv'}: 1 queries have no label (line 11)" in out
    assert logging.getLogger("xmclab.data").propagate


def test_queries_that_are_labels_are_counted_and_their_pairs_survive_conversions(call: Any, tmp_path: Path) -> None:
    rows = "".join(f"q{row},q{row + 1}|a\n" for row in range(10))  # 9 of 10 queries are labels of another
    own = tmp_path / "own.csv"
    own.write_text(f"query,labels\n{rows}")
    left_out = "note: own: 9 of 10 queries have the text of a label; 9 such pairs are left out of training"
    code, out, _ = call("check", own)
    assert code == 0
    assert left_out in out
    assert "9 filter pairs" in out
    found = json.loads(call("check", own, "--json")[1])
    counts = {"queries": 9, "listed": 0, "left_out": 9, "kept": 0}
    assert (found["same_text"], found["sizes"]["filter_pairs"]) == (counts, 9)
    kept = json.loads(call("check", own, "data.same_text=keep", "--json")[1])
    assert (kept["same_text"], kept["sizes"]["filter_pairs"]) == (
        {**counts, "left_out": 0, "kept": 9},
        0,
    )
    for layout in ("lf_json", "table", "raw_text"):
        assert call("convert", own, tmp_path / layout, "--to", layout)[0] == 0
        again = json.loads(call("check", tmp_path / layout, "--json")[1])
        assert (again["same_text"], again["sizes"]) == (found["same_text"], found["sizes"])
    assert call("split", own, tmp_path / "split", "--test-share", "0.3")[0] == 0
    assert json.loads(call("check", tmp_path / "split", "--json")[1])["same_text"] == counts


def test_queries_that_list_themselves_are_told_apart_from_pairs_that_are_left_out(call: Any, tmp_path: Path) -> None:
    rows = [f"q{row},q{row}|a" if row < 4 else f"q{row},q{row - 3}|a" for row in range(10)]  # q0 to q6 are labels
    own = tmp_path / "own.csv"
    own.write_text("\n".join(["query,labels", *rows]))
    out = call("check", own)[1]
    assert "note: own: 7 of 10 queries have the text of a label; 3 such pairs are left out of training" in out
    assert "warning: own: 4 of 10 queries list a label with their own text, which therefore stays" in out
    found = json.loads(call("check", own, "--json")[1])
    assert found["same_text"] == {"queries": 7, "listed": 4, "left_out": 3, "kept": 0}
    assert "own labels unlisted" in call("stats", own)[1]
    kept = json.loads(call("check", own, "data.same_text=keep", "--json")[1])
    assert kept["same_text"] == {"queries": 7, "listed": 4, "left_out": 0, "kept": 3}
    assert not any("own text" in text for text in kept["warnings"])


def test_run_shows_the_same(call: Any, tmp_path: Path) -> None:
    rows = "".join(f"q{row},a|b\n" for row in range(9))
    (tmp_path / "own.csv").write_text(f"query,labels\n{rows}q9,\n")
    quick = ["recipe=unidec", "epochs=1", "encoder.dim=8", "head.de.dim=8", "head.clf.dim=8", "baseline=none"]
    quick.append("miner=none")  # no note on refreshes
    code, out, err = call.func("run", *quick, f"data={tmp_path / 'own.csv'}", "--out", tmp_path / "run")
    assert code == 0
    assert "note" not in out
    checked = call("check", tmp_path / "own.csv")[1].splitlines()[1:]
    shown = [line for line in err.splitlines() if line.startswith(("note: ", "warning: "))]
    assert sorted(shown) == sorted(checked)
    assert len(checked) == 3


def test_check_of_a_bad_set_names_everything(call: Any, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "bad")
    (tmp_path / "bad" / "filter_labels_train.txt").write_text("x\n" * 7 + "9999 0\n" * 7)
    (tmp_path / "bad" / "tst.json.gz").unlink()
    code, out, err = call("check", tmp_path / "bad")
    assert (code, out) == (3, "")
    assert err.count("not a pair") == 5
    assert err.count("query 9999 is out of range") == 5
    assert "filter_labels_train.txt:8: query 9999" in err
    assert "tst.json.gz: missing" in err
    assert "14 bad lines in total" in err
    assert all(line.startswith("error: ") for line in err.splitlines())


def test_check_of_a_bad_set_as_json(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("query,labels\nred,a,b\nblue,c\n")
    code, out, err = call("check", tmp_path / "own.csv", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["problems"][0]["where"]) == (3, False, f"{tmp_path / 'own.csv'}:2")
    assert err.startswith("error: ")


def test_the_keys_of_run_are_taken_and_checked(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("frage,tags\nred,a\nblue,c\n")
    assert call("check", tmp_path / "own.csv", "reader.query=frage")[0] == 0
    code, out, err = call("check", tmp_path / "own.csv", "reader.qurey=frage")
    assert (code, out) == (2, "")
    assert "reader.qurey: unknown key (did you mean 'reader.query'?)" in err


def test_a_set_that_does_not_exist(call: Any) -> None:
    code, out, err = call("check", "./nowhere")
    assert (code, out) == (3, "")
    assert err.startswith("error: data=./nowhere: no such folder or file")


def test_stats_as_tables(call: Any) -> None:
    code, out, err = call("stats", "tiny")
    assert (code, err) == (0, "")
    cells = [line.split() for line in out.splitlines()]
    assert ["queries", "1,262", "399"] in cells
    assert ["zipf", "exponent", "0.65"] in cells
    assert ["tail", "(0-10)", "869", "(94.3", "%)", "2,437", "(68.7", "%)", "765", "(69.0", "%)"] in cells


def test_stats_as_json_and_plot(call: Any, tmp_path: Path) -> None:
    code, out, err = call("stats", "tiny", "--json", "--plot", tmp_path / "curve.png")
    assert f"{tmp_path / 'curve.png'}: label frequency curve" in err
    assert (code, json.loads(out)["bands"]["torso"]["labels"]) == (0, 53)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = call("stats", "tiny", "--plot", tmp_path / "nowhere" / "curve.png")
    assert code == 7
    assert "curve.png: cannot be written: No such file or directory" in err


def test_help_does_not_load_torch() -> None:
    code = "import sys, xmclab.cli; sys.exit('torch' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_convert_there_and_back(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("query,labels\nred,warm|a colour\nblue,a colour\ngreen,a colour\n")
    code, out, err = call("convert", tmp_path / "own.csv", tmp_path / "set", "reader.test_share=0.4")
    assert code == 0
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["note", "note"]
    assert out == f"{tmp_path / 'set'}: 2 training queries, 1 test queries, 2 labels\n"
    assert call("convert", tmp_path / "set", tmp_path / "table", "--to", "table", "--json")[0] == 0
    first, last = (json.loads(call("stats", tmp_path / name, "--json")[1]) for name in ("set", "table"))
    assert {**first, "name": "", "sha256": ""} == {**last, "name": "", "sha256": ""}


def test_convert_keeps_contents_and_says_what_a_layout_cannot_hold(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("query,content,labels\nred,a colour,a\nblue,as the sky,b\ngreen,grass,b\n")
    assert call("convert", tmp_path / "own.csv", tmp_path / "set", "reader.labels=labels")[0] == 0
    _, out, _ = call("stats", tmp_path / "set", "reader.text=title+content", "--json")
    assert json.loads(out)["train"]["words"]["max"] >= 3
    command = [sys.executable, "-m", "xmclab", "data", "convert", str(tmp_path / "set"), str(tmp_path / "raw")]
    process = subprocess.run([*command, "--to", "raw_text"], capture_output=True, text=True, check=True)
    assert "contents are dropped" in process.stderr
    assert process.stderr.count("label names are dropped") == 0


def test_convert_joins_the_texts_when_asked(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("query,content,labels\nred,a colour,a\nblue,as the sky,b\ngreen,,b\n")
    for layout, file in (("raw_text", "trn_X.txt"), ("dexml", "raw/trn_X.txt"), ("pecos", "X.trn.txt")):
        out = tmp_path / layout
        code, _, err = call("convert", tmp_path / "own.csv", out, "reader.text=title+content", "--to", layout)
        assert code == 0
        assert "contents are dropped" not in err
        test = out / file.replace("trn", "tst")
        texts = [*(out / file).read_text().splitlines(), *test.read_text().splitlines()]
        assert sorted(texts) == ["blue as the sky", "green", "red a colour"]


def test_convert_writes_the_texts_of_each_side(call: Any, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("query,content,labels\nred,a colour,a\nblue,as the sky,b\ngreen,,b\n")
    chosen = (tmp_path / "own.csv", "data.query_text=content")
    assert call("convert", chosen[0], tmp_path / "raw", chosen[1], "--to", "raw_text")[0] == 0
    lines = [(tmp_path / "raw" / f"{half}_X.txt").read_text().splitlines() for half in ("trn", "tst")]
    assert sorted(lines[0] + lines[1]) == ["a colour", "as the sky", "green"]
    assert (tmp_path / "raw" / "Y.txt").read_text() == "a\nb\n"
    for layout in ("lf_json", "table"):  # they keep both, whatever is read
        assert call("convert", chosen[0], tmp_path / layout, chosen[1], "--to", layout)[0] == 0
        for keys, words in (((), 1), (("data.query_text=title+content",), 4), (("data.query_text=content",), 3)):
            code, out, _ = call("stats", tmp_path / layout, *keys, "--json")
            assert code == 0
            found = json.loads(out)
            assert max(found[half]["words"]["max"] for half in ("train", "test")) == words
    code, _, err = call("check", tmp_path / "raw", "data.query_text=content")
    assert code == 3
    assert "a query is a line of text here" in err


def test_convert_does_not_overwrite(call: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    code, out, err = call("convert", "tiny", tmp_path)
    assert (code, out) == (7, "")
    assert "exists and is not an empty folder" in err


def test_split(call: Any, tmp_path: Path) -> None:
    code, out, _ = call("split", "tiny", tmp_path / "new", "--test-share", "0.25", "--seed", "3", "--json")
    assert (code, json.loads(out)["sizes"]["test_queries"]) == (0, 415)
    found = json.loads(call("stats", tmp_path / "new", "--json")[1])
    assert found["train"]["queries"] == 1262 + 399 - 415
    assert found["test"]["filter_pairs"] > 0
    assert found["test"]["true_pairs_filtered"] == 0


@pytest.mark.parametrize("share", ["0", "1", "1.5", "nan"])
def test_a_split_needs_both_sides(call: Any, tmp_path: Path, share: str) -> None:
    code, out, err = call("split", "tiny", tmp_path / "new", "--test-share", share)
    assert (code, out) == (2, "")
    assert f"must be above 0 and below 1, not {share}" in err
    assert not (tmp_path / "new").exists()
