"""The files of a report, and folders that hold another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmclab.errors import StorageError
from xmclab_bench.write import refuse_another, write_page, write_report

MESSAGE = r"out: holds another comparison \(choose another folder with --out, or use --overwrite\)"


def test_a_comparison_is_written_again_into_its_folder(document: dict[str, Any], tmp_path: Path) -> None:
    write_report(document, tmp_path / "out")
    again = {**document, "title": "Another title", "data": []}
    assert "Another title" in write_report(again, tmp_path / "out").read_text()


@pytest.mark.parametrize("change", [{"fingerprint": "another"}, {"fingerprint": ""}, {"data": [{"sha256": "1"}]}])
def test_another_comparison_is_not_overwritten(
    document: dict[str, Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    write_report(document, tmp_path / "out")
    before = (tmp_path / "out" / "document.json").read_text()
    other = {**document, "title": "Another title", **change}
    other["data"] = [{**document["data"][0], **data} for data in other["data"]]
    for write in (write_report, write_page):
        with pytest.raises(StorageError, match=MESSAGE):
            write(other, tmp_path / "out")
    assert (tmp_path / "out" / "document.json").read_text() == before
    assert "Another title" in write_report(other, tmp_path / "out", overwrite=True).read_text()


def test_a_document_of_unknown_origin_is_kept(document: dict[str, Any], tmp_path: Path) -> None:
    refuse_another(tmp_path / "out", "any")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "document.json").write_text("{}")
    with pytest.raises(StorageError, match=MESSAGE):
        write_report(document, tmp_path / "out")


def test_a_bench_is_refused_before_it_trains(
    document: dict[str, Any], tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    write_report(document, tmp_path / "out")
    code, _, err = call("bench", "losses", "data=tiny", "--out", tmp_path / "out", "--cells", tmp_path / "cells")
    assert (code, "holds another comparison" in err) == (7, True)
    assert not (tmp_path / "cells").exists()
