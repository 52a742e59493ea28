"""What every reader promises: files are streamed, and texts are packed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from xmclab.data import open_dataset
from xmclab.data.texts import PackedTexts
from xmclab.host.registry import default_registry


def test_every_reader_gives_texts_that_are_no_list(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("query,labels\nred shoes,shoes\nblue socks,socks\ngreen socks,socks\n")
    for source in ("tiny", str(tmp_path / "shop.csv")):
        data = open_dataset(source, "title", default_registry())
        for texts in (data.train.texts, data.test.texts, data.label_texts, data.train.names):
            assert isinstance(texts, PackedTexts)


ROWS, JUNK = 4000, "x" * 2000


def records(rows: int) -> list[dict[str, object]]:
    return [{"title": f"t {row}", "junk": JUNK, "target_ind": [0], "labels": ["a"]} for row in range(rows)]


def write(folder: Path, layout: str) -> int:
    """A set with much that nobody reads; returns its size in bytes."""
    names = {"lf_json": ("trn.json", "tst.json", "lbl.json"), "jsonl": ("train.jsonl", "test.jsonl", "")}
    if layout == "csv":
        for name, rows in (("train", ROWS), ("test", 3)):
            lines = [f"t {row},{JUNK},a" for row in range(rows)]
            (folder / f"{name}.csv").write_text("\n".join(["query,junk,labels", *lines]))
    else:
        for name, rows in zip(names[layout], (ROWS, 3, 1), strict=True):
            if name:
                (folder / name).write_text("".join(f"{json.dumps(record)}\n" for record in records(rows)))
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("layout", ["lf_json", "jsonl", "csv"])
def test_memory_is_bounded_by_the_result(tmp_path: Path, layout: str) -> None:
    size = write(tmp_path, layout)
    registry = default_registry()
    open_dataset("tiny", "title", registry)  # imports are not counted
    tracemalloc.start()
    data = open_dataset(str(tmp_path), "title", registry)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.train) == ROWS
    assert peak < size / 4
