"""From a folder to something that answers queries."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from xmclab.api import Side, TextFields
from xmclab.errors import Problem, StorageError, XmclabError
from xmclab.host.config import Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.model.device import pick_device, precision_of_run
from xmclab.runs.start import WITHOUT_TRAINING
from xmclab.runs.store import (
    CONFIG,
    LABELS,
    RESULT,
    SEARCH,
    load_indexes,
    load_labels,
    load_model,
    load_search,
    numerics_of,
)
from xmclab.serve.export import AGAIN, MANIFEST, VECTORS, load_export
from xmclab.serve.predictor import Predictor

log = logging.getLogger("xmclab.serve")

NO_DATA = ("reader=auto",)  # keeps what is read of a text, which the model expects of others


def text_of(folder: Path, side: Side, registry: Registry) -> TextFields:
    """What the model of a run folder or an export was trained on; the title if `open_predictor` will refuse it."""
    with contextlib.suppress(XmclabError):
        return fields_read(resolve([f"recipe={folder / CONFIG}", *WITHOUT_TRAINING, *NO_DATA], registry), side)
    return "title"


def fields_read(config: Config, side: Side) -> TextFields:
    """The same by the config of the model."""
    reader = config.parts["reader"]
    options = reader.options if reader else {}
    fields: TextFields = options.get(f"{side}_text") or options.get("text", "title")
    return fields


def open_predictor(
    folder: Path, registry: Registry, device: str = "auto", overrides: Sequence[str] = NO_DATA
) -> Predictor:
    """The model of a run folder, or of an export.

    Args:
        overrides: how data is read, if at all; by default no reader is needed.
    """
    overrides = (*WITHOUT_TRAINING, f"device={device}", *overrides)
    place = pick_device(device)
    if (folder / MANIFEST).is_file():
        return load_export(folder, registry, place, overrides)
    if (folder / VECTORS).is_dir():  # a run folder has none
        raise StorageError(Problem(str(folder / MANIFEST), "missing", AGAIN))
    config, model = load_model(folder, registry, *overrides)
    labels = load_labels(folder)
    if len(labels) != model.num_labels:
        counts = f"{len(labels)} labels, but the model has {model.num_labels}"
        raise StorageError(Problem(str(folder / LABELS), f"damaged: {counts}"))
    model.to(place).precision = precision_of_run(place, numerics_of(folder))
    chunk = config.settings.encode.search_chunk

    def label_vectors(head: str) -> Tensor:
        textual = model.head(head).labels_from == "text"
        tokens = model.encoder.tokenise(labels.texts if textual else labels.texts[:1])  # a table reads no text
        return model.label_vectors(tokens, chunk, [head])[head]

    # A run that was not evaluated has weights, but nothing for a search that learns from the training queries.
    evaluated = (folder / RESULT).is_file() or (folder / SEARCH).is_dir()
    if not evaluated:
        log.warning("%s: the run has not been evaluated; labels are ranked by its heads", folder)
    return Predictor(
        config,
        model,
        labels,
        label_vectors,
        chosen=load_indexes(folder),
        load_search=(lambda search: load_search(folder, search, model.device)) if evaluated else None,
    )
