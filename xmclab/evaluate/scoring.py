"""Everything worth knowing of a ranking: metrics with intervals, and what frequent and rare labels bring to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.evaluate.bootstrap import intervals
from xmclab.evaluate.metrics import (
    LabelGroups,
    contributions,
    evaluate,
    frequency_bands,
    frequency_deciles,
    inverse_propensity,
)
from xmclab.keys import Keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAMILIES = {"amazon": (0.6, 2.6), "wikipedia": (0.5, 0.4)}
DEFAULT_PROPENSITY = (0.55, 1.5)
DEPTH = 100  # of the deepest metric, R@100


@dataclass(frozen=True)
class GroupScores:
    """What a group of labels brings to every metric; the groups of a partition sum to the whole."""

    labels: int  # in the group
    metrics: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """How good a ranking is, in percent."""

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95 %
    bands: dict[str, GroupScores]  # head, torso, tail
    deciles: dict[str, GroupScores]
    rows: int
    labels: int
    propensity: tuple[float, float]  # A, B

    def to_dict(self) -> dict[str, Any]:
        """In terms of JSON."""
        groups = {
            kind: {name: {"labels": group.labels, **group.metrics} for name, group in some.items()}
            for kind, some in (("bands", self.bands), ("deciles", self.deciles))
        }
        return {
            "metrics": self.metrics,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            **groups,
            "rows": self.rows,
            "labels": self.labels,
            "propensity": dict(zip("AB", self.propensity, strict=True)),
        }


def score(
    ranking: Ranking,
    truth_NL: sp.csr_array,
    train_NL: sp.csr_array,
    propensity: tuple[float, float] = DEFAULT_PROPENSITY,
    draws: int = 1000,
    seed: int = 0,
) -> Scores:
    """Score a ranking of labels.

    Args:
        train_NL: the labels of the training queries, which say how frequent a label is.
        propensity: (A, B) of the propensity model.
        draws: of the bootstrap; 0: no intervals.
    """
    weights_L = inverse_propensity(train_NL, *propensity)
    metrics = evaluate(ranking, truth_NL, weights_L)
    rng = Keys(seed).rng("bootstrap")
    parts = [
        _groups(ranking, truth_NL, weights_L, groups)
        for groups in (frequency_bands(train_NL), frequency_deciles(train_NL))
    ]
    return Scores(
        metrics=metrics,
        intervals=intervals(ranking, truth_NL, weights_L, list(metrics), draws, rng) if draws and metrics else {},
        bands=parts[0],
        deciles=parts[1],
        rows=truth_NL.shape[0],
        labels=truth_NL.shape[1],
        propensity=propensity,
    )


def _groups(
    ranking: Ranking, truth_NL: sp.csr_array, weights_L: NDArray[np.float64], groups: LabelGroups
) -> dict[str, GroupScores]:
    sizes = np.bincount(groups.group_L, minlength=len(groups.names)).tolist()
    found = contributions(ranking, truth_NL, weights_L, groups)
    return {name: GroupScores(size, found[name]) for name, size in zip(groups.names, sizes, strict=True)}
