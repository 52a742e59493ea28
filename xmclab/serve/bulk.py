"""From texts to written answers: what `xmclab predict` and `Model.predict_file` share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from xmclab.errors import ConfigError, Problem
from xmclab.serve.output import Writer
from xmclab.serve.predictor import Predictor
from xmclab.serve.texts import TextRecord


@dataclass(frozen=True)
class Asked:
    """How labels are chosen for every query."""

    k: int
    search: str
    threshold: float | None = None

    @classmethod
    def of(cls, predictor: Predictor, k: int, head: str | None, threshold: float | None) -> Asked:
        """What a user asked for.

        Args:
            head: None: the search that `pick_search` picks.

        Raises:
            ConfigError: something is wrong with it.
        """
        if k < 1:
            raise ConfigError(Problem(f"k={k}", "must be at least 1"))
        if threshold is not None and math.isnan(threshold):
            raise ConfigError(Problem(f"threshold={threshold}", "is not a number"))
        return cls(min(k, len(predictor.labels)), predictor.pick_search(head), threshold)


def write_answers(
    predictor: Predictor,
    queries: Iterable[TextRecord],
    asked: Asked,
    writer: Writer,
    advance: Callable[[int], object] = lambda count: None,
) -> int:
    """Write the labels of every query, block by block; nothing is written if the first block fails.

    Args:
        advance: told how many queries were answered.

    Returns:
        The number of queries without any label.
    """
    without = 0
    answers = predictor.answer(queries, asked.k, asked.search, attrgetter("text"), asked.threshold)
    try:
        first = next(answers, None)
        writer.start()
        for block, ranking in itertools.chain([first] if first else [], answers):
            writer.write(block, ranking)
            without += int((ranking.ids_NK < 0).all(axis=1).sum())
            advance(len(block))
        writer.end()
    finally:
        writer.abandon()
    return without
