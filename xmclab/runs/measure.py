"""Measuring the model of a run while it trains and at its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmclab.api import Dataset, Ragged, Ranking, Search
from xmclab.evaluation.scoring import Evaluator
from xmclab.evaluation.search import Space, rank_all
from xmclab.host.config import Config
from xmclab.runs import store
from xmclab.runs.profile import Profile
from xmclab.training.trainer import Trainer

Scores = dict[str, dict[str, float]]


class Queries:
    """Ranks and scores the test queries of a data set with the model of a run; keeps the latest rankings."""

    def __init__(
        self, config: Config, data: Dataset, trainer: Trainer, profile: Profile, purpose: str = "test"
    ) -> None:
        self.config, self.data, self.trainer, self.profile = config, data, trainer, profile
        self.purpose = purpose
        self.evaluator = Evaluator.of_data(data, config.settings.evaluate)
        self.rankings: dict[str, Ranking] = {}
        self.metrics: Scores = {}
        self.indexes: dict[str, dict[str, Any]] = {}  # what each search reports of its index
        self.seconds = 0.0
        self.search: Search  # the latest
        self._tokens: Ragged | None = None

    def evaluate(self) -> Scores:
        """All metrics of all searches of the current model."""
        started = time.perf_counter()
        with self.profile.part("evaluation"):
            self.rankings = self._rank()
        self.metrics = {name: self.evaluator.metrics(ranking) for name, ranking in self.rankings.items()}
        self.seconds += time.perf_counter() - started
        return self.metrics

    def _rank(self) -> dict[str, Ranking]:
        trainer, settings = self.trainer, self.config.settings
        if self._tokens is None:
            what = f"{self.purpose} queries"
            self._tokens = trainer.tokeniser.tokens(trainer.model.encoder, self.data.test.texts, what)
        model, chunk = trainer.model, settings.encode.search_chunk
        queries = model.query_vectors(self._tokens, chunk)
        labels = model.label_vectors(trainer.label_tokens, chunk)
        space = Space(model.head_names, self.data.num_labels, labels, lambda heads: (self.config.make("index"), False))
        self.search = self.config.make("search")
        if self.search.reads_training_queries:
            self.search.fit(model.query_vectors(trainer.query_tokens, chunk), trainer.targets_NL)
        names, filter_NL = self.search.names(model.head_names), self.data.test.filter_NL
        rankings = rank_all(self.search, names, queries, space, filter_NL, settings.evaluate.depth)
        self.indexes = {heads: index.report() for heads, index in space.indexes.items()}
        self.indexes[store.SEARCH_INDEX] = self.search.index.report()
        return rankings

    def baselines(self) -> Scores:
        """All metrics of the chosen baselines."""
        depth = self.config.settings.evaluate.depth
        chosen = self.config.make_all("baseline")
        return {name: self.evaluator.metrics(each.rank(self.data, depth)) for name, each in chosen.items()}

    def points(self) -> dict[str, NDArray[Any]]:
        """What each test query (or group of them) contributes to the metrics, for significance tests."""
        metrics = list(next(iter(self.metrics.values())))
        arrays: dict[str, NDArray[Any]] = {"metrics": np.array(metrics, dtype=str)}
        if not metrics:  # there are no test queries
            return arrays
        for name, ranking in self.rankings.items():
            arrays[f"found {name}"], arrays["best"] = self.evaluator.points(ranking, metrics)
        return arrays

    def document(self, folder: Path, baselines: Scores, seconds: dict[str, float]) -> dict[str, Any]:
        """The result of the run as JSON values."""
        data = self.data
        return {
            "recipe": self.config.recipe,
            "data": {
                "name": data.name,
                "sha256": data.fingerprint,
                "train": len(data.train),
                "test": len(data.test),
                "labels": data.num_labels,
            },
            "seed": self.config.settings.seed,
            "config": self.config.to_dict(),
            "propensity": self.evaluator.propensity.to_dict(),
            "metrics": self.metrics,
            "baselines": baselines,
            "bands": {name: self.evaluator.bands(ranking) for name, ranking in self.rankings.items()},
            "memory": store.peak_memory(self.trainer.device),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "out": str(folder),
        }
