"""Validation queries: a share of the training queries, or a file of their own."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmclab.api import Dataset, Reader, Split
from xmclab.data import READER, locate, merge_same_text, own_validation, read_data, with_reader
from xmclab.data.candidates import candidates_file, with_candidates
from xmclab.data.holdout import Keys, filter_answers, key_of, rows_of, same_text, take
from xmclab.data.same_text import filter_same_text
from xmclab.data.transform import transformed
from xmclab.errors import ConfigError, DataError, Problem
from xmclab.host.config import Config
from xmclab.system.messages import kept

logger = logging.getLogger(__name__)

SHARE = 0.1  # of the training queries, by default
ENOUGH = 500  # training queries from which on a share of them can tell epochs apart


@dataclass(frozen=True)
class Opened:
    """The data of a run."""

    whole: Dataset  # as others see it: its test queries are measured the same with validation and without
    training: Dataset  # what is trained on: without the validation queries, and transformed
    validation: Dataset | None  # has the validation queries as its test queries
    candidates: str = ""  # fingerprint of the file that the miner draws from
    by_default: bool = False  # the settings do not mention validation


def open_with_validation(config: Config) -> Opened:
    """The data of a config, with validation queries if it asks for any, or by default if the data suggests it.

    Raises:
        DataError: the data cannot be read (as for `open_data`), or there are no usable validation queries.
        ConfigError: both a share and a file are given.
    """
    settings = config.settings.validate
    if settings.share and settings.file:
        hint = "a file, or a share of the training queries"
        raise ConfigError(Problem("validate.share and validate.file", "both are set", f"choose one: {hint}"))
    listed = candidates_file(config)
    config = with_reader(config)
    data, candidates = with_candidates(read_data(config), listed)
    whole = merge_same_text(config, data)
    by_default = settings.share is None and not settings.file
    file = own_validation(config) if by_default else settings.file
    share = settings.share or 0.0
    if by_default and not file and data.held_out and len(data.train) >= ENOUGH:
        share = SHARE
    if file:
        validation = dataclasses.replace(data, test=_from_file(config, data, Path(file).expanduser()))
        return Opened(whole, _training(config, data, whole), validation, candidates, by_default)
    if share:
        train, held = _set_aside(data, share)
        training = dataclasses.replace(data, train=train)
        validation = dataclasses.replace(training, test=held)
        return Opened(whole, _training(config, training), validation, candidates, by_default)
    return Opened(whole, _training(config, data, whole), None, candidates)


def _training(config: Config, data: Dataset, merged: Dataset | None = None) -> Dataset:
    """What is trained on.

    Args:
        merged: the same data after `merge_same_text`, if it is there already.
    """
    made = transformed(config, data)
    return merged if made is data and merged is not None else merge_same_text(config, made)


def _set_aside(data: Dataset, share: float) -> tuple[Split, Split]:
    """The queries to train on, and a share of them for validation.

    If pairs are filtered from the test set, so are those of the same kind from the validation set.
    """
    where, hint = f"validate.share={share:g}", "choose another share, or a file of validation queries"
    rows = rows_of(data.train, _keys(data.train.texts), share, where, hint, "validation")
    train, held = (take(data.train, some) for some in rows)
    if (data.test.filter_NL > same_text(data.test.texts, data.label_texts)).nnz:  # more than a query with itself
        held = filter_answers(train, held, data.label_texts)
    if not held.targets_NL.nnz:
        raise DataError(Problem(where, f"none of the {len(held)} validation queries has a label", hint))
    return train, held


def _from_file(config: Config, data: Dataset, path: Path) -> Split:
    """The queries of a file or folder."""
    where = f"validate.file={config.settings.validate.file}" if config.settings.validate.file else str(path)
    if not path.exists():
        raise DataError(Problem(where, "no such file or folder"))
    reader: Reader = config.make(READER)
    if path.is_file() and not reader.matches(path):
        hint = "validation queries are read like the data"
        raise DataError(Problem(where, f"reader {config.choice(READER)} does not read such a file", hint))
    found = reader.read_queries(path, data, locate(config.settings.data.source, config.registry))
    with kept("xmclab.data.same_text"):  # said of the data itself
        found = filter_same_text(found, config.settings.data.same_text, reader.filters_same_text)
    if list(found.label_texts) != list(data.label_texts):
        reason = f"its {found.num_labels} labels are not the {data.num_labels} of {data.name}, in the same order"
        raise DataError(Problem(where, reason))
    if not found.test.targets_NL.nnz:
        raise DataError(Problem(where, f"none of its {len(found.test)} queries has a label"))
    keys = _keys(found.test.texts)
    for name, split in (("training", data.train), ("test", data.test)):
        if same := int(np.isin(keys, _keys(split.texts)).sum()):
            logger.warning("%s: %d of %d validation queries are also %s queries", where, same, len(keys), name)
    return found.test


def _keys(texts: Sequence[str]) -> Keys:
    return np.array([key_of(text) for text in texts], dtype=np.uint64)
