"""The labels of texts: by name, as arrays, or from file to file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from xmclab.api import Ranking
from xmclab.errors import ConfigError, Problem
from xmclab.python.given import python_names
from xmclab.serve.bulk import Asked, write_answers
from xmclab.serve.open import fields_read
from xmclab.serve.output import Shape, format_of, new_answers, rows_of
from xmclab.serve.predictor import Predictor
from xmclab.serve.texts import TextFile


class Prediction(NamedTuple):
    """A label of a text."""

    name: str
    score: float
    text: str
    id: int


class Predicts(ABC):
    """Whatever has a trained model."""

    @property
    @abstractmethod
    def predictor(self) -> Predictor:
        """The model that answers."""

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, texts: str, k: int = 5, *, head: str | None = None, threshold: float | None = None
    ) -> list[Prediction]: ...
    @overload
    def predict(
        self, texts: Iterable[str], k: int = 5, *, head: str | None = None, threshold: float | None = None
    ) -> list[list[Prediction]]: ...
    def predict(
        self, texts: str | Iterable[str], k: int = 5, *, head: str | None = None, threshold: float | None = None
    ) -> list[Prediction] | list[list[Prediction]]:
        """The k best labels of each text, the best first; those of a single text if it is given as such.

        Args:
            head: `de`, `clf`, `de+clf` or another of `searches`; by default the last one.
            threshold: leave out labels with a lower score.
        """
        if isinstance(texts, str):
            return self.predict([texts], k, head=head, threshold=threshold)[0]
        labels = self.predictor.labels
        return [
            [Prediction(labels.names[label], score, labels.texts[label], label) for label, score in best]
            for best in rows_of(self.rank(texts, k, head=head, threshold=threshold))
        ]

    def rank(
        self, texts: str | Iterable[str], k: int = 5, *, head: str | None = None, threshold: float | None = None
    ) -> Ranking:
        """The same as arrays of label ids and scores, for many texts."""
        several = [texts] if isinstance(texts, str) else texts
        with python_names():
            asked = Asked.of(self.predictor, k, head, threshold)
            answers = self.predictor.answer(_texts(several), asked.k, asked.search, threshold=threshold)
            found = [ranking for _, ranking in answers]
        if not found:
            return Ranking(np.empty((0, asked.k), np.int64), np.empty((0, asked.k), np.float32))
        return Ranking(
            np.concatenate([ranking.ids_NK for ranking in found]),
            np.concatenate([ranking.scores_NK for ranking in found]),
        )

    def predict_file(
        self,
        file: str | Path,
        out: str | Path,
        k: int = 5,
        *,
        head: str | None = None,
        threshold: float | None = None,
        column: str | None = None,
        overwrite: bool = False,
    ) -> int:
        """Answer the texts of a file in another, as `xmclab predict` does, in constant memory; returns their number.

        Args:
            file: `.txt`, `.csv`, `.tsv`, `.jsonl`, `.json` (any of them as `.gz`) or `.parquet`.
            out: its name says which format is written: one of these; `.txt` is sparse text.
            column: the column of the texts.
            overwrite: replace `out` if it exists.
        """
        predictor, out = self.predictor, Path(out)
        with python_names():
            asked, form = Asked.of(predictor, k, head, threshold), format_of(out)
        queries = TextFile(Path(file), column, fields=fields_read(predictor.config, "query"))
        rows = queries.check()
        with (
            python_names(),
            new_answers(out, form, Shape(predictor.labels, rows, queries.has_ids), overwrite) as writer,
        ):
            write_answers(predictor, queries, asked, writer)
        return rows


def _texts(texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(Problem(f"text {number}", f"not a text: {text!r:.60}"))
        yield text
