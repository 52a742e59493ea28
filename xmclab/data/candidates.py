"""Labels listed for each training query by a file, which a miner draws negatives from.

A row for each training query of the data, in its order: sparse text (`rows labels`, then lines of `label:score`) or
scipy's `.npz`. Or JSON lines, which name their queries: {"query": name, "negatives": [label names or ids]}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Miner
from xmclab.data.readers.lines import Problems, excerpt, fingerprint, read_lines
from xmclab.data.sparse import Extent, narrow, read_matrix
from xmclab.errors import ConfigError, DataError, Problem
from xmclab.system.reading import parse_json

if TYPE_CHECKING:
    from xmclab.host.config import Config

JSON_LINES = (".jsonl", ".jsonl.gz")
IN_ORDER = "a row for each training query, in the order of the data; JSON lines name theirs"


def candidates_file(config: Config) -> Path | None:
    """The file that the miner of a config draws from; None if it needs none.

    Raises:
        ConfigError: none is set.
        DataError: it is not there.
    """
    miner: Miner = config.make("miner")
    if miner.candidates is None or not config.settings.pool.eta:
        return None
    name = f"miner={config.choice('miner')}"
    if not miner.candidates:
        raise ConfigError(Problem(name, "needs a file of negatives", "set miner.file=PATH"))
    path = Path(miner.candidates).expanduser()
    if not path.is_file():
        raise DataError(Problem(str(path), "no such file", f"{name} draws negatives from it"))
    return path


def with_candidates(data: Dataset, path: Path | None) -> tuple[Dataset, str]:
    """The data set with the labels that a file lists for its training queries, and the fingerprint of the file.

    Raises:
        DataError: with everything that is wrong with the file.
    """
    if path is None:
        return data, ""
    listed_NL = _of_json_lines(path, data) if path.name.endswith(JSON_LINES) else _of_rows(path, data)
    train = dataclasses.replace(data.train, candidates_NL=listed_NL)
    return dataclasses.replace(data, train=train), fingerprint([path])


def _of_rows(path: Path, data: Dataset) -> sp.csr_array:
    listed_NL = read_matrix(path)
    sizes = ("rows", len(data.train), "training queries", IN_ORDER), ("labels", data.num_labels, "labels", "")
    for found, (what, wanted, name, hint) in zip(listed_NL.shape, sizes, strict=True):
        if found != wanted:
            raise DataError(Problem(str(path), f"has {found:,} {what}, but {data.name} has {wanted:,} {name}", hint))
    return listed_NL


def _of_json_lines(path: Path, data: Dataset) -> sp.csr_array:
    queries, labels = _Names(data.train.names, "training query"), _Names(data.label_names, "label")
    extent = Extent(data.num_labels, f"{data.name} has {data.num_labels} labels")
    problems, rows, columns = Problems(), [], []
    for number, line in read_lines(path, problems):
        try:
            row, found = _entry(line, queries, labels, extent)
        except ValueError as error:
            problems.line(path, number, str(error))
            continue
        rows += [row] * len(found)
        columns += found
    problems.raise_if_any()
    order = np.argsort(np.array(rows, np.int64), kind="stable")
    offsets = np.searchsorted(np.array(rows, np.int64)[order], np.arange(len(data.train) + 1))
    label_E = np.array(columns, np.int64)[order]
    return narrow(np.ones(len(label_E), np.float32), label_E, offsets, (len(data.train), data.num_labels))


def _entry(line: str, queries: _Names, labels: _Names, extent: Extent) -> tuple[int, list[int]]:
    """(row, label ids) of a line."""
    entry = parse_json(line)
    if not isinstance(entry, dict) or set(entry) != {"query", "negatives"} or not isinstance(entry["negatives"], list):
        raise ValueError(f'not {{"query": ..., "negatives": [...]}}: {excerpt(line)}')
    found: list[int] = []
    for label in entry["negatives"]:
        if type(label) is int:
            extent.check("label index", label)
            found.append(label)
        else:
            found.append(labels.place(label))
    return queries.place(entry["query"]), found


class _Names:
    """Where each name is."""

    def __init__(self, names: Sequence[str], kind: str) -> None:
        self.kind = kind
        self._places: dict[str, int] = {}
        self._twice: set[str] = set()
        for place, name in enumerate(names):
            if self._places.setdefault(name, place) != place:
                self._twice.add(name)

    def place(self, name: Any) -> int:
        """The only place of a name; ValueError otherwise."""
        place = self._places.get(name) if isinstance(name, str) else None
        if place is None:
            raise ValueError(f"no {self.kind} has this name: {excerpt(str(name))}")
        if name in self._twice:
            raise ValueError(f"more than one {self.kind} has this name: {excerpt(name)}")
        return place
