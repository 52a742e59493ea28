"""One line that fits, whatever the terminal; and what a job tells while it works."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from rich.console import Console

from xmclab.data.readers import lines, table_files
from xmclab.data.sparse import read_matrix
from xmclab.system import progress
from xmclab.system.progress import Bar, clock, working


def terminal(width: int = 80, encoding: str = "utf-8") -> tuple[Console, io.TextIOWrapper]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    options: dict[str, Any] = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
    return Console(file=file, width=width, **options), file


def written(file: io.TextIOWrapper) -> str:
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    return file.buffer.getvalue().decode(file.encoding)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_facts_are_left_out_from_the_end_until_the_line_fits(width: int) -> None:
    console, file = terminal(width)
    with Bar(console, "epoch 1/2", 10, keep=True) as bar:
        bar.advance(5, facts=["one", "two", "three" * 5, "four" * 10], left=61.0)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(file)).replace("\r", "\n").rstrip().splitlines()[-1]
    assert len(last) <= width - len("^C"), "which a terminal shows behind it"
    kept = [fact for fact in ("one", "1:01 left", "two", "three" * 5, "four" * 10) if fact in last]
    assert len(kept) == {20: 0, 40: 2, 80: 4, 120: 5}[width]


def test_a_bar_of_plain_characters_where_there_are_no_others() -> None:
    console, file = terminal(encoding="ascii")
    with Bar(console, "reading", 10) as bar:
        bar.advance(5)
    with working(console, "starting"):
        pass
    assert "##########----------" in written(file)


def test_work_shows_the_files_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINES_BETWEEN", 2)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    file = tmp_path / "trn.txt"
    file.write_text("a line\n" * 300_000)
    console, stream = terminal()
    with working(console, "reading mine"):
        assert sum(1 for _ in lines.read_lines(file, lines.Problems())) == 300_000
    assert "reading mine" in written(stream)
    assert "2/2 MB" in written(stream)
    log = io.StringIO()
    with working(Console(file=log), "reading mine"):
        assert sum(1 for _ in lines.read_lines(file, lines.Problems())) == 300_000
    assert log.getvalue() == ""


def test_matrices_and_parquet_files_are_shown_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PIECE", 1 << 12)
    monkeypatch.setattr(table_files, "PARQUET_ROWS", 100)
    matrix = sp.random_array((300, 50), density=0.5, random_state=0, format="csr")
    sp.save_npz(tmp_path / "Y.npz", matrix)
    columns = {"title": [f"text {row}" for row in range(300)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    told: list[tuple[str, float]] = []
    become = Bar.become
    monkeypatch.setattr(Bar, "become", lambda bar, *now: (told.append((now[0], now[1] / now[2])), become(bar, *now)))
    with working(terminal()[0], "reading mine"):
        assert (read_matrix(tmp_path / "Y.npz") != matrix).nnz == 0
        problems = lines.Problems()
        assert len(list(table_files.read_rows(tmp_path / "train.parquet", ["title"], ["title"], problems))) == 300
    shares = [share for what, share in told if what == "reading Y.npz"]
    assert len(shares) > 5
    assert any(0 < share < 1 for share in shares)
    shares = [share for what, share in told if what == "reading train.parquet"]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1], abs=1e-3)


def test_a_clock() -> None:
    assert [clock(seconds) for seconds in (0, 61, 3755)] == ["0:00", "1:01", "1:02:35"]


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_has_a_live_line_if_it_has_widgets(monkeypatch: pytest.MonkeyPatch, widgets: bool) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets and name == "ipywidgets" else None)
    started = []
    monkeypatch.setattr(progress.Live, "start", lambda self, refresh: started.append(refresh))
    with Bar(Console(file=io.StringIO(), force_jupyter=True), "training", 3):
        assert bool(started) == widgets
    with Bar(Console(file=io.StringIO(), force_jupyter=False), "training", 3):
        assert len(started) == widgets, "neither a notebook nor a terminal"
