"""A whole run: from data to a trained model, its metrics and its folder."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from xmclab.api import Dataset, Ragged, Ranking, Search
from xmclab.data import with_reader
from xmclab.data.tokens import Tokeniser
from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError, DivergedError, MemoryLimitError, Problem, XmclabError
from xmclab.evaluation.report import print_table
from xmclab.evaluation.scoring import Evaluator
from xmclab.evaluation.search import Space, rank
from xmclab.host.config import Config
from xmclab.model.device import deterministic, pick_device
from xmclab.runs import store
from xmclab.runs.advice import advice
from xmclab.runs.best import BestEpoch, check_choice
from xmclab.runs.display import Display
from xmclab.runs.observers import observed
from xmclab.runs.profile import Profile
from xmclab.runs.sizes import shortages
from xmclab.system.progress import note
from xmclab.training.loop import Log, fit
from xmclab.training.trainer import Trainer

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the same numbers as its table and its JSON document."""

    folder: Path
    metrics: Scores  # search (de, clf, de+clf) -> metric -> percent
    baselines: Scores
    document: dict[str, Any]


def run(config: Config, out: Path | None = None, console: Console | None = None) -> RunResult:
    """Train and evaluate as the config says; save everything in the run folder.

    Args:
        out: the run folder, new or empty; `runs/...` by default.
        console: where progress goes (default: stderr). Results are returned, not printed.
    """
    console = console or Console(file=sys.stderr)
    settings = config.settings
    started = time.perf_counter()
    profile = Profile(pick_device(settings.device), settings.profile)
    config = with_reader(config)  # so that the saved config names the reader
    if not (settings.evaluate.test or settings.validate.on):
        hint = "set validate.share or validate.file"
        raise ConfigError(Problem("evaluate.test=false", "leaves nothing to measure without validation", hint))
    opened = open_with_validation(config)
    data, validation = opened.whole, opened.validation
    if validation:
        check_choice(config, data.num_labels)
    folder = store.create_folder(out, f"{config.recipe}-{data.name}")
    with deterministic(settings.deterministic):
        with failures(folder, settings.compile):
            trainer = make_trainer(config, opened.training, folder, console, profile)
        store.save_config(folder, config)
        store.write_json(folder / "environment.json", store.environment(config, data, trainer.device))
        test = Queries(config, data, trainer, profile)
        best = None
        if validation:
            queries = Queries(config, validation, trainer, profile, "validation")
            best = BestEpoch(trainer.model, queries.evaluate, settings.validate, len(validation.test))
            test = test if settings.evaluate.test else queries
        seconds = {"prepare": time.perf_counter() - started}
        with observed(config, folder, trainer.steps, started) as log, failures(folder, settings.compile):
            seconds["train"] = train(trainer, log, test, best, folder, console)
            seconds |= {"evaluate": test.seconds} | ({"validate": best.seconds} if best else {})
            with timed(seconds, "baselines"):
                baselines = test.baselines()
            log({"event": "baselines", "metrics": baselines})
            store.save_points(folder, test.points())
            if settings.keep_model:
                store.save_model(folder, trainer.model)
                store.save_search(folder, test.search)
            store.save_labels(folder, store.Labels(data.label_names, data.label_texts))
            seconds["total"] = time.perf_counter() - started
            result = RunResult(folder, test.metrics, baselines, test.document(folder, baselines, seconds))
            if best:
                result.document.update(split=test.purpose, validation=best.document())
            if profile.on:
                result.document["profile"] = profile.summary()
                profile.print_table(console)
            store.write_json(folder / store.RESULT, result.document)
    return result


def train(trainer: Trainer, log: Log, test: Queries, best: BestEpoch | None, folder: Path, console: Console) -> float:
    """Run the loop, with records shown and sent to trackers, and chosen indexes saved; the seconds of training."""
    data, settings = trainer.data, trainer.settings
    queries = f"{len(data.train)} training queries" + (f", {best.queries} validation queries" if best else "")
    note(console, f"{data.name}: {queries}, {data.num_labels} labels, {trainer.steps} steps on {trainer.device}")
    if best and settings.evaluate.every and settings.evaluate.test:
        note(console, "evaluate.every: no effect, as with validation the test queries are ranked once, at the end")
    for name, objective in trainer.objectives.items():
        if objective.needs_all:
            how = "in blocks" if name in trainer.streaming else "in one dense matrix (no closed form, so not streamed)"
            note(console, f"{name}: scores all labels {how}")
    for text in advice(trainer):
        note(console, f"note: {text}")
    for text in shortages(trainer, folder):
        note(console, f"warning: {text}")
    with Display(console, settings.epochs, trainer.steps, settings.validate.metric) as display:

        def tell(record: Any) -> None:
            log(record)
            display.show(record)
            if record["event"] in ("refresh", "eval"):
                store.save_indexes(folder, test.indexes | {"mining": record.get("index", {})})

        return fit(trainer, tell, test.evaluate, best)


class Queries:
    """Ranks and scores the test queries of a data set with the model of a run; keeps the latest rankings."""

    def __init__(
        self, config: Config, data: Dataset, trainer: Trainer, profile: Profile, purpose: str = "test"
    ) -> None:
        self.config, self.data, self.trainer, self.profile = config, data, trainer, profile
        self.purpose = purpose
        self.evaluator = Evaluator.of_data(data)
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
        rankings = {
            name: rank(self.search, name, queries, space, self.data.test.filter_NL, settings.evaluate.depth)
            for name in self.search.names(model.head_names)
        }
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
            "metrics": self.metrics,
            "baselines": baselines,
            "bands": {name: self.evaluator.bands(ranking) for name, ranking in self.rankings.items()},
            "memory": store.peak_memory(self.trainer.device),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "out": str(folder),
        }


def make_trainer(config: Config, data: Dataset, folder: Path, console: Console, profile: Profile) -> Trainer:
    """Build the trainer; on failure, remove the folder so that it can be used again."""
    try:
        return Trainer(config, data, Tokeniser(config.settings.data, console), profile.part)
    except XmclabError:
        folder.rmdir()
        raise


@contextlib.contextmanager
def failures(folder: Path, compiles: bool) -> Iterator[None]:
    """Record where a run diverged; explain what to do when memory runs out or torch cannot compile."""
    try:
        yield
    except DivergedError as error:
        if error.details:
            (folder / "failure").mkdir()
            record = folder / "failure" / "step.json"
            store.write_json(record, error.details)
            error.problems.append(Problem(str(record), "holds the values, queries and labels of that step"))
        raise
    except (MemoryError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "allocation failed"
        # On a CPU torch raises a plain RuntimeError.
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in reason:
            hint = "lower encode.chunk (gradients stay exact), then pool.cap or sampler.batch_size"
            raise MemoryLimitError(Problem("out of memory", reason, hint)) from error
        dynamo: Any = sys.modules.get("torch._dynamo.exc")
        if compiles and dynamo and isinstance(error, dynamo.TorchDynamoException):
            hint = "install a C++ compiler (CPU) or triton (GPU), or set compile=false"
            raise ConfigError(Problem("compile=true", f"torch cannot compile here: {reason}", hint)) from error
        raise


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Record how long the block took."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def print_result(console: Console, result: RunResult) -> None:
    """The closing table of a run."""
    data, seconds = result.document["data"], result.document["seconds"]
    title = (
        f"{result.document['recipe']} on {data['name']} "
        f"({result.document.get('split', 'test')}: {data['test']} queries, {data['labels']} labels), in %"
    )
    print_table(console, title, result.metrics, result.baselines)
    if best := result.document.get("validation"):
        value = best["metrics"][best["search"]][best["metric"]]
        chosen = f"best by {best['metric']} of {best['search']}: {value:.2f} on {best['queries']} validation queries"
        console.print(f"kept epoch {best['epoch']} of {result.document['config']['epochs']}, {chosen}")
    console.print(f"trained in {seconds['train']:.0f} s, {seconds['total']:.0f} s in total; saved in {result.folder}")
