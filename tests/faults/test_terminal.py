"""Faults around what is shown: no name, text or number of a file steers a terminal, a spreadsheet or a page."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
# A title, the clipboard (OSC 52), a cleared line, C1's CSI, text from right to left, a faked message, rich's markup.
EVIL = "\x1b]0;pwned\x07\x1b]52;c;cHduZWQ=\x07\r\x1b[2K\x9b31m\u202eexe\u2066\nerror: faked [bold]b[/bold] [/x] :bomb:"
LONG = "x" * 100_000
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def harmless(*texts: str) -> None:
    """Nothing that a terminal obeys, and no line that looks like ours."""
    for text in texts:
        assert not FORBIDDEN.search(text), repr(FORBIDDEN.search(text))
        assert not re.search(r"^error: faked", text, re.MULTILINE)


@pytest.fixture
def evil_run(small_run: Path, tmp_path: Path) -> Path:
    """A run whose folder and labels have such names."""
    run = shutil.copytree(
        small_run,
        tmp_path / f"run {EVIL[:40].replace('/', '')}[bold]b[bold] :bomb:",
        ignore=shutil.ignore_patterns("manifest.json"),
    )
    lines = [json.loads(line) for line in (run / "labels.jsonl").read_text().splitlines()]
    for line in lines:
        line["name"] = EVIL
    (run / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


# Predictions


def test_labels_and_queries_are_shown_with_visible_controls(call: Call, evil_run: Path) -> None:
    code, out, err = call("predict", evil_run, "--text", EVIL, "-k", "2")
    assert code == 0
    harmless(out, err)
    flat = "".join(out.split())
    assert r"\x1b]0;pwned\x07\x1b]52;c;cHduZWQ=\x07\r\x1b[2K\x9b31m\u202eexe\u2066\nerror:faked" in flat
    assert ":bomb:" in flat
    assert "[bold]b[/bold][/x]" in flat


def test_json_lines_are_the_bytes_of_the_data(call: Call, evil_run: Path, tmp_path: Path) -> None:
    code, out, _ = call("predict", evil_run, "--text", EVIL, "-k", "1", "--json")
    assert code == 0
    answer = json.loads(out)
    assert (answer["query"], answer["labels"][0]["name"]) == (EVIL, EVIL)
    assert "\x9b31m\u202eexe" in out
    assert "\x1b" not in out
    call("predict", evil_run, "--text", EVIL, "-k", "1", "--json", "--out", tmp_path / "answers.jsonl")
    assert (tmp_path / "answers.jsonl").read_text() == out


def test_a_lone_surrogate_is_shown_and_written(call: Call, small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("manifest.json"))
    text = (run / "labels.jsonl").read_text().splitlines()
    (run / "labels.jsonl").write_text("".join('{"name": "\\ud800", "text": "\\udfff"}\n' for _ in text))
    code, out, _ = call("predict", run, "--text", "perl", "-k", "1")
    assert code == 0
    assert "\\ud800" in out
    code, out, _ = call("predict", run, "--text", "perl", "-k", "1", "--json")
    assert json.loads(out)["labels"][0]["name"] == "\ud800"
    out.encode()


def test_a_very_long_name_is_shown(call: Call, small_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("manifest.json"))
    text = (run / "labels.jsonl").read_text().splitlines()
    (run / "labels.jsonl").write_text("".join(json.dumps({"name": LONG, "text": "t"}) + "\n" for _ in text))
    code, out, _ = call("predict", run, "--text", LONG, "-k", "1")
    assert code == 0
    assert "x" * 80 in out


def on_a_terminal(*arguments: object, columns: int = 200, code: str = "") -> str:
    """What a command writes to its terminal.

    Args:
        code: Python that the process runs before the command.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    environment = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    main = "from xmclab.__main__ import main; main()"
    command = [sys.executable, "-c", f"{code}\n{main}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while block := os.read(ours, 65536):
                written += block
        except OSError:  # the other end is closed
            pass
        assert process.wait(timeout=120) == 0 or code, written
    os.close(ours)
    return written.decode()


def test_json_on_a_terminal_has_the_same_value_without_controls(evil_run: Path) -> None:
    out = on_a_terminal("predict", evil_run, "--text", EVIL, "-k", "1", "--json").replace("\r\n", "\n")
    harmless(out)
    answer = json.loads(out)
    assert (answer["query"], answer["labels"][0]["name"]) == (EVIL, EVIL)


# The live line

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LIVE = ["run", "recipe=unidec", "data=tiny", "epochs=3", "refresh_every=1", "evaluate.every=1", "baseline=none"]


@pytest.mark.parametrize(
    ("columns", "more"),
    [
        (80, ()),
        (120, (r"step \d+/6",)),
        (250, (r"step \d+/6", r"de/ds/q2l \d\.\d", r"positives/query", r"pool \d", r"without positive", "elapsed")),
    ],
)
def test_the_live_line_fits_the_terminal(columns: int, more: tuple[str, ...], tmp_path: Path) -> None:
    out = ESCAPES.sub("", on_a_terminal(*LIVE, "--out", tmp_path / "run", columns=columns)).replace("\r", "\n")
    lines = [line.rstrip() for line in out.splitlines() if re.match(r"epoch \d/3 ", line)]
    shown = re.compile(r"epoch 3/3 ━+ +\d+ queries/s  \d:\d\d left  loss \d\.\d{4}  P@1 \d\d\.\d\d")
    last = lines[-1]
    assert shown.match(last), last
    assert all(re.search(each, last) for each in more), last
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert any(re.search(r"epoch 1/3 .*\d\+ left", line) for line in lines), "steps take longer after a refresh"


def test_something_is_shown_before_torch_is_imported(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None"
    out = on_a_terminal("run", "data=tiny", "recipe=unidec", "--out", tmp_path / "run", code=code)
    assert "starting" in out


# Titles, notes, errors


def test_the_name_of_a_folder_is_shown_as_it_is(call: Call, evil_run: Path, tmp_path: Path) -> None:
    for arguments in (["eval", evil_run], ["export", evil_run, "--to", tmp_path / f"to {EVIL[:9]}[/x]"]):
        code, out, err = call(*arguments)
        assert code == 0, err
        harmless(out, err)
    code, out, err = call("report", evil_run, "--out", tmp_path / "report")
    assert code == 0, err
    harmless(out, err)
    assert "[bold]b[bold] :bomb:" in out


def test_errors_and_notes_that_quote_input_are_harmless(
    call: Call, evil_run: Path, tmp_path: Path, small_run: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(json.dumps({EVIL: "1", "loss": {"clf": EVIL}, "pool": {"beta": EVIL}}))
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"title": "a", "labels": [EVIL], EVIL: 1}) + "\n" + EVIL + "\n")
    labels = tmp_path / "new.jsonl"
    labels.write_text(json.dumps({"name": EVIL, "title": "t"}) + "\n" + json.dumps({"name": EVIL, "title": "u"}) + "\n")
    for arguments in (
        ["run", f"recipe={recipe}"],
        ["run", EVIL],
        ["run", f"recipe={EVIL}"],
        ["run", f"data={data}"],
        ["data", "check", data],
        ["data", "check", EVIL],
        ["predict", EVIL, "--text", "a"],
        ["predict", small_run, "--input", data],
        ["predict", small_run, "--text", "a", "--head", EVIL],
        ["parts", EVIL],
        ["check", f"loss:{EVIL}"],
        ["report", tmp_path / "nothing" / EVIL.replace("/", "")],
        ["bench", EVIL],
    ):
        code, out, err = call(*arguments)
        assert code not in (0, 1), (arguments, err)
        harmless(out, err)
        assert "Traceback" not in err
    code, out, err = call("predict", evil_run, "--text", "a", "--add-labels", labels)
    assert code == 0
    assert "several labels" in err
    harmless(out, err)


def test_the_trace_of_a_bug_is_harmless(call: Call, small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError(EVIL)

    monkeypatch.setattr("xmclab.serve.open.load_model", fail)
    code, out, err = call("predict", small_run, "--text", "a")
    assert code == 1
    assert "Traceback" in err
    harmless(out, err.replace("\nerror: faked", ""))


def test_a_data_set_with_such_names(call: Call, tmp_path: Path) -> None:
    """Check, stats, and a run with its title and its folder."""
    folder = tmp_path / f"set {EVIL[:30].replace('/', '')} [bold]b[x] :bomb:"
    folder.mkdir()
    rows = [{"title": f"word{number} {EVIL}", "labels": [f"label {number % 7} {EVIL}"]} for number in range(40)]
    for name, some in (("train", rows), ("test", rows[:9])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    small = ["epochs=1", "encoder.dim=8", "head.clf=none", "baseline=none", "--out", tmp_path / "run[/x]"]
    for arguments in (["data", "check", folder], ["data", "stats", folder], ["run", f"data={folder}", *small]):
        code, out, err = call(*arguments)
        assert code == 0, err
        harmless(out, err)
        assert "[bold]b[x] :bomb:" in out.replace("\n", "")


def test_a_plugin_with_such_a_docstring(call: Call, install: Callable[..., str]) -> None:
    source = f"""
from dataclasses import dataclass
import torch
from xmclab import hookimpl, part
from xmclab.api import MultiClassLoss, option

@dataclass
class Loss(MultiClassLoss):
    {EVIL.splitlines()[0]!r}
    margin: float = option(1.0, {EVIL!r})
    def terms(self, s_QP, y_QP):
        return s_QP

@hookimpl
def xmclab_parts():
    return [part("loss", "odd", Loss)]
"""
    install(source)
    from xmclab.host.registry import default_registry

    default_registry.cache_clear()
    try:
        code, out, err = call("parts", "loss")
    finally:
        default_registry.cache_clear()
    assert code == 0
    assert "odd" in out
    harmless(out, err)


# Tables and pages of comparisons

MARKUP = "=1+1|`x`<script>alert(1)</script>![i](http://x)\n\n| a | b |"
FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " \r=1")


@pytest.fixture
def document(call: Call, small_run: Path, tmp_path: Path) -> dict[str, Any]:
    """A comparison with such names in every place."""
    call("report", small_run, "--out", tmp_path / "plain", "--json")
    found: dict[str, Any] = json.loads((tmp_path / "plain" / "document.json").read_text())
    text = json.dumps(found).replace(json.dumps(small_run.name)[1:-1], json.dumps(MARKUP + EVIL)[1:-1])
    return {**json.loads(text), "columns": "=key", "name": "a}b\\input{/etc/passwd}"}


def test_markdown_has_no_cells_or_html_of_its_own(document: dict[str, Any]) -> None:
    from xmclab_bench.tables import markdown

    text = markdown(document)
    harmless(text)
    assert "<script" not in text.replace("\\<script", "")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "](http" not in text
    assert not re.search(r"(?<!\\)`", text)


def test_csv_has_no_formulas(document: dict[str, Any]) -> None:
    from xmclab_bench.tables import csv_text

    rows = [{**row, "name": name} for row in document["rows"] for name in FORMULAS]
    groups = [{**group, "name": name} for group in document["groups"] for name in FORMULAS]
    table = list(csv.reader(io.StringIO(csv_text({**document, "rows": rows, "groups": groups}))))
    assert len({len(row) for row in table}) == 1
    for row in table:
        for cell in row:
            harmless(cell)
            assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert "'=1+1" in {row[0] for row in table}
    assert any(cell.replace(".", "").isdecimal() for cell in table[-1])  # numbers are numbers


def test_latex_stays_inside_its_commands(document: dict[str, Any]) -> None:
    from xmclab_bench.tables import latex

    text = latex(document)
    harmless(text)
    assert "\\input" not in text
    assert "\\label{tab:a-b-input-etc-passwd-}" in text


def test_the_page_shows_names_as_text(document: dict[str, Any]) -> None:
    from xmclab_bench.page import page

    text = page({**document, "title": MARKUP, "command": MARKUP, "date": MARKUP})
    assert "<script>alert" not in text
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    script = (Path(sys.modules["xmclab_bench.page"].__file__ or "").parent / "page" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
