"""A whole run: from data to a trained model, its metrics and its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from xmclab.data import with_reader
from xmclab.data.candidates import candidates_file
from xmclab.data.propensity import Propensity
from xmclab.data.tokens import Tokeniser
from xmclab.data.transform import SLOT as TRANSFORM
from xmclab.data.validation import Opened, open_with_validation
from xmclab.errors import ConfigError, DivergedError, MemoryLimitError, Problem, Stopped
from xmclab.evaluation.report import print_table
from xmclab.host.config import Config
from xmclab.model.device import describe, numerics, pick_device
from xmclab.runs import presets, store
from xmclab.runs.advice import advice, advice_on_validation, closing_advice, warnings
from xmclab.runs.best import BestEpoch, check_choice, patience_of
from xmclab.runs.checkpoints import FOLDER as CHECKPOINTS
from xmclab.runs.checkpoints import Checkpoints, Found
from xmclab.runs.display import Display
from xmclab.runs.lock import claimed
from xmclab.runs.measure import Queries, Scores
from xmclab.runs.observers import observed
from xmclab.runs.profile import Profile
from xmclab.runs.resume import config_of, earlier_run, refuse_other, without_effect
from xmclab.runs.sizes import refuse_full_disk, refuse_too_large, shortages
from xmclab.runs.start import check_starts, read_start
from xmclab.runs.step_memory import fit_chunk
from xmclab.system.console import plain
from xmclab.system.memory import out_of_memory, what_to_lower
from xmclab.system.progress import note, working
from xmclab.system.reading import read_json
from xmclab.system.signals import Signals
from xmclab.training.loop import Log, Position, fit
from xmclab.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """The result of a run: the same numbers as its table and its JSON document."""

    folder: Path
    metrics: Scores  # search (de, clf, de+clf) -> metric -> percent
    baselines: Scores
    document: dict[str, Any]


def run(
    config: Config,
    out: Path | None = None,
    console: Console | None = None,
    *,
    resume: bool = False,
    strict: bool = False,
    signals: Signals | None = None,
    tables: Path | None = None,
) -> RunResult:
    """Train and evaluate as the config says; save everything in the run folder.

    Args:
        out: the run folder, new or empty; `runs/...` by default.
        console: where progress goes (default: stderr). Results are returned, not printed.
        resume: continue the run of the folder, if there is one; if it has ended, return its result.
        strict: of a damaged checkpoint, do not fall back to the one before.
        signals: what may stop the run between two steps, while the caller has it handle signals.
        tables: the data, if it will not last: a folder that is copied into the run folder.
    """
    started = time.perf_counter()
    settings = config.settings
    config = with_reader(config)  # so that the saved config names the reader
    if resume and out and (out / store.RESULT).is_file():
        return _ended(out, config)
    check_starts(config, out if resume else None)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(claimed(out, "", resume)) if out else None
        console, signals = console or Console(file=sys.stderr), signals or Signals()
        with working(console, f"reading {settings.data.source}"):
            opened = open_with_validation(config)
        if not (settings.evaluate.test or opened.validation):
            hint = "set validate.share or validate.file"
            raise ConfigError(Problem("evaluate.test=false", "leaves nothing to measure without validation", hint))
        presets.refuse_other_sizes(config, opened.whole)
        folder = folder or stack.enter_context(claimed(None, f"{config.recipe}-{opened.whole.name}"))
        config = stack.enter_context(store.data_kept(folder, config, tables)) if tables else config
        return _in_folder(_Job(config, opened, folder, console, signals, strict, started))


def _in_folder(job: _Job, accepted: Callable[[], None] = lambda: None) -> RunResult:
    """Train in a folder that is ours: from the beginning, or from where an earlier process got to.

    Args:
        accepted: called once it is certain that the config may continue what is in the folder.
    """
    config, folder, settings, found = job.config, job.folder, job.config.settings, None
    if job.opened.validation:
        check_choice(config, job.opened.whole.num_labels)
    with contextlib.ExitStack() as stack:
        stack.enter_context(numerics(pick_device(settings.device), settings.deterministic, settings.tf32))
        stack.enter_context(failures(settings.compile))
        if (folder / store.MANIFEST).is_file():
            config, found = earlier_run(folder, config, job.opened, job.strict)
            job = dataclasses.replace(job, config=config)
            if found is None:
                note(job.console, f"{folder}: no checkpoint, so training starts from the beginning")
        elif recipe := store.recipe_of(folder):
            job = dataclasses.replace(job, config=dataclasses.replace(config, recipe=recipe))
        accepted()
        try:
            return job.result(found)
        except Stopped as stop:
            if stop.message or not (store.whole(folder) / store.CONFIG).is_file():
                raise
            command = store.command("run --resume", store.whole(folder), config)
            raise Stopped(stop.number, f"resume with: {command}") from None


def _ended(folder: Path, config: Config) -> RunResult:
    """The result of a run that has ended.

    Raises:
        ConfigError: it had another config.
    """
    refuse_other(folder, config, config_of(folder, config), ended=True)
    for problem in without_effect(folder, config):
        logger.warning("the run has ended, so this has no effect: %s", problem)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # if it was killed just before
    with store.damage_reported(folder / store.RESULT):
        document = read_json(folder / store.RESULT)
        return RunResult(folder, document["metrics"], document["baselines"], document)


@dataclass
class _Job:
    """A run in its folder."""

    config: Config
    opened: Opened
    folder: Path
    console: Console
    signals: Signals
    strict: bool
    started: float  # by `time.perf_counter`

    def result(self, found: Found | None) -> RunResult:
        """Train from the checkpoint, or from the start; save the model, measure it, save the rest."""
        config, folder, settings = self.config, self.folder, self.config.settings
        stages = self._earlier_stages()
        data, validation = self.opened.whole, self.opened.validation
        self.profile = profile = Profile(pick_device(settings.device), settings.profile)
        trainer = self._trainer(found)
        refuse_full_disk(trainer, folder)
        test, best = Queries(config, data, trainer, profile), None
        if validation:
            queries = Queries(config, validation, trainer, profile, "validation")
            patience = patience_of(settings, self.opened.by_default)
            best = BestEpoch(trainer.model, queries.evaluate, settings.validate, len(validation.test), patience)
            test = test if settings.evaluate.test else queries
        if found:
            found.restore(trainer, best)
            store.update_config(folder, config)
        else:
            store.save_start(folder, config, data, trainer.model)
        store.rewind(folder, found.manifest["records"] if found else 0)
        seconds = {"prepare": time.perf_counter() - self.started}
        at = found.at if found else Position()
        with observed(config, folder, trainer.steps, self.started, at.step) as log:
            seconds["train"] = self._train(trainer, log, test, best, at)
            seconds |= {"evaluate": test.seconds} | ({"validate": best.seconds} if best else {})
            with timed(seconds, "baselines"), working(self.console, "measuring baselines"):
                baselines = test.baselines()
            log({"event": "baselines", "metrics": baselines})
            store.save_points(folder, test.points())
            if settings.keep_model:
                store.save_search(folder, test.search)
                store.seal(folder)
            seconds["total"] = at.seconds + time.perf_counter() - self.started
            result = RunResult(folder, test.metrics, baselines, test.document(folder, baselines, seconds))
            if best:
                result.document.update(split=test.purpose, validation=best.document())
            if stages:
                result.document["stages"] = {name: _of_stage(stage) for name, stage in stages.items()}
            if settings.evaluate.test:
                result.document.update(presets.results(config, data))
            if profile.on:
                result.document["profile"] = profile.summary()
                profile.print_table(self.console)
            measured, kept = f"{len(test.data.test)} {test.purpose} queries", result.document.get("validation")
            told = closing_advice(store.records(folder), test.metrics, baselines, measured, kept, trainer.steps)
            result.document["notes"] = told
            for text in told:
                note(self.console, f"note: {text}")
            store.write_json(folder / store.RESULT, result.document)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
            if not settings.keep_model:
                for stage in stages.values():
                    store.remove_model(stage.folder)
        return result

    def _earlier_stages(self) -> dict[str, RunResult]:
        """The results of the stages before this one, each in a folder of its own; those that have ended are read."""
        config, results = self.config, {}

        def keep_config() -> None:  # all that is needed to resume
            if config.earlier and not (self.folder / store.MANIFEST).is_file():
                store.save_config(self.folder, config)

        for number, (name, stage) in enumerate(config.earlier.items(), start=1):
            folder = self.folder / store.STAGES / name
            stage = stage.with_part("baseline", None)
            settings = dataclasses.replace(stage.settings, keep_model=True)  # the next stage starts from it
            stage = dataclasses.replace(stage, settings=settings)
            if not (folder / store.RESULT).is_file():
                note(self.console, f"stage {name}, {number} of {len(config.earlier) + 1}")
                with claimed(folder, "", resume=True):
                    opened = self.opened if _same_data(stage, config) else open_with_validation(stage)
                    job = dataclasses.replace(self, config=stage, opened=opened, folder=folder)
                    results[name] = _in_folder(dataclasses.replace(job, started=time.perf_counter()), keep_config)
            else:
                results[name] = _ended(folder, stage)
                self.started -= results[name].document["seconds"]["total"]  # of an earlier process
        keep_config()
        if config.earlier:
            note(self.console, f"stage {config.stage}, {len(config.earlier) + 1} of {len(config.earlier) + 1}")
        return results

    def _trainer(self, found: Found | None) -> Trainer:
        config, data = self.config, self.opened.training
        refuse_too_large(config, data)
        tokeniser = Tokeniser(config.settings.data, self.console)
        assets = self.folder / store.ENCODER if found else None
        start = None if found else read_start(config, self.folder, data)
        return Trainer(config, data, tokeniser, self.profile.part, assets, start)

    def _train(self, trainer: Trainer, log: Log, test: Queries, best: BestEpoch | None, at: Position) -> float:
        """Run the loop, with records shown and sent to trackers, and chosen indexes saved; the seconds of training."""
        folder, settings = self.folder, trainer.settings
        chunk = fit_chunk(trainer, best is not None)
        self._announce(trainer, best, at)
        if chunk:
            note(self.console, chunk)
        trainer.ready()

        def keep_model() -> None:
            if settings.keep_model:
                store.save_model(folder, trainer.model)
                store.seal(folder)

        about = {"config": self.config.to_dict(), "data": self.opened.whole.fingerprint, "world": 1}
        about["candidates"] = self.opened.candidates
        shown = trainer.steps, settings.validate.metric, at.step, trainer.refreshes.before
        with (
            Display(self.console, settings.epochs, *shown) as display,
            Checkpoints(folder, trainer, best, self.signals, about, keep_model, at) as checkpoints,
            self.signals.deferred(),
        ):

            def tell(record: Any) -> None:
                log(record)
                display.show(record)
                if record["event"] in ("refresh", "eval"):
                    store.save_indexes(folder, test.indexes | {"mining": record.get("index", {})})
                if record.get("split") == "validation" and best and best.enough and best.last < settings.epochs:
                    display.stopped(best.last, best.epoch)

            try:
                return fit(trainer, tell, test.evaluate, best, checkpoints, at)
            except DivergedError as error:
                checkpoints.save_here()
                keep_model()
                _record_failure(folder, error, self.config)
                raise

    def _announce(self, trainer: Trainer, best: BestEpoch | None, at: Position) -> None:
        """Say what is about to be done."""
        data, settings, console = trainer.data, trainer.settings, self.console
        queries = f"{len(data.train)} training queries" + (f", {best.queries} validation queries" if best else "")
        if data.original is not None:
            chosen = self.config.choice(TRANSFORM)
            note(console, f"transform={chosen}: {len(data.train)} training queries, made from {len(data.original)}")
        device = describe(trainer.device, settings.device) + (" in bfloat16" if trainer.precision.half else "")
        note(console, f"{data.name}: {queries}, {data.num_labels} labels, {trainer.steps} steps on {device}")
        if text := presets.suggestion(self.config, data):
            note(console, text)
        if at.step:
            note(console, f"resuming after step {at.step} of {trainer.steps}")
        for text in advice_on_validation(settings, best.patience if best else None, self.opened.by_default):
            note(console, f"note: {text}")
        for name, objective in trainer.objectives.items():
            if objective.needs_all:
                blocks, dense = "in blocks", "in one dense matrix (no closed form, so not streamed)"
                note(console, f"{name}: scores all labels {blocks if name in trainer.streaming else dense}")
        for text in advice(trainer):
            note(console, f"note: {text}")
        for text in (*warnings(trainer), *shortages(trainer, self.folder, best is not None)):
            note(console, f"warning: {text}")


def _same_data(stage: Config, config: Config) -> bool:
    """Whether a stage trains and validates on the same queries, with the same file of negatives if any."""
    files = candidates_file(stage), candidates_file(config)
    same = stage.data_key() == config.data_key() and stage.settings.validate == config.settings.validate
    return same and files[0] == files[1] and stage.parts.get(TRANSFORM) == config.parts.get(TRANSFORM)


def _of_stage(result: RunResult) -> dict[str, Any]:
    """What the document of a run says about an earlier stage."""
    return {"metrics": result.metrics, "seconds": result.document["seconds"], "out": str(result.folder)}


def _record_failure(folder: Path, error: DivergedError, config: Config) -> None:
    """Write what is known of a step that was not taken."""
    if error.details:
        (folder / store.FAILURE).mkdir(exist_ok=True)
        record = folder / store.FAILURE / "step.json"
        store.write_json(record, error.details)
        hint = f"repeat the step with: {store.command('replay', folder, config)}"
        error.problems.append(Problem(str(record), "holds the values, queries and labels of that step", hint))


@contextlib.contextmanager
def failures(compiles: bool) -> Iterator[None]:
    """Explain what to do when memory runs out or torch cannot compile."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if reason := out_of_memory(error):
            raise MemoryLimitError(Problem("out of memory", reason, what_to_lower(["run"]))) from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
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
    model, reported = result.document.get("propensity"), result.document.get("paper")  # older runs do not tell
    subtitle = str(Propensity(*model.values())) if model else ""
    print_table(console, title, result.metrics, result.baselines, subtitle, reported)
    if best := result.document.get("validation"):
        value = best["metrics"][best["search"]][best["metric"]]
        chosen = f"best by {best['metric']} of {best['search']}: {value:.2f} on {best['queries']} validation queries"
        epochs, last = result.document["config"]["epochs"], best.get("last", 0)
        stopped = f" (stopped after {last})" if 0 < last < epochs else ""
        console.print(f"kept epoch {best['epoch']} of {epochs}{stopped}, {chosen}")
    stages = result.document.get("stages", {})
    for name, stage in stages.items():
        value = ", ".join(f"{search} {metrics['P@1']:.2f}" for search, metrics in stage["metrics"].items())
        console.print(f"stage {name}: P@1 {value}; trained in {stage['seconds']['train']:.0f} s")
    saved = f"saved in {plain(str(result.folder))}"
    trained = seconds["train"] + sum(stage["seconds"]["train"] for stage in stages.values())
    console.print(f"trained in {trained:.0f} s, {seconds['total']:.0f} s in total; {saved}")
