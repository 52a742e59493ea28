"""A trained model in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmclab.host.registry import Registry
from xmclab.python.given import Given, Parts, python_names
from xmclab.python.predicts import Predicts
from xmclab.runs.store import Labels
from xmclab.serve.open import open_predictor
from xmclab.serve.predictor import Predictor
from xmclab.system.trust import trusting_remote_code


class Model(Predicts):
    """A trained model and its labels."""

    def __init__(self, folder: Path, registry: Registry, device: str = "auto") -> None:
        self.folder, self.registry, self.device = folder, registry, device
        self._predictor = open_predictor(folder, registry, device)

    @property
    def predictor(self) -> Predictor:
        return self._predictor

    @property
    def labels(self) -> Labels:
        """Names and texts of the labels, by id."""
        return self.predictor.labels

    @property
    def searches(self) -> tuple[str, ...]:
        """How labels can be searched: `de`, `clf`, `de+clf`, ..."""
        return self.predictor.searches

    def add_labels(self, labels: str | Sequence[str] | Sequence[tuple[str, str]]) -> None:
        """Rank these labels as well, by their texts: a text, texts, or pairs of a name and a text."""
        several = [labels] if isinstance(labels, str) else labels
        pairs = [(label, label) if isinstance(label, str) else label for label in several]
        with python_names():
            self.predictor.add_labels(Labels([name for name, _ in pairs], [text for _, text in pairs]))

    def __repr__(self) -> str:
        searches = ", ".join(self.searches)
        return f"Model({self.folder}: {len(self.labels)} labels, searched by {searches})"


def load(
    folder: str | Path,
    *,
    device: str = "auto",
    parts: Parts = (),
    plugin: str | Path | Sequence[str | Path] = (),
    trust_remote_code: bool = False,
) -> Model:
    """The model of a run folder or of an export; training data is not needed.

    Args:
        parts: classes of an encoder, head, search or index that the run was given from Python.
        plugin: files with such parts.
        trust_remote_code: run the model's own code, if it has any.

    Raises:
        StorageError: the folder is not one, or its files are damaged.
        ConfigError: a part that the model is made of is missing.
    """
    registry = Given.of(parts=parts).registry
    for file in [plugin] if isinstance(plugin, str | Path) else plugin:
        registry = registry.with_file(file)
    with trusting_remote_code(trust_remote_code):
        return Model(Path(folder), registry, device)
