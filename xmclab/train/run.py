"""A whole run: data in, a trained model, its metrics and its folder out."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from xmclab.api import Dataset, Keys, Ragged, Ranking
from xmclab.config import Config
from xmclab.data import open_data
from xmclab.data.tokens import Tokeniser
from xmclab.errors import ConfigError, DivergedError, MemoryLimitError, Problem, XmclabError
from xmclab.evaluate.bootstrap import group_sums
from xmclab.evaluate.metrics import (
    contributions,
    evaluate,
    frequency_bands,
    inverse_propensity,
    propensity_parameters,
)
from xmclab.evaluate.report import print_table
from xmclab.evaluate.search import rank_all
from xmclab.plugins import Registry
from xmclab.train import store
from xmclab.train.display import Display
from xmclab.train.observers import observed
from xmclab.train.trainer import Trainer

Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class RunResult:
    """What a run found: the same numbers as its table and its JSON document."""

    folder: Path
    metrics: Scores  # search (de, clf, de+clf) -> metric -> percent
    baselines: Scores
    document: dict[str, Any]


class Evaluator:
    """Scores rankings of the test queries; baselines are computed once."""

    def __init__(self, config: Config, data: Dataset) -> None:
        self.config, self.data = config, data
        self.inverse_propensity_L = inverse_propensity(data.train.targets_NL, *propensity_parameters(data.name))
        self.test_tokens: Ragged | None = None

    def score(self, rankings: Mapping[str, Ranking]) -> Scores:
        truth = self.data.test.targets_NL
        return {name: evaluate(ranking, truth, self.inverse_propensity_L) for name, ranking in rankings.items()}

    def model(self, trainer: Trainer) -> Scores:
        """Metrics of every search of the model as it is now."""
        return self.score(self.rankings(trainer))

    def rankings(self, trainer: Trainer) -> dict[str, Ranking]:
        """The labels of the test queries by every search of the model as it is now."""
        trainer.model.settle()
        settings = self.config.settings
        with trainer.profile.part("evaluation"):
            if self.test_tokens is None:
                self.test_tokens = trainer.tokeniser.tokens(trainer.model.encoder, self.data.test.texts, "test queries")
            return rank_all(
                trainer.model,
                lambda: self.config.make("index"),
                self.test_tokens,
                trainer.label_tokens,
                self.data.test.filter_NL,
                settings.evaluate.depth,
                settings.encode.search_chunk,
            )

    def bands(self, rankings: Mapping[str, Ranking]) -> dict[str, dict[str, dict[str, float]]]:
        """What head, torso and tail labels bring to the metrics of every search."""
        truth, groups = self.data.test.targets_NL, frequency_bands(self.data.train.targets_NL)
        return {
            name: contributions(ranking, truth, self.inverse_propensity_L, groups) for name, ranking in rankings.items()
        }

    def points(self, rankings: Mapping[str, Ranking], scores: Scores) -> dict[str, NDArray[Any]]:
        """What each test query (or group of them) contributes to the metrics, for the tests of differences."""
        metrics = list(next(iter(scores.values())))
        arrays: dict[str, NDArray[Any]] = {"metrics": np.array(metrics, dtype=str)}
        if not metrics:  # there are no test queries
            return arrays
        for name, ranking in rankings.items():
            rng = Keys(0).rng("points")  # the same groups in every run
            found_GM, best_GM = group_sums(ranking, self.data.test.targets_NL, self.inverse_propensity_L, metrics, rng)
            arrays |= {f"found {name}": found_GM, "best": best_GM}
        return arrays

    def baselines(self, registry: Registry) -> Scores:
        depth = self.config.settings.evaluate.depth
        return self.score({n: registry.get("baseline", n)().rank(self.data, depth) for n in registry.names("baseline")})


def run(config: Config, registry: Registry, out: Path | None = None, console: Console | None = None) -> RunResult:
    """Train and evaluate as the config says; everything is kept in the run folder.

    Args:
        out: the run folder, new or empty; `runs/...` by default.
        console: where progress goes (default: stderr). Results are returned, not printed.
    """
    console = console or Console(file=sys.stderr)
    settings = config.settings
    seconds: dict[str, float] = {}
    started = time.perf_counter()
    data = open_data(settings.data, registry)
    folder = store.create_folder(out, f"{config.recipe}-{data.name}")
    with deterministic(settings.deterministic):
        with failures(folder, settings.compile):
            trainer = make_trainer(config, data, folder, console)
        evaluator = Evaluator(config, data)
        store.save_config(folder, config)
        store.write_json(folder / "environment.json", store.environment(config, data, trainer.device))
        with observed(config, folder, trainer.steps, started, console) as log, failures(folder, settings.compile):
            seconds["prepare"] = time.perf_counter() - started
            with timed(seconds, "train"), Display(console, settings.epochs, trainer.steps) as display:
                display.note(
                    f"{data.name}: {len(data.train)} training queries, {data.num_labels} labels, "
                    f"{trainer.steps} steps on {trainer.device}"
                )
                for name, term in trainer.terms.items():
                    if term.objective.needs_all:
                        how = "in blocks" if term.streams else "by the whole matrix of scores"
                        display.note(f"{name}: against all labels, {how}")

                def after_epoch(done: int) -> None:
                    if settings.evaluate.every and done % settings.evaluate.every == 0 and done < settings.epochs:
                        found = evaluator.model(trainer)
                        log({"event": "eval", "epoch": done, "seconds": trainer.seconds, "metrics": found})
                        scores = "  ".join(f"{name} P@1 {row['P@1']:.2f}" for name, row in found.items())
                        display.note(f"after epoch {done}: {scores}")

                trainer.fit(log, display, after_epoch)
            with timed(seconds, "evaluate"):
                rankings = evaluator.rankings(trainer)
                metrics = evaluator.score(rankings)
            with timed(seconds, "baselines"):
                baselines = evaluator.baselines(registry) if settings.evaluate.baselines else {}
            final = {"event": "eval", "epoch": settings.epochs, "seconds": trainer.seconds, "metrics": metrics}
            log({**final, "baselines": baselines})
            store.save_points(folder, evaluator.points(rankings, metrics))
            if settings.keep_model:
                store.save_model(folder, trainer.model)
            store.save_labels(folder, store.Labels(data.label_names, data.label_texts))
            seconds["total"] = time.perf_counter() - started
            document = {
                "recipe": config.recipe,
                "data": {
                    "name": data.name,
                    "sha256": data.fingerprint,
                    "train": len(data.train),
                    "test": len(data.test),
                    "labels": data.num_labels,
                },
                "seed": settings.seed,
                "config": config.to_dict(),
                "metrics": metrics,
                "baselines": baselines,
                "bands": evaluator.bands(rankings),
                "memory": store.peak_memory(trainer.device),
                "seconds": {name: round(value, 3) for name, value in seconds.items()},
                "out": str(folder),
            }
            if trainer.profile.on:
                document["profile"] = trainer.profile.summary()
                trainer.profile.print_table(console)
            store.write_json(folder / store.RESULT, document)
    return RunResult(folder, metrics, baselines, document)


def make_trainer(config: Config, data: Dataset, folder: Path, console: Console) -> Trainer:
    """A trainer; if it cannot be made, nothing is left behind and the same folder can be named again."""
    try:
        return Trainer(config, data, Tokeniser(config.settings.data, console))
    except XmclabError:
        folder.rmdir()
        raise


@contextlib.contextmanager
def failures(folder: Path, compiles: bool) -> Iterator[None]:
    """Record where a run diverged; say what to do when memory runs out, or when torch cannot compile."""
    try:
        yield
    except DivergedError as error:
        if error.details:
            (folder / "failure").mkdir()
            record = folder / "failure" / "step.json"
            store.write_json(record, error.details)
            error.problems.append(Problem(str(record), "has the values, queries and labels of that step"))
        raise
    except (MemoryError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no more to be had"
        # On a CPU torch raises a plain RuntimeError.
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in reason:
            hint = "lower encode.chunk (gradients stay exact), then pool.cap or sampler.batch_size"
            raise MemoryLimitError(Problem("out of memory", reason, hint)) from error
        dynamo: Any = sys.modules.get("torch._dynamo.exc")
        if compiles and dynamo and isinstance(error, dynamo.TorchDynamoException):
            hint = "install a C++ compiler for a CPU, triton for a GPU; or say compile=false"
            raise ConfigError(Problem("compile=true", f"torch cannot compile here: {reason}", hint)) from error
        raise


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note how long the block took."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def print_result(console: Console, result: RunResult) -> None:
    """The closing table of a run."""
    data, seconds = result.document["data"], result.document["seconds"]
    title = (
        f"{result.document['recipe']} on {data['name']} (test: {data['test']} queries, {data['labels']} labels), in %"
    )
    print_table(console, title, result.metrics, result.baselines)
    console.print(f"trained in {seconds['train']:.0f} s, {seconds['total']:.0f} s in all; kept in {result.folder}")


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """The same numbers every time, where torch has a way to it."""
    before = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False  # costs time, and nothing here reads memory before writing it
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = fill
