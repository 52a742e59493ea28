"""Predictions of other programs beside a bench: read from files, and scored as the runs are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xmclab.data import open_data
from xmclab.evaluation.scoring import Evaluator
from xmclab.host import Config
from xmclab_bench.statistics import Points

DATA = "{data}"  # in the name of a file: the name of the data set


@dataclass(frozen=True)
class Predictions:
    """The predictions of a program for the test queries of a data set."""

    name: str
    file: str
    data: str  # its sha256
    propensity: tuple[float, float]  # A, B
    metrics: Mapping[str, float]
    points: Points


def scored(files: Mapping[str, str], configs: Iterable[Config]) -> list[Predictions]:
    """The predictions in these files, for each data set of the configs.

    Raises:
        DataError: a file is missing or malformed, or does not fit the data.
    """
    if not files:
        return []
    different = {_decides(config): config for config in configs}
    return [each for config in different.values() for each in _of_data(files, config)]


def _decides(config: Config) -> tuple[object, ...]:
    """What decides the metrics of a ranking."""
    settings = config.settings.evaluate
    return config.data_key(), settings.propensity, settings.k, settings.recall_k, settings.depth


def _of_data(files: Mapping[str, str], config: Config) -> Iterable[Predictions]:
    from xmclab_datatools.named import Names
    from xmclab_datatools.rankings import read_ranking

    data, settings = open_data(config), config.settings.evaluate
    evaluator = Evaluator.of_data(data, settings)
    propensity = evaluator.propensity.a, evaluator.propensity.b
    shape, truth = data.test.targets_NL.shape, f"the test set of {data.name}"
    for name, pattern in files.items():
        file = pattern.replace(DATA, data.name)
        ranking = read_ranking(Path(file), shape, settings.depth, data.test.filter_NL, truth, Names.of(data))
        metrics = evaluator.metrics(ranking)
        points = Points(tuple(metrics), *evaluator.points(ranking, list(metrics)))
        yield Predictions(name, file, data.fingerprint, propensity, metrics, points)
