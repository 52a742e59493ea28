"""A trained model in Python: the labels of texts, by name or in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from xmclab.api import Ranking
from xmclab.errors import ConfigError, Problem
from xmclab.host.registry import Registry
from xmclab.python.given import Given, Parts
from xmclab.runs.store import Labels
from xmclab.serve.open import open_predictor
from xmclab.serve.output import rows_of
from xmclab.serve.predictor import Predictor
from xmclab.system.trust import trusting_remote_code


class Prediction(NamedTuple):
    """A label of a text."""

    name: str
    score: float
    text: str
    id: int


class Model:
    """A trained model and its labels."""

    def __init__(self, folder: Path, registry: Registry, device: str = "auto") -> None:
        self.folder, self.registry, self.device = folder, registry, device
        self.predictor: Predictor = open_predictor(folder, registry, device)

    @property
    def labels(self) -> Labels:
        """Names and texts of the labels, by id."""
        return self.predictor.labels

    @property
    def searches(self) -> tuple[str, ...]:
        """How labels can be searched: `de`, `clf`, `de+clf`, ..."""
        return self.predictor.searches

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, texts: str, k: int = 5, *, head: str | None = None
    ) -> list[Prediction]: ...
    @overload
    def predict(self, texts: Iterable[str], k: int = 5, *, head: str | None = None) -> list[list[Prediction]]: ...
    def predict(
        self, texts: str | Iterable[str], k: int = 5, *, head: str | None = None
    ) -> list[Prediction] | list[list[Prediction]]:
        """The k best labels of each text, the best first; those of a single text if it is given as such.

        Args:
            head: `de`, `clf`, `de+clf` or another of `searches`; by default the last one.
        """
        if isinstance(texts, str):
            return self.predict([texts], k, head=head)[0]
        names, known = self.labels.names, self.labels.texts
        return [
            [Prediction(names[label], score, known[label], label) for label, score in best]
            for best in rows_of(self.rank(texts, k, head=head))
        ]

    def rank(self, texts: Iterable[str], k: int = 5, *, head: str | None = None) -> Ranking:
        """The same as arrays of label ids and scores, for many texts."""
        if k < 1:
            raise ConfigError(Problem(f"k={k}", "must be at least 1"))
        search, k = self.predictor.pick_search(head), min(k, len(self.labels))
        found = [ranking for _, ranking in self.predictor.answer(_texts(texts), k, search)]
        if not found:
            return Ranking(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        return Ranking(
            np.concatenate([ranking.ids_NK for ranking in found]),
            np.concatenate([ranking.scores_NK for ranking in found]),
        )

    def add_labels(self, labels: Sequence[str] | Sequence[tuple[str, str]]) -> None:
        """Rank these labels as well, by their texts: texts, or pairs of a name and a text."""
        pairs = [(label, label) if isinstance(label, str) else label for label in labels]
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


def _texts(texts: Iterable[str]) -> Iterable[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(Problem(f"text {number}", f"not a text: {text!r:.60}"))
        yield text
