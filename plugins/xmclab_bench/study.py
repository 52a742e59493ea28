"""A study: trials of one config with options drawn from a space, each a cached cell that only looks at validation.

Optuna keeps the trials in a journal, a file that several processes can share and that a later one continues. What a
random trial draws depends on the seed and its number alone, not on who runs it or when.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from xmclab.api import Keys as Draws
from xmclab.errors import ConfigError, DataError, Problem
from xmclab.host import Registry, resolve
from xmclab_bench import runner
from xmclab_bench.cells import Keys
from xmclab_bench.run_folder import is_validation, read_run
from xmclab_bench.runner import Launch, run_cell, threads_of_each
from xmclab_bench.space import Axis, described
from xmclab_bench.spec import Cell
from xmclab_bench.view import Job

JOURNAL = "journal.log"
TRIAL = ("keep_model=false", "baseline=none", "evaluate.test=false")  # settings of every trial
# What studies and trials remember. GIVEN: its values were not drawn, but those of a recipe or an interrupted trial.
ASKED, PROCESS, REASON, AGAIN, EPOCH, GIVEN = "asked", "process", "reason", "again", "epoch", "given"
INTERRUPTED = (130, 143, -2, -15)  # exit codes of a run that was stopped from outside
JUST_STARTED = timedelta(minutes=1)  # a trial so young may not have said yet whose it is
STARTUP = 8  # random trials before those that learn from others, and before any is pruned

Method = Literal["random", "guided"]


@dataclass(frozen=True)
class Question:
    """What a study tries, and how it is measured."""

    name: str
    base: tuple[str, ...]  # overrides of every trial, with those of the validation
    axes: Sequence[Axis]
    metric: str
    seed: int = 0
    method: Method = "random"

    @property
    def asked(self) -> dict[str, Any]:
        """What must be the same to continue a study, as JSON values."""
        return {
            "overrides": list(self.base),
            "space": dict(described(list(self.axes))),
            "metric": self.metric,
            "seed": self.seed,
            "method": self.method,
        }


class Keyed(BaseSampler):
    """Optuna's random and TPE samplers, with a seed of their own for every draw."""

    def __init__(self, method: Method, seed: int) -> None:
        self.method, self.seed = method, seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}  # every option is drawn on its own

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        given = sum(GIVEN in other.user_attrs for other in study.get_trials(deepcopy=False)[: trial.number])
        seed = Draws(self.seed).seed_for(param_name, trial.number - given) % 2**32
        startup = self.method == "random" or len(ended(study)) < STARTUP
        sampler = RandomSampler(seed=seed) if startup else TPESampler(seed=seed, n_startup_trials=0)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


def open_study(journal: Path, question: Question) -> Study:
    """The study of this question in a journal, new or continued; trials of processes that died are drawn again.

    Raises:
        ConfigError: the journal has a study of that name that asks something else.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            sampler=Keyed(question.method, question.seed),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
            study_name=question.name,
            direction="maximize",
            load_if_exists=True,
        )
    before = study.user_attrs.get(ASKED)
    if before is None:
        study.set_user_attr(ASKED, question.asked)
    elif before != question.asked:
        then, now = _settings(before), _settings(question.asked)
        said = f"{', '.join(sorted(then - now)) or 'nothing'} then, {', '.join(sorted(now - then)) or 'nothing'} now"
        hint = "choose another --out, or repeat its command to continue it"
        raise ConfigError(Problem(str(journal), f"its study {question.name!r} has other settings: {said}", hint))
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _abandoned(trial):
            _again(study, trial.number, trial.params)
    return study


def _settings(asked: Mapping[str, Any]) -> set[str]:
    """What a study was asked, as single settings."""
    space = (f"{key}: {values}" for key, values in asked["space"].items())
    return {*asked["overrides"], *space, *(f"{key} {asked[key]}" for key in ("metric", "seed", "method"))}


def _abandoned(trial: FrozenTrial) -> bool:
    """Whether the process that ran it, on this machine, is gone."""
    host, _, pid = trial.user_attrs.get(PROCESS, "").rpartition(":")
    if not host:
        return trial.datetime_start is not None and datetime.now() - trial.datetime_start > JUST_STARTED
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()  # of an earlier process with this number


def _again(study: Study, number: int, params: Mapping[str, Any]) -> None:
    """End an interrupted trial, and have its values tried by another."""
    study.set_user_attr(f"{AGAIN} {number}", True)
    study.tell(number, state=TrialState.FAIL)
    study.enqueue_trial(dict(params), user_attrs={GIVEN: "again"})


def ended(study: Study) -> list[FrozenTrial]:
    """The trials that count, in order: complete, pruned or failed, but not those that were interrupted."""
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    interrupted = {key for key in study.user_attrs if key.startswith(AGAIN)}
    trials = study.get_trials(deepcopy=False, states=states)
    return [trial for trial in trials if f"{AGAIN} {trial.number}" not in interrupted]


def best_of(study: Study, trials: int | None = None) -> FrozenTrial | None:
    """The complete trial with the highest score, of all or the first ones; of equals, the first."""
    complete = [trial for trial in ended(study)[:trials] if trial.state == TrialState.COMPLETE]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


class Runner:
    """Runs the trials of studies, several at a time.

    Args:
        cells: the folder of cached runs.
        tell: called with a line about every trial that ended.
    """

    def __init__(self, registry: Registry, cells: Path, at_once: int, tell: Callable[[str], None]) -> None:
        self.registry, self.cells, self.at_once, self.tell = registry, cells, at_once, tell
        self._keys = Keys()
        self._lock = threading.Lock()

    def run(self, study: Study, question: Question, trials: int, deadline: float | None = None) -> None:
        """Run trials until that many ended, or none is to begin after the deadline (of `time.monotonic`)."""
        running, self._wanted = 0, trials
        stopped = threading.Event()
        if before := len(ended(study)):
            self.tell(f"{question.name}: {before} of {trials} trials are done")

        def work(launch: Launch) -> None:
            nonlocal running
            while not stopped.is_set():
                with self._lock:
                    late = deadline is not None and time.monotonic() > deadline
                    if late or len(ended(study)) + running >= trials:
                        return
                    running += 1
                    trial = study.ask()
                trial.set_user_attr(PROCESS, f"{socket.gethostname()}:{os.getpid()}")
                try:
                    if not self._measure(study, question, trial, launch):
                        stopped.set()
                finally:
                    with self._lock:
                        running -= 1

        try:
            with ThreadPoolExecutor(self.at_once) as pool, runner.processes(threads_of_each(self.at_once)) as launch:
                for future in [pool.submit(work, launch) for _ in range(self.at_once)]:
                    future.result()
        except (KeyboardInterrupt, SystemExit):
            done = f"{len(ended(study))} of {trials} trials"
            self.tell(f"{question.name}: interrupted after {done}; the same command continues")
            raise

    def _measure(self, study: Study, question: Question, trial: Trial, launch: Launch) -> bool:
        """Run a trial and tell the study; False: it was interrupted, and so should the others be."""
        drawn = [f"{axis.key}={axis.draw(trial)}" for axis in question.axes]
        overrides = (*TRIAL, *question.base, *drawn)
        try:
            with self._lock:  # data is read once for its fingerprint
                key = self._keys.key(resolve(overrides, self.registry))
        except ConfigError as error:
            self._fail(study, question, trial, "; ".join(map(str, error.problems)))
            return True
        job = Job(Cell("", f"{question.name} {trial.number}", "", 0, overrides), self.cells / key)
        watch = _Watch(trial, job.folder)
        failure = run_cell(job, launch, watch if question.method == "guided" else None)
        if watch.pruned:
            study.tell(trial, state=TrialState.PRUNED)
            self._told(study, question, trial, f"{watch.last:.2f}, pruned after epoch {watch.epoch}")
        elif failure and failure.exit_code in INTERRUPTED:
            _again(study, trial.number, trial.params)
            return False
        elif failure:
            self._fail(study, question, trial, failure.reason)
        else:
            document = read_run(job.folder).document
            assert document is not None
            found = document["validation"]
            value = found["metrics"][found["search"]][question.metric]
            trial.set_user_attr(EPOCH, found["epoch"])
            study.tell(trial, value)
            self._told(study, question, trial, f"{value:.2f}")
        return True

    def _fail(self, study: Study, question: Question, trial: Trial, reason: str) -> None:
        trial.set_user_attr(REASON, reason)
        study.tell(trial, state=TrialState.FAIL)
        self._told(study, question, trial, f"failed: {reason}")

    def _told(self, study: Study, question: Question, trial: Trial, outcome: str) -> None:
        best = best_of(study)
        known = f"; best {best.value:.2f}, of trial {best.number}" if best else ""
        drawn = " ".join(f"{key}={value}" for key, value in drawn_by(study.trials[trial.number], question.axes).items())
        count = f"[{len(ended(study))}/{self._wanted}]"
        self.tell(f"{question.name} {count} trial {trial.number}: {question.metric} {outcome}{known}  ({drawn})")


class _Watch:
    """Reports the validations of a run to its trial while it trains; says whether it can be given up."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        self.metric, self.epoch, self.last, self.pruned = "", 0, 0.0, False

    def __call__(self) -> bool:
        try:
            run = read_run(self.folder)
        except (DataError, KeyError, TypeError):  # the run is still writing them
            return False
        settings = run.config["validate"]
        for record in filter(is_validation, run.evaluations):
            if record["epoch"] > self.epoch:
                search = settings["search"] or list(record["metrics"])[-1]
                self.epoch, self.last = record["epoch"], record["metrics"][search][settings["metric"]]
                self.trial.report(self.last, self.epoch)
        self.pruned = self.epoch < run.config["epochs"] and self.trial.should_prune()
        return self.pruned


def drawn_by(trial: FrozenTrial, axes: Sequence[Axis]) -> dict[str, str]:
    """The values of a trial, as they are typed."""
    fixed = optuna.trial.FixedTrial(trial.params)
    return {axis.key: axis.draw(fixed) for axis in axes if axis.key in trial.params}
