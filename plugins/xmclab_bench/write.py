"""A comparison in every form, in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from xmclab.errors import DataError, Problem, StorageError
from xmclab.system.files import new_file, storage_errors
from xmclab_bench.document import DOCUMENT, Document, read_document
from xmclab_bench.page import page
from xmclab_bench.tables import csv_text, latex, markdown

PAGE = "report.html"


def refuse_another(folder: Path, fingerprint: str, data: Iterable[str] = ()) -> None:
    """Refuse a folder that holds another comparison.

    Args:
        data: the hashes of the data, if they are known.

    Raises:
        StorageError: it does.
    """
    if (folder / DOCUMENT).is_file():
        try:
            found = read_document(folder / DOCUMENT)
        except DataError:
            found = {"fingerprint": "", "data": []}
        hashes, others = set(data), {each["sha256"] for each in found["data"]}
        if not fingerprint or found["fingerprint"] != fingerprint or (hashes and others and not hashes & others):
            raise _refusal(folder)


def _refusal(folder: Path) -> StorageError:
    return StorageError(
        Problem(str(folder), "holds another comparison", "choose another folder with --out, or use --overwrite")
    )


def write_report(document: Document, folder: Path, overwrite: bool = False) -> Path:
    """Write the document as JSON, CSV, LaTeX, Markdown and HTML; the path of the page.

    Raises:
        StorageError: the folder holds another comparison that is not to be overwritten, or cannot be written.
    """
    if not overwrite:
        refuse_another(folder, document["fingerprint"], (data["sha256"] for data in document["data"]))
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


def write_page(document: Document, folder: Path, overwrite: bool = False) -> Path:
    """Write the page alone; its path.

    Raises:
        StorageError: as above.
    """
    file = folder / DOCUMENT
    if not overwrite and file.is_file() and read_document(file) != document:
        raise _refusal(folder)
    return _write(folder, {PAGE: page(document)})


def _write(folder: Path, texts: Mapping[str, str]) -> Path:
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with new_file(folder / name, str(folder)) as stream:
            stream.write(text)
    return folder / PAGE
