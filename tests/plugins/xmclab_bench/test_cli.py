"""`xmclab report` of a document: the page is made again from what was kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab_bench.page import page
from xmclab_bench.write import write_report

Call = Callable[..., tuple[int, str, str]]
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture
def written(document: dict[str, Any], tmp_path: Path) -> Path:
    """The folder of a report, without its page."""
    write_report(document, tmp_path / "written").unlink()
    return tmp_path / "written"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("source", ["", "document.json"])
def test_the_page_is_made_from_the_document_beside_it(
    call: Call, document: dict[str, Any], written: Path, source: str
) -> None:
    before = contents(written)
    code, out, err = call("report", written / source)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"report: {written / 'report.html'}"
    assert document["rows"][0]["name"] in out
    assert contents(written) == before | {"report.html": page(document).encode()}


def test_the_page_goes_where_it_is_wanted(call: Call, document: dict[str, Any], written: Path, tmp_path: Path) -> None:
    code, out, _ = call("report", written, "--out", tmp_path / "shared", "--json")
    assert (code, json.loads(out)) == (0, json.loads(json.dumps(document)))
    assert contents(tmp_path / "shared") == {"report.html": page(document).encode()}
    assert not (written / "report.html").exists()


@pytest.mark.parametrize("name", sorted(file.parent.name for file in RESULTS.glob("*/document.json")))
def test_every_committed_comparison_has_a_page(call: Call, tmp_path: Path, name: str) -> None:
    assert call("report", RESULTS / name, "--out", tmp_path)[0] == 0
    assert json.loads((RESULTS / name / "document.json").read_text())["title"] in (tmp_path / "report.html").read_text()


def test_the_wheel_has_specs_and_the_files_of_the_page(clean_environment: Any, tmp_path: Path) -> None:
    specs, _ = clean_environment.run("xmclab", "bench", "--list", cwd=tmp_path)
    assert "reductions" in specs
    clean_environment.run("xmclab", "report", RESULTS / "losses", "--out", "page", cwd=tmp_path)
    assert (tmp_path / "page" / "report.html").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read: Expecting"),
        ("[1, 2]", "not a document.json of a bench or report (missing: name, title, metrics, ...)"),
        ('{"metrics": {"de": {}}}', "not a document.json of a bench or report (missing: name, title, searches, ...)"),
    ],
)
def test_other_files_are_refused(call: Call, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "document.json"
    file.write_text(text)
    code, out, err = call("report", tmp_path)
    assert (code, out) == (3, "")
    assert err.startswith(f"error: {file}: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["document.json"]


def test_a_document_is_shown_alone_and_as_it_is(call: Call, written: Path, small_run: Path) -> None:
    code, _, err = call("report", small_run, written)
    assert (code, "a document cannot be combined with others" in err) == (2, True)
    code, _, err = call("report", written, "--metrics", "P@1")
    assert (code, "a document has its own metrics" in err) == (2, True)
    assert not (written / "report.html").exists()


def test_a_folder_that_cannot_be_written_exits_7(call: Call, written: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = call("report", written, "--out", tmp_path / "file")
    assert code == 7
    assert "cannot be written" in err
