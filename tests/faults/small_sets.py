"""Small data sets, for tests of this folder to spoil, and runs on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry

SMALL = ["recipe=unidec", "head.de.dim=8", "head.clf.dim=8", "sampler.batch_size=8", "epochs=1"]
SMALL_BAG = [*SMALL, "encoder.dim=8"]


def tables(folder: Path, text: str = "red shoes") -> Path:
    """A set of label-feature files."""
    folder.mkdir(exist_ok=True)
    queries = [{"uid": f"q{row}", "title": f"{text} {row}", "target_ind": [row % 2]} for row in range(4)]
    write_lines(folder / "trn.json", queries)
    write_lines(folder / "tst.json", queries)
    write_lines(folder / "lbl.json", [{"title": "shoes"}, {"title": "red"}])
    return folder


def write_lines(file: Path, records: list[Any]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def read(path: Path) -> Dataset:
    return open_dataset(str(path), "title", default_registry())
