"""Measuring the model of a folder as its run did, on its own or on other data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.data import locate, open_data
from xmclab.data.propensity import Propensity
from xmclab.errors import ConfigError, Problem
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.config import Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import unsettle
from xmclab.host.schema import AUTO
from xmclab.model.device import numerics
from xmclab.runs.measure import Scores
from xmclab.runs.store import Labels
from xmclab.serve.open import open_predictor


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some data."""

    title: str
    metrics: Scores  # search -> metric -> percent
    propensity: Propensity
    document: dict[str, Any]


def evaluate_folder(
    folder: Path,
    source: str | None,
    registry: Registry,
    device: str,
    note: Callable[[str], None],
    overrides: Sequence[str] = (),
) -> Evaluation:
    """Every metric of every search of a model on the test queries of a data set.

    Args:
        source: the data, by default what the model was trained on; read as the run read its own.
        note: takes a line for the user.
        overrides: change how it is read, such as `reader.separator=;`, and what is measured.
    """
    wanted = [*overrides, *([f"data={source}"] if source else ())]
    predictor = open_predictor(folder, registry, device, wanted)
    settings = predictor.config.settings
    as_the_run = source is None or any(override.startswith("reader=") for override in overrides)
    data = open_data(predictor.config if as_the_run else _readable(predictor.config))
    if list(data.label_texts) != list(predictor.labels.texts):
        if not predictor.reads_label_texts:
            reason = f"its labels differ from those of {folder}, and the model has no dual encoder to read them"
            raise ConfigError(Problem(f"--data {data.name}", reason))
        note(f"the labels of {data.name} differ from those of {folder}: only `de`, which reads texts, can rank them")
        predictor = predictor.for_labels(Labels(data.label_names, data.label_texts))
    with numerics(predictor.model.device, settings.deterministic, settings.tf32):
        rankings = predictor.rank_all(data.test.texts, settings.evaluate.depth, filter_NL=data.test.filter_NL)
    evaluator = Evaluator.of_data(data, settings.evaluate)
    metrics = {name: evaluator.metrics(ranking) for name, ranking in rankings.items()}
    sizes = {"test": len(data.test), "labels": data.num_labels}
    return Evaluation(
        title=f"{folder} on {data.name} (test: {sizes['test']} queries, {sizes['labels']} labels), in %",
        metrics=metrics,
        propensity=evaluator.propensity,
        document={
            "model": str(folder),
            "data": {"name": data.name, "sha256": data.fingerprint, **sizes},
            "propensity": evaluator.propensity.to_dict(),
            "metrics": metrics,
        },
    )


def _readable(config: Config) -> Config:
    """The config, with `auto` in place of a reader that does not recognise the files."""
    path = locate(config.settings.data.source, config.registry)
    known = config.choice("reader") == AUTO or config.make("reader").matches(path)
    return config if known else unsettle(config, "reader")
