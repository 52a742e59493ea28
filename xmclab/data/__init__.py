"""Data sets: opened by name, folder or file, read and validated by the reader of their format."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmclab.errors import ConfigError, DataError, Problem, closest, did_you_mean
from xmclab.host.options import make_part, options_of
from xmclab.host.resolver import settle
from xmclab.host.schema import AUTO

if TYPE_CHECKING:
    from xmclab.api import Dataset, Reader, TextFields
    from xmclab.host.config import Config
    from xmclab.host.registry import Registry

__all__ = ["open_data", "open_dataset", "own_validation", "with_reader"]

READER = "reader"
NEAR, MOST_NAMES = 0.75, 1000  # how alike names of files must be to be suggested, and how many are looked at
BAGS_OF_WORDS = ("trn_X_Xf.txt", "tst_X_Xf.txt", "X.trn.npz", "X.tst.npz", "X_trn.npz", "train.txt", "test.txt")


def open_dataset(source: str, text: TextFields, registry: Registry) -> Dataset:
    """Read and validate a data set.

    Args:
        source: a name that a plugin supplies (`debian`, `tiny`), a folder or a table; names come before folders.
        text: which text of queries and labels is read.

    Raises:
        DataError: no such data set, no reader recognises its files, or they are malformed.
        ConfigError: several readers recognise its files.
    """
    path = locate(source, registry)
    name = find_reader(path, {"text": text}, registry)
    reader: Reader = make_part(registry.get(READER, name), {"text": text}, READER)
    return reader.read(path)


def open_data(config: Config) -> Dataset:
    """The data set of a config, by its reader.

    Raises:
        DataError: as above.
        ConfigError: several readers recognise the files, or the one that does lacks an option that was set.
    """
    return merge_same_text(config, read_data(config))


def read_data(config: Config) -> Dataset:
    """The same, with the labels as the files have them."""
    from xmclab.data.same_text import filter_same_text

    config = with_reader(config)
    path = locate(config.settings.data.source, config.registry)
    reader: Reader = config.make(READER)
    try:
        return filter_same_text(reader.read(path), config.settings.data.same_text, reader.filters_same_text)
    except DataError as error:
        if not reader.matches(path):
            hint = f"{READER}={AUTO} picks the reader that does"
            error.problems.append(Problem(f"{READER}={config.choice(READER)}", "does not recognise these files", hint))
        raise


def merge_same_text(config: Config, dataset: Dataset) -> Dataset:
    """The data set, prepared as `data.merge_same_text` says."""
    if not config.settings.data.merge_same_text:
        return dataset
    from xmclab.data.same_text import spare_same_text

    return spare_same_text(dataset)


def with_reader(config: Config) -> Config:
    """The config with `auto` replaced by the reader that recognises its files; so are its earlier stages."""
    if config.earlier:
        earlier = {name: with_reader(stage) for name, stage in config.earlier.items()}
        config = replace(config, earlier=earlier)
    part = config.parts[READER]
    assert part is not None, "a reader cannot be none"
    if part.name != AUTO:
        return config
    path = locate(config.settings.data.source, config.registry)
    return settle(config, READER, find_reader(path, part.options, config.registry))


def own_validation(config: Config) -> Path | None:
    """The validation queries that come with the data of a config."""
    config = with_reader(config)
    reader: Reader = config.make(READER)
    return reader.validation_queries(locate(config.settings.data.source, config.registry))


def find_reader(path: Path, given: Mapping[str, Any], registry: Registry) -> str:
    """The name of the one reader that recognises the files.

    Args:
        given: options that were set; each reader is given those that it has.
    """
    names = []
    unfit: dict[str, str] = {}
    for name in registry.names(READER):
        cls = registry.get(READER, name)
        try:
            reader = make_part(cls, {key: given[key] for key in options_of(cls) if key in given}, READER)
        except ConfigError as error:
            unfit[name] = "; ".join(map(str, error.problems))
            continue
        if reader.matches(path):
            names.append(name)
    if len(names) > 1:
        hint = "choose " + " or ".join(f"{READER}={name}" for name in names)
        raise ConfigError(Problem(str(path), f"several readers recognise these files: {', '.join(names)}", hint))
    if not names:
        raise DataError(*_unknown(path, registry, unfit))
    return names[0]


def _unknown(path: Path, registry: Registry, unfit: Mapping[str, str]) -> list[Problem]:
    """Why no reader takes these files."""
    readers = [
        Problem("", f"reader {info.name}: {info.summary}", unfit.get(info.name, ""))
        for info in registry.describe(READER)
    ]
    if path.is_file():
        hint = f"pass its folder: data={path.parent}"
        return [
            Problem(f"data={path}", "not a table file (.csv, .tsv, .jsonl, .parquet)", hint),
            *(reader for reader in readers if reader.hint),
        ]
    if bags := [name for name in BAGS_OF_WORDS if (path / name).is_file()]:
        reason = f"bag-of-words features ({', '.join(bags)}) without the raw text; encoders need the text"
        return [Problem(str(path), reason, "the repository also offers most sets as raw text or label-feature JSON")]
    return [Problem(str(path), "no reader recognises the files in this folder"), *readers]


def _near(path: Path) -> str:
    """A file or folder beside a path that does not exist, of nearly the same name; empty if there is none."""
    with contextlib.suppress(OSError):
        names = [each.name for each in itertools.islice(path.parent.iterdir(), MOST_NAMES)]
        if name := closest(path.name, names, NEAR):
            return str(path.with_name(name))
    return ""


def locate(source: str, registry: Registry) -> Path:
    """The folder or file of a data set given by name or path."""
    names = registry.names("dataset")
    path = Path(source).expanduser()
    if source and source not in names:
        if path.exists():
            return path
        if len(path.parts) > 1 or source[0] in ".~":
            near = _near(path)
            hint = f"did you mean {near!r}?" if near else f"data sets known by name: {', '.join(names)}"
            raise DataError(Problem(f"data={source}", "no such folder or file", hint))
    try:
        return registry.dataset(source)
    except DataError as error:
        near = source and _near(Path(source)) if closest(source, names) is None else ""
        hint = f"did you mean {near!r}?" if near else did_you_mean(source, names)
        raise DataError(Problem(f"data={source}", "no data set, folder or file of this name", hint)) from error
