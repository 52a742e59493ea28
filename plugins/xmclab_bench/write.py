"""A comparison in every form, in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from xmclab.system.files import new_file, storage_errors
from xmclab_bench.document import DOCUMENT, Document
from xmclab_bench.page import page
from xmclab_bench.tables import csv_text, latex, markdown

PAGE = "report.html"


def write_report(document: Document, folder: Path) -> Path:
    """Write the document as JSON, CSV, LaTeX, Markdown and HTML; the path of the page."""
    return _write(
        folder,
        {
            PAGE: page(document),
            "table.md": markdown(document),
            "table.csv": csv_text(document),
            "table.tex": latex(document),
            DOCUMENT: json.dumps(document, indent=1, ensure_ascii=False) + "\n",
        },
    )


def write_page(document: Document, folder: Path) -> Path:
    """Write the page alone; its path."""
    return _write(folder, {PAGE: page(document)})


def _write(folder: Path, texts: Mapping[str, str]) -> Path:
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with new_file(folder / name, str(folder)) as stream:
            stream.write(text)
    return folder / PAGE
