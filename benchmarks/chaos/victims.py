"""Runs to attack: processes that can be watched and killed at any moment, and the numbers that they leave.

Importing torch and xmclab takes seconds, so most processes are forked from one that has done it and called nothing yet;
each then runs the command line, as `python -m xmclab` does. It marks where it is in memory shared with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xmclab.runs.run as runs
from xmclab.__main__ import main
from xmclab.host.registry import default_registry
from xmclab.runs.checkpoints import Checkpoints, Found
from xmclab.runs.lock import HOLDER, LOCK
from xmclab.runs.measure import Queries
from xmclab.training.trainer import Trainer

PHASES = (
    "starting",
    "reading data",
    "opening the folder",
    "restoring",
    "training",
    "refresh",
    "evaluation",
    "validation",
    "copying",
)
PHASES += ("writing", "saving the model", "closing evaluation", "baselines", "results", "tidying")
NAMES = "names of files"
SECONDS = 120  # that a process may take
TICK = 0.0005
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Marks:
    """Where a process is: how often it entered each phase, and the longest it was there."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")  # shared with forked processes

    def entered(self, phase: str) -> int:
        return self._numbers[4 + 2 * PHASES.index(phase)]

    def longest(self, phase: str) -> float:
        return self._numbers[5 + 2 * PHASES.index(phase)] / 1e9

    @property
    def phase(self) -> str:
        """The present one; that of the thread which writes checkpoints, if it is at work."""
        return "writing" if self._numbers[1] else PHASES[self._numbers[0]]

    @property
    def steps(self) -> int:
        """Steps that were finished."""
        return self._numbers[2]

    def watch(self) -> None:
        """Mark phases from now on, in this process."""
        self._mark(runs, "open_with_validation", "reading data")
        self._mark(Trainer, "__init__", "reading data")
        self._mark(runs.store, "save_start", "opening the folder")
        self._mark(runs, "earlier_run", "restoring")
        self._mark(Found, "restore", "restoring")
        self._mark(runs, "fit", "training", then="results")
        self._mark(Trainer, "refresh", "refresh")
        self._mark(Queries, "evaluate", self._of_evaluation)
        self._mark(Checkpoints, "_copied", "copying")
        self._mark(Checkpoints, "_write", "writing", 1)
        self._mark(Checkpoints, "after_training", "saving the model")
        self._mark(Queries, "baselines", "baselines")
        self._mark(runs.store, "write_json", lambda path, _: "tidying" if path.name == "result.json" else "")
        launch = Trainer.launch

        def counted(*arguments: Any) -> Any:
            launched = launch(*arguments)
            self._numbers[2] += 1
            return launched

        Trainer.launch = counted  # type: ignore[method-assign]

    def _of_evaluation(self, queries: Queries) -> str:
        if self.entered("saving the model"):
            return "closing evaluation"
        return "validation" if queries.purpose == "validation" else "evaluation"

    def _mark(
        self, owner: Any, name: str, phase: str | Callable[..., str], place: int = 0, then: str | None = None
    ) -> None:
        """Mark a function: its phase from its beginning to its end; of `tidying`, only what follows."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def marked(*arguments: Any, **named: Any) -> Any:
            now = phase if isinstance(phase, str) else phase(*arguments)
            if not now or now == "tidying":
                value = function(*arguments, **named)
                if now:
                    self._enter(now, place)
                return value
            before, started = self._numbers[place], time.perf_counter_ns()
            self._enter(now, place)
            try:
                return function(*arguments, **named)
            finally:
                longest = 5 + 2 * PHASES.index(now)
                self._numbers[longest] = max(self._numbers[longest], time.perf_counter_ns() - started)
                self._numbers[place] = PHASES.index(then) if then else before

        setattr(owner, name, marked)

    def _enter(self, phase: str, place: int) -> None:
        self._numbers[place] = PHASES.index(phase)
        self._numbers[4 + 2 * PHASES.index(phase)] += 1


@dataclass
class Process:
    """A command that runs."""

    pid: int
    marks: Marks
    log: Path
    code: int | None = None  # as of `subprocess`

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
        """Wait; whether the condition came true before the process ended or the time was over."""
        limit = time.monotonic() + seconds
        while not condition():
            if self.ended() or time.monotonic() > limit:
                return False
            time.sleep(TICK)
        return True

    def wait(self) -> int:
        """Its exit code.

        Raises:
            TimeoutError: it hangs, and was killed.
        """
        self.until(self.ended)
        if not self.ended():
            self.send(signal.SIGKILL)
            raise TimeoutError(f"process {self.pid} hung: {self.said}")
        assert self.code is not None
        return self.code

    def send(self, number: int) -> None:
        assert self.pid > 0, "0 would be all processes of the group"
        if not self.ended():
            os.kill(self.pid, number)
            if number == signal.SIGKILL:
                self.until(self.ended)

    @property
    def said(self) -> str:
        """The last line on stderr."""
        return (self.text.splitlines() or [""])[-1]

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def start(words: Sequence[str], log: Path, fresh: bool = False, largest: int = 0) -> Process:
    """Start `xmclab WORDS`.

    Args:
        log: gets its stderr; stdout is dropped.
        fresh: as a new program instead of a fork.
        largest: bytes that a file may have; 0: any.
    """
    marks = Marks()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _become(words, log, fresh, largest, marks)
    return Process(pid, marks, log)


def _become(words: Sequence[str], log: Path, fresh: bool, largest: int, marks: Marks) -> None:
    """Be that process; never return, whatever signals come."""
    code = 99
    try:
        die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if fresh:
            os.execv(sys.executable, [sys.executable, "-m", "xmclab", *words])
        marks.watch()
        code = _exit_code(words)
    finally:
        os._exit(code)


def _exit_code(words: Sequence[str]) -> int:
    sys.argv = ["xmclab", *words]
    try:
        main()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        return 99
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
    return 0


def die_with_parent() -> None:
    """Have the system kill this process when its parent is gone; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def import_all() -> None:
    """Import what runs import, so that forks need not; calls nothing that would start threads."""
    importlib.import_module("xmclab.cli")
    importlib.import_module("transformers.models.bert.modeling_bert")
    for kind in ("encoder", "head", "loss", "reduction", "sampler", "miner", "index", "search", "tracker", "baseline"):
        default_registry().describe(kind)


SMALL = ["data=tiny", "sampler.batch_size=128", "head.de.dim=16", "head.clf.dim=16", "epochs=3", "refresh_every=1"]
BAG = [*SMALL, "encoder=bag", "encoder.dim=16"]
STREAMED = ["reduction.clf=pal_n", "head.clf.table_dtype=bfloat16"]
OTHER_TABLES = ["encoder.hidden=8", "encoder.towers=residual", "encoder.table=sgd", "head.clf.bias=label"]
SUBJECTS: dict[str, list[str]] = {
    "mined negatives": [*BAG, "sampler=cluster", "miner=ann", "evaluate.every=1", "optim.decay=0.1"],
    "validation": [*BAG, "validate.share=0.2", "sampler=cluster", "head.clf.table=adagrad"],
    "streamed, bfloat16": [*BAG, *STREAMED, "sampler=cluster", "encoder.feature_dropout=0.3", "evaluate.every=1"],
    "neighbours": [*BAG, "search=neighbours", "miner=ann", *OTHER_TABLES, "evaluate.every=1"],
    "transformer": [*SMALL, "encoder=hf", "encoder.model=MODEL", "miner=ann", "validate.share=0.1", "epochs=2"],
    "recipe=unidec": ["recipe=unidec", "data=tiny", "epochs=4", "refresh_every=1", "sampler.batch_size=256"],
}


def make_transformer(folder: Path) -> None:
    """A random BERT of one layer that knows a few words."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "library", "python", "perl", "game", "web", "data", "tool"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)


def records(folder: Path) -> list[dict[str, Any]]:
    """Of a run that may be writing the last one."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]
    return []


def numbers(folder: Path) -> dict[str, Any]:
    """What an attack must not change in a run that has ended: by name, as JSON values."""
    steps = [record for record in records(folder) if record["event"] == "step"]
    evaluations = [record for record in records(folder) if record["event"] == "eval"]
    result = json.loads((folder / "result.json").read_text())
    files = json.loads((folder / "manifest.json").read_text())["files"]
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return {
        "losses": [[step["step"], step["loss"]] for step in steps],
        "gradient norms": [[step["step"], step["gradient_norm"]] for step in steps],
        "terms": [step["terms"] for step in steps],
        "evaluations": [[record["epoch"], record["split"], record["metrics"]] for record in evaluations],
        "metrics": result["metrics"],
        "baselines": result["baselines"],
        "validation": result.get("validation"),
        "model.safetensors": sha256(folder / "model.safetensors"),
        "points.npz": sha256(folder / "points.npz"),
        NAMES: sorted(name for name in names if name not in (LOCK, HOLDER)),
        "other files": {name: entry["sha256"] for name, entry in files.items() if name != "config.yaml"},
    }


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
