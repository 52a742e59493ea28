"""`--add-labels FILE`: labels that the model was not trained with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import note

if TYPE_CHECKING:
    from xmclab.host.registry import Registry
    from xmclab.serve.predictor import Predictor
    from xmclab.serve.texts import TextFile

SHOWN = 5  # names in a note

AddLabels = Annotated[
    Path | None, typer.Option("--add-labels", metavar="FILE", help="Rank these labels too, by their texts.")
]


def read_labels(path: Path, folder: Path, registry: Registry) -> TextFile:
    """The labels of a valid file, with the fields that the model of a folder reads; notes about them are shown."""
    from xmclab.serve.open import text_of
    from xmclab.serve.texts import TextFile

    added = TextFile(path, of_labels=True, fields=text_of(folder, "label", registry))
    added.check()
    for text in added.notes:
        note(text)
    return added


def add_labels(predictor: Predictor, added: TextFile) -> None:
    """Let a model rank these labels as well; a note names those whose name another label has."""
    from xmclab.runs.store import Labels

    records = list(added)
    names = [label.name for label in records]
    predictor.add_labels(Labels(names, [label.text for label in records]))
    taken = Counter(predictor.labels.names)
    if again := sorted({name for name in names if taken[name] > 1}):
        shown = ", ".join([*again[:SHOWN], *(["..."] if len(again) > SHOWN else [])])
        note(f"{added.path}: these names belong to several labels; tell them apart by label number: {shown}")
