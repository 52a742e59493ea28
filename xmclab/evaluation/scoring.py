"""The scores of a ranking: metrics with intervals, and what frequent and rare labels contribute to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Ranking
from xmclab.data.propensity import (
    LabelGroups,
    Propensity,
    frequency_bands,
    frequency_deciles,
    inverse_propensity,
    propensity_of,
)
from xmclab.evaluation.bootstrap import group_sums, intervals
from xmclab.evaluation.metrics import contributions, evaluate
from xmclab.host.schema import EvaluateSettings
from xmclab.keys import Keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

DEFAULT = EvaluateSettings()
DEPTH = DEFAULT.depth  # of rankings that other programs made


@dataclass(frozen=True)
class GroupScores:
    """What a group of labels contributes to every metric; the groups of a partition sum to the whole."""

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
    propensity: Propensity

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
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
            "propensity": self.propensity.to_dict(),
        }


class Evaluator:
    """Scores rankings of the same queries: the one evaluator of `run`, `eval`, `score` and the baselines."""

    def __init__(
        self,
        truth_NL: sp.csr_array,
        train_NL: sp.csr_array,
        propensity: Propensity,
        ks: Sequence[int] = DEFAULT.k,
        recall_ks: Sequence[int] = DEFAULT.recall_k,
    ) -> None:
        """
        Args:
            train_NL: the labels of the training queries, which say how frequent a label is.
            ks: cut-offs of P, PSP, nDCG and PSnDCG.
            recall_ks: cut-offs of R and PSR.
        """
        self.truth_NL, self.train_NL, self.propensity = truth_NL, train_NL, propensity
        self.weights_L = inverse_propensity(train_NL, propensity.a, propensity.b)
        self.cuts = ks, recall_ks

    @classmethod
    def of_data(cls, data: Dataset, settings: EvaluateSettings = DEFAULT) -> Evaluator:
        """For rankings of the test queries of a data set."""
        propensity = propensity_of(data.name, settings.propensity)
        return cls(data.test.targets_NL, data.train.targets_NL, propensity, settings.k, settings.recall_k)

    def metrics(self, ranking: Ranking) -> dict[str, float]:
        """Every metric, in percent."""
        return evaluate(ranking, self.truth_NL, self.weights_L, *self.cuts)

    def bands(self, ranking: Ranking) -> dict[str, dict[str, float]]:
        """What head, torso and tail labels contribute to every metric."""
        return contributions(ranking, self.truth_NL, self.weights_L, frequency_bands(self.train_NL), *self.cuts)

    def points(self, ranking: Ranking, metrics: Sequence[str]) -> tuple[Floats, Floats]:
        """(found_GM, best_GM): what each query, or group of queries, adds to the metrics; for tests of differences.

        The queries are in random order, the same for every ranking of as many queries.
        """
        rng = Keys(0).rng("points")
        return group_sums(ranking, self.truth_NL, self.weights_L, metrics, rng)

    def scores(self, ranking: Ranking, draws: int = 1000, seed: int = 0) -> Scores:
        """All scores; `draws`: bootstrap draws, 0 for no intervals."""
        metrics, rng = self.metrics(ranking), Keys(seed).rng("bootstrap")
        rest = self.truth_NL, self.weights_L, list(metrics), draws, rng
        return Scores(
            metrics=metrics,
            intervals=intervals(ranking, *rest) if draws and metrics else {},
            bands=self._groups(ranking, frequency_bands(self.train_NL)),
            deciles=self._groups(ranking, frequency_deciles(self.train_NL)),
            rows=self.truth_NL.shape[0],
            labels=self.truth_NL.shape[1],
            propensity=self.propensity,
        )

    def _groups(self, ranking: Ranking, groups: LabelGroups) -> dict[str, GroupScores]:
        sizes = np.bincount(groups.group_L, minlength=len(groups.names)).tolist()
        found = contributions(ranking, self.truth_NL, self.weights_L, groups, *self.cuts)
        return {name: GroupScores(size, found[name]) for name, size in zip(groups.names, sizes, strict=True)}
