"""A comparison in every form, in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from xmclab.report.document import Document
from xmclab.report.page import page
from xmclab.report.tables import csv_text, latex, markdown
from xmclab.system.files import new_file, storage_errors


def write_report(document: Document, folder: Path) -> list[Path]:
    """The document as JSON, CSV, LaTeX, Markdown and HTML; the paths written."""
    texts = {
        "report.html": page(document),
        "table.md": markdown(document),
        "table.csv": csv_text(document),
        "table.tex": latex(document),
        "document.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n",
    }
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with new_file(folder / name, str(folder)) as stream:
            stream.write(text)
    return [folder / name for name in texts]
