"""Data sets: opened by name or folder, read and validated by the reader that knows the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from xmclab.errors import DataError, Problem, did_you_mean

if TYPE_CHECKING:
    from xmclab.api import Dataset
    from xmclab.plugins import Registry

__all__ = ["open_dataset"]


def open_dataset(source: str, text: Literal["title", "title+content"], registry: Registry) -> Dataset:
    """Read and validate a data set.

    Args:
        source: a name that a plugin supplies (`debian`, `tiny`), or a folder; a name goes before a folder.
        text: which text of queries and labels is read.

    Raises:
        DataError: there is no such data set, no reader knows its files, or they are malformed.
    """
    folder = _folder(source, registry)
    for name in registry.names("reader"):
        reader = registry.get("reader", name)(text=text)
        if reader.matches(folder):
            dataset: Dataset = reader.read(folder)
            return dataset
    known = "; ".join(f"{info.name}: {info.summary}" for info in registry.describe("reader"))
    raise DataError(Problem(str(folder), "no reader knows the files of this folder", f"readers: {known}"))


def _folder(source: str, registry: Registry) -> Path:
    """The folder of a data set given by name or path."""
    names = registry.names("dataset")
    folder = Path(source).expanduser()
    if source and source not in names:
        if folder.is_dir():
            return folder
        if folder.is_file():
            raise DataError(Problem(f"data={source}", "a file, not a folder", f"say data={folder.parent}"))
        if len(folder.parts) > 1 or source[0] in ".~":
            raise DataError(Problem(f"data={source}", "no such folder", f"data sets known by name: {', '.join(names)}"))
    try:
        return registry.dataset(source)
    except DataError as error:
        hint = did_you_mean(source, names)
        raise DataError(Problem(f"data={source}", "no data set of this name, and no such folder", hint)) from error
