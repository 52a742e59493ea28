"""Data sets: opened by name, folder or file, read and validated by the reader that knows the format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xmclab.errors import ConfigError, DataError, Problem, did_you_mean
from xmclab.host.schema import DataSettings

if TYPE_CHECKING:
    from xmclab.api import Dataset, Reader
    from xmclab.host.registry import Registry

__all__ = ["open_data", "open_dataset"]

AUTO = "auto"
EVERY_READER = {
    "source",
    "text",
    "reader",
    "merge_same_text",
    "cache",
    "verify",
}  # settings that do not depend on the reader
BAGS_OF_WORDS = ("trn_X_Xf.txt", "tst_X_Xf.txt", "X.trn.npz", "X.tst.npz", "X_trn.npz", "train.txt", "test.txt")


def open_dataset(source: str, text: Literal["title", "title+content"], registry: Registry) -> Dataset:
    """Read and validate a data set.

    Args:
        source: a name that a plugin supplies (`debian`, `tiny`), a folder or a table; a name goes before a folder.
        text: which text of queries and labels is read.

    Raises:
        DataError: there is no such data set, no reader knows its files, or they are malformed.
        ConfigError: several readers know its files.
    """
    return open_data(DataSettings(source=source, text=text), registry)


def open_data(settings: DataSettings, registry: Registry) -> Dataset:
    """The same with all that can be set about the data."""
    path = locate(settings.source, registry)
    dataset = find_reader(path, settings, registry).read(path)
    if settings.merge_same_text:
        from xmclab.data.same_text import spare_same_text

        dataset = spare_same_text(dataset)
    return dataset


def find_reader(path: Path, settings: DataSettings, registry: Registry) -> Reader:
    """The reader that was chosen, or else the one that knows the files."""
    given = _given(settings)
    if settings.reader != AUTO:
        if settings.reader not in registry.names("reader"):
            hint = did_you_mean(settings.reader, [AUTO, *registry.names("reader")])
            raise ConfigError(Problem("data.reader", f"unknown reader {settings.reader!r}", hint))
        return _make(settings.reader, settings, given, registry)
    names = [
        name for name in registry.names("reader") if registry.get("reader", name)(text=settings.text).matches(path)
    ]
    if len(names) > 1:
        hint = "choose: " + " or ".join(f"data.reader={name}" for name in names)
        raise ConfigError(Problem(str(path), f"several readers know these files: {', '.join(names)}", hint))
    if not names:
        raise DataError(*_unknown(path, registry))
    return _make(names[0], settings, given, registry)


def _given(settings: DataSettings) -> dict[str, Any]:
    """The settings for some readers only that are not at their defaults."""
    defaults = DataSettings()
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        name: value for name, value in values.items() if name not in EVERY_READER and value != getattr(defaults, name)
    }


def _make(name: str, settings: DataSettings, given: dict[str, Any], registry: Registry) -> Reader:
    cls = registry.get("reader", name)
    known = {field.name for field in dataclasses.fields(cls)}
    if foreign := [key for key in given if key not in known]:
        raise ConfigError(*(Problem(f"data.{key}", f"the reader {name} has no such option") for key in foreign))
    reader: Reader = cls(text=settings.text, **given)
    return reader


def _unknown(path: Path, registry: Registry) -> list[Problem]:
    """Why nobody reads these files."""
    if path.is_file():
        return [Problem(f"data={path}", "a file, and no table", f"say data={path.parent}")]
    if bags := [name for name in BAGS_OF_WORDS if (path / name).is_file()]:
        reason = f"features of words ({', '.join(bags)}) and no texts: encoders and label texts need what was written"
        return [Problem(str(path), reason, "the repository has most sets as raw text or label-feature JSON too")]
    readers = [Problem("", f"reader {info.name}: {info.summary}") for info in registry.describe("reader")]
    return [Problem(str(path), "no reader knows the files of this folder"), *readers]


def locate(source: str, registry: Registry) -> Path:
    """The folder or file of a data set given by name or path."""
    names = registry.names("dataset")
    path = Path(source).expanduser()
    if source and source not in names:
        if path.exists():
            return path
        if len(path.parts) > 1 or source[0] in ".~":
            raise DataError(
                Problem(f"data={source}", "no such folder or file", f"data sets known by name: {', '.join(names)}")
            )
    try:
        return registry.dataset(source)
    except DataError as error:
        hint = did_you_mean(source, names)
        raise DataError(
            Problem(f"data={source}", "no data set of this name, and no such folder or file", hint)
        ) from error
