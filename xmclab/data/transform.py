"""What a run trains on: the training queries of its data, changed by the transforms it chose."""

from __future__ import annotations

import dataclasses

from xmclab.api import Dataset
from xmclab.errors import DataError, PluginError, Problem
from xmclab.host.config import Config

SLOT = "transform"


def transformed(config: Config, data: Dataset) -> Dataset:
    """The data set with the training queries that the transforms of a config make, in their order.

    Raises:
        PluginError: a transform changed something else, or its parts do not fit together.
        DataError: none of the training queries that are left has a label.
    """
    chosen = config.make_all(SLOT)
    if not chosen:
        return data
    found = dataclasses.replace(data, original=data.real)
    for name, transform in chosen.items():
        before, found = found, transform.apply(found)
        if fault := fault_of(before, found):
            raise PluginError(Problem(f"{SLOT}={name}", fault))
    if not found.train.targets_NL.nnz:
        raise DataError(Problem(f"{SLOT}={config.choice(SLOT)}", "leaves no training query with a label"))
    return found


def fault_of(before: Dataset, found: Dataset) -> str:
    """What a transform must not have done; empty if all is well."""
    for field in dataclasses.fields(Dataset):
        if field.name != "train" and getattr(found, field.name) is not getattr(before, field.name):
            return f"changed `{field.name}`, not only the training queries"
    train, rows = found.train, len(found.train.texts)
    if len(train.names) != rows:
        return f"made {rows} texts, but {len(train.names)} names"
    if (train.candidates_NL is None) != (before.train.candidates_NL is None):
        return "dropped the negatives that a file lists (`candidates_NL`)"
    for name in ("targets_NL", "filter_NL", "candidates_NL"):
        matrix = getattr(train, name)
        if matrix is not None and matrix.shape != (rows, found.num_labels):
            return f"made {name} of shape {matrix.shape} for {rows} queries and {found.num_labels} labels"
    return ""
