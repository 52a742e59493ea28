"""`xmclab predict` and `xmclab eval`: what they print, where, and the exit codes of mistakes."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab.cli.predict import _bar
from xmclab.host.registry import default_registry
from xmclab.serve.open import open_predictor

Call = Callable[..., tuple[int, str, str]]
QUERIES = ["plot functions", "größe [bold]", "", "music player"]


@pytest.fixture(scope="module")
def expected(small_run: Path) -> list[list[int]]:
    """The three best labels of each query."""
    return open_predictor(small_run, default_registry(), "cpu").rank(QUERIES, 3, "de+clf").ids_NK.tolist()


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    path = tmp_path / "queries.txt"
    path.write_text("".join(f"{query}\n" for query in QUERIES), encoding="utf-8")
    return path


def test_a_text_gets_a_table_of_named_labels(call: Call, small_run: Path, expected: list[list[int]]) -> None:
    code, out, err = call("predict", small_run, "--text", QUERIES[0], "-k", "3")
    assert (code, err) == (0, "")
    names = open_predictor(small_run, default_registry(), "cpu").labels.names
    assert out.startswith(QUERIES[0])
    assert [line.split()[2] for line in out.splitlines()[-4:-1]] == [names[label] for label in expected[0]]
    assert "\x1b" not in out


def test_a_query_with_markup_is_shown_as_it_is(call: Call, small_run: Path) -> None:
    _, out, _ = call("predict", small_run, "--text", QUERIES[1])
    assert out.startswith(QUERIES[1])


def test_json_lines_hold_names_and_scores(
    call: Call, small_run: Path, queries: Path, expected: list[list[int]]
) -> None:
    code, out, err = call("predict", small_run, "--input", queries, "-k", "3", "--json")
    assert (code, err) == (0, "note: 2 of 4 texts have no vocabulary words; their predictions are arbitrary\n")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["row"] for record in records] == [0, 1, 2, 3]
    assert [record["query"] for record in records] == QUERIES
    assert [[label["label"] for label in record["labels"]] for record in records] == expected
    first = records[0]["labels"][0]
    assert set(first) == {"label", "name", "text", "score"}
    assert first["text"].startswith(first["name"])
    assert call("predict", small_run, "--input", queries, "-k", "3", "--format", "jsonl")[1] == out


def test_texts_and_files_are_told_apart(
    call: Call, small_run: Path, queries: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    """As words, without an option, to a file that says its format."""
    _, out, _ = call("predict", small_run, QUERIES[3], QUERIES[0], "-k", "3", "--json")
    assert [[label["label"] for label in json.loads(line)["labels"]] for line in out.splitlines()] == [
        expected[3],
        expected[0],
    ]
    code, out, _ = call("predict", small_run, queries, "-k", "3", "--out", tmp_path / "a.json.gz")
    assert (code, out) == (0, "")
    records = json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))
    assert [[label["label"] for label in record["labels"]] for record in records] == expected
    code, _, err = call("predict", small_run, queries, "--out", tmp_path / "a.json.gz")
    assert (code, "exists (choose another file, or use --overwrite)" in err) == (7, True)
    code, out, err = call("predict", small_run, "querys.csv")
    assert (code, out, err) == (3, "", "error: querys.csv: no such file (if it is a text: --text querys.csv)\n")


def test_low_scores_are_left_out(call: Call, small_run: Path) -> None:
    _, out, _ = call("predict", small_run, QUERIES[0], "-k", "3", "--json")
    labels = json.loads(out)["labels"]
    limit = labels[1]["score"]
    _, out, _ = call("predict", small_run, QUERIES[0], "-k", "3", "--json", "--threshold", limit)
    assert json.loads(out)["labels"] == labels[:2]
    code, out, _ = call("predict", small_run, QUERIES[0], "--threshold", "99", "--format", "csv")
    assert (code, out.splitlines()[1]) == (0, "0,plot functions,,,,,")
    code, out, err = call("predict", small_run, QUERIES[0], "--threshold", "99")
    assert (code, out) == (0, "plot functions\nno labels\n\n")
    assert err == "note: --threshold 99: 1 of 1 texts have no label with such a score\n"


def test_no_bar_is_among_answers_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert _bar(4, answers_shown=False).console
    assert not _bar(4, answers_shown=True).console


def test_several_texts_are_answered_in_order(call: Call, small_run: Path, expected: list[list[int]]) -> None:
    _, out, _ = call("predict", small_run, "--text", QUERIES[3], "--text", QUERIES[0], "-k", "3", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [[label["label"] for label in record["labels"]] for record in records] == [expected[3], expected[0]]


def test_sparse_text_has_the_shape_above_its_rows(
    call: Call, small_run: Path, queries: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    out = tmp_path / "answers.txt"
    code, printed, _ = call("predict", small_run, "--input", queries, "-k", "3", "--format", "xmc", "--out", out)
    assert (code, printed) == (0, "")
    header, *rows = out.read_text().splitlines()
    assert header == "4 922"
    assert [[int(entry.split(":")[0]) for entry in row.split()] for row in rows] == expected
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_stdin_is_read(call: Call, small_run: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(QUERIES).encode()
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(text)))
    _, out, _ = call("predict", small_run, "--input", "-", "-k", "3", "--json")
    assert [[label["label"] for label in json.loads(line)["labels"]] for line in out.splitlines()] == expected


@pytest.mark.parametrize("head", ["de", "clf", "de+clf"])
def test_the_head_can_be_chosen(call: Call, small_run: Path, head: str) -> None:
    _, out, _ = call("predict", small_run, "--text", "perl", "--head", head, "--json")
    ranking = open_predictor(small_run, default_registry(), "cpu").rank(["perl"], 5, head)
    assert [label["label"] for label in json.loads(out)["labels"]] == ranking.ids_NK[0].tolist()


def test_new_labels_are_named_in_the_answers(call: Call, small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("name,text\nN1,zebra crossing\nN2,plot functions\n")
    arguments = ["--text", "plot functions", "--add-labels", tmp_path / "more.csv", "--head", "de", "--json", "-k", "1"]
    code, out, _ = call("predict", small_run, *arguments)
    [label] = json.loads(out)["labels"]
    assert code == 0
    assert (label["label"], label["name"], label["text"]) == (923, "N2", "plot functions")
    assert label["score"] == pytest.approx(1, abs=1e-6)


def test_a_second_label_of_a_name_is_noted(call: Call, small_run: Path, tmp_path: Path) -> None:
    taken = open_predictor(small_run, default_registry(), "cpu").labels.names[3]
    more = tmp_path / "more.csv"
    more.write_text(f"name,text\nN1,red shoes\n{taken},plot functions\nN2,wool socks\nN1,cotton socks\n")
    arguments = ["--text", "plot functions", "--add-labels", more, "--head", "de", "-k", "1", "--json"]
    code, out, err = call("predict", small_run, *arguments)
    shown = ", ".join(sorted(["N1", taken]))
    assert (code, json.loads(out)["labels"][0]["label"]) == (0, 923)
    assert err == f"note: {more}: these names belong to several labels; tell them apart by label number: {shown}\n"


def test_more_labels_than_there_are_is_said_and_done(call: Call, small_run: Path) -> None:
    code, out, err = call("predict", small_run, "--text", "perl", "-k", "1000", "--json")
    assert code == 0
    assert err == "note: -k 1000: there are only 922 labels; all are ranked\n"
    assert sorted(label["label"] for label in json.loads(out)["labels"]) == list(range(922))


MISTAKES = {
    "no query": ([], 2, "no query is given (texts in quotes, a file of them, or - for lines from stdin)"),
    "both kinds of query": (["--text", "x", "--input", "x.txt"], 2, "both texts and a file, x.txt"),
    "unknown head": (["--text", "x", "--head", "cls"], 2, "did you mean 'clf'"),
    "no results": (["--text", "x", "-k", "0"], 2, "-k"),
    "unknown format": (["--text", "x", "--format", "xml"], 2, "--format"),
    "two formats": (["--text", "x", "--format", "xmc", "--json"], 2, "conflicts with --json"),
    "unknown kind of file": (["--input", "x.xml"], 2, "x.xml"),
    "missing file": (["--input", "nowhere.txt"], 3, "nowhere.txt: cannot be read"),
    "bytes on stdout": (["x", "--format", "parquet"], 2, "--format parquet: is not text (name a file with --out)"),
    "unknown output": (["x", "--out", "a.xml"], 2, "--out a.xml: the name does not say which format to write"),
    "missing labels": (["--text", "x", "--add-labels", "nowhere.txt"], 3, "nowhere.txt: cannot be read"),
    "labels for classifiers": (["--text", "x", "--head", "clf", "--add-labels", "more.txt"], 2, "no rows for them"),
    "target in no folder": (["--text", "x", "--out", "no/where.txt"], 7, "--out no/where.txt: cannot be written"),
    "unknown device": (["--text", "x", "--device", "cuda:99"], 2, "device=cuda:99"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(call: Call, small_run: Path, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.txt").write_text("a label\n")
    arguments, expected_code, message = MISTAKES[case]
    code, out, err = call("predict", small_run, *arguments)
    assert (code, out) == (expected_code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_bad_line_is_found_before_the_first_answer(call: Call, small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"query": "good"}\n' * 3 + "nonsense\n")
    code, out, err = call("predict", small_run, "--input", tmp_path / "q.jsonl", "--json")
    assert (code, out) == (3, "")
    assert f"{tmp_path / 'q.jsonl'}:4: not JSON" in err


def test_nothing_is_left_of_a_file_that_could_not_be_finished(
    call: Call, small_run: Path, queries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "answers.txt"
    out.write_text("of yesterday")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("xmclab.serve.output.SparseText.write_one", fail)
    assert call("predict", small_run, "--input", queries, "--overwrite", "--out", out)[0] == 130
    assert out.read_text() == "of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.txt", "queries.txt"]


def test_a_folder_without_a_run_exits_7(call: Call, tmp_path: Path) -> None:
    code, out, err = call("predict", tmp_path, "--text", "x")
    assert (code, out) == (7, "")
    assert "not a run folder (it has no config.yaml)" in err


def test_eval_prints_the_metrics_of_the_run(call: Call, small_run: Path) -> None:
    code, out, _ = call("eval", small_run, "--json")
    assert code == 0
    assert json.loads(out)["metrics"] == json.loads((small_run / "result.json").read_text())["metrics"]
    code, out, _ = call("eval", small_run, "--data", "tiny")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.strip()][-3:] == ["de", "clf", "de+clf"]


def test_eval_on_no_data_exits_3(call: Call, small_run: Path) -> None:
    code, out, err = call("eval", small_run, "--data", "./nowhere")
    assert (code, out) == (3, "")
    assert "no such folder" in err


def test_content_is_read_where_the_model_was_trained_with_it(
    call: Call, train: Callable[..., Path], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", "head.clf=none", "reader.text=title+content")
    (tmp_path / "q.jsonl").write_text('{"title": "plot", "content": "functions"}\n')
    (tmp_path / "more.jsonl").write_text('{"title": "draw", "content": "curves"}\n')
    _, out, _ = call("predict", run, "--input", tmp_path / "q.jsonl", "--add-labels", tmp_path / "more.jsonl", "--json")
    assert json.loads(out)["query"] == "plot functions"
    _, out, _ = call(
        "predict", run, "--text", "draw curves", "--add-labels", tmp_path / "more.jsonl", "--json", "-k", 1
    )
    [label] = json.loads(out)["labels"]
    assert (label["label"], label["text"]) == (922, "draw curves")


@pytest.fixture(scope="module")
def long_texts(train: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set whose queries have contents, and a run on these."""
    folder = tmp_path_factory.mktemp("long")
    data = folder / "data"
    data.mkdir()
    words = ("plot functions", "mail client", "music player", "web server")
    (data / "lbl.json").write_text("".join(json.dumps({"title": text, "uid": text}) + "\n" for text in words))
    records = [{"title": f"number {row}", "content": words[row % 4], "target_ind": [row % 4]} for row in range(24)]
    for name, rows in (("trn", records[:20]), ("tst", records[20:])):
        (data / f"{name}.json").write_text("".join(json.dumps(record) + "\n" for record in rows))
    train(folder / "run", f"data={data}", "data.query_text=content")
    return folder


@pytest.mark.parametrize("exported", [False, True])
def test_queries_are_read_by_the_content_that_the_model_was_trained_on(
    call: Call, long_texts: Path, tmp_path: Path, exported: bool
) -> None:
    run = long_texts / "run"
    if exported:
        assert call("export", run, "--to", tmp_path / "export")[0] == 0
        run = tmp_path / "export"
    file, more = tmp_path / "q.jsonl", tmp_path / "more.jsonl"
    file.write_text('{"title": "a", "content": "mail client"}\n{"title": "music"}\n')
    more.write_text('{"uid": "b", "title": "a label", "content": "mail client"}\n')
    code, out, err = call("predict", run, "--input", file, "--add-labels", more, "-k", "9", "--json")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["query"] for each in found] == ["mail client", "music"]
    assert f"note: {file}: 1 of 2 texts have no 'content'; reading the title instead" in err
    assert {label["text"] for label in found[0]["labels"] if label["name"] == "b"} == {"a label"}
    file.write_text('{"id": 1, "title": "music"}\n')
    code, out, err = call("predict", run, "--input", file)
    assert (code, out) == (3, "")
    assert "no query has a 'content', which the model was trained on (columns: 'id', 'title'; choose one" in err
    assert json.loads(call("predict", run, "--input", file, "--column", "title", "--json")[1])["query"] == "music"


def test_eval_reads_the_content_that_the_model_was_trained_on(call: Call, long_texts: Path) -> None:
    run = long_texts / "run"
    code, out, _ = call("eval", run, "--json")
    assert code == 0
    assert json.loads(out)["metrics"] == json.loads((run / "result.json").read_text())["metrics"]
    code, _, err = call("eval", run, "--data", "tiny")
    assert code == 3
    assert "tst.json.gz: no query has a 'content' (data.query_text=title reads the title)" in err
    code, out, _ = call("eval", run, "--data", "tiny", "data.query_text=title", "--json")
    assert (code, json.loads(out)["data"]["test"]) == (0, 399)


def test_a_run_is_continued_with_its_texts(call: Call, long_texts: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(long_texts / "run", run)
    code, _, err = call("run", "--resume", run, "data.query_text=title")
    assert code == 2
    assert "error: data.query_text: content in the run, title in this command" in err
    code, _, err = call("run", "--resume", run, "data.query_text=title", "epochs=9", "resume.allow=data.query_text")
    assert code == 2
    assert "data.query_text" not in err
