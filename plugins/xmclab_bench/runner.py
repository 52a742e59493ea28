"""Running the cells of a bench: each in its own process, several at a time; finished ones are reused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from filelock import FileLock
from rich.console import Console

from xmclab.errors import StorageError
from xmclab_bench.spec import LeftOut
from xmclab_bench.view import GridView, Job

SECONDS_BETWEEN_LOOKS = 1.0
INTERRUPTED = 130


def run_jobs(jobs: Sequence[Job], at_once: int, console: Console) -> list[LeftOut]:
    """Run what is not done yet, several at once sharing the cores; a failure is recorded, and the others go on."""
    waiting = [job for job in jobs if not job.done]
    threads = threads_of_each(at_once)
    failures: list[LeftOut] = []
    with (
        GridView(jobs, console) as view,
        ThreadPoolExecutor(max_workers=at_once) as pool,
        processes(threads) as launch,
    ):
        futures = {pool.submit(run_cell, job, launch): job for job in waiting}
        while futures:
            finished, _ = wait(futures, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            for future in finished:
                job, failure = futures.pop(future), future.result()
                if failure:
                    failures.append(failure)
                view.ended(job, failure.reason if failure else "")
            view.update([job for future, job in futures.items() if future.running()])
    return failures


def threads_of_each(at_once: int) -> int:
    """The share of several runs in the cores that this process may use, or fewer if OMP_NUM_THREADS says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) else cores
    return max(1, cores // at_once)


Watch = Callable[[], bool]


class Launch(Protocol):
    """Runs a command to its end."""

    def __call__(self, command: Sequence[str], log: Path, stop: Watch | None = None) -> int:
        """Its exit code; `stop` is asked every second whether to end it."""


@contextmanager
def processes(threads: int) -> Iterator[Launch]:
    """A function that runs a command to its end; leaving the block stops running commands and starts no more."""
    running: set[subprocess.Popen[bytes]] = set()
    lock = threading.Lock()
    over = False

    def launch(command: Sequence[str], log: Path, stop: Watch | None = None) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("wb") as stream:
            with lock:
                if over:
                    return INTERRUPTED
                process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
                running.add(process)
            try:
                while stop is not None and process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(SECONDS_BETWEEN_LOOKS)
                    if stop():
                        process.terminate()
                        break
                return process.wait()
            finally:
                with lock:
                    running.discard(process)

    try:
        yield launch
    finally:
        with lock:
            over = True
            for process in running:
                process.terminate()


def run_cell(job: Job, launch: Launch, stop: Watch | None = None) -> LeftOut | None:
    """Run a cell unless it is done; why it failed, if it did."""
    try:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{job.folder}.lock"):
            if job.done:
                return None
            log = job.folder.with_suffix(".log")
            command = [sys.executable, "-m", "xmclab", "run", *job.cell.overrides]
            command += [] if stop is None else ["checkpoint.every=0"]  # what is stopped is not continued
            command += ["--resume", "auto", "--out", str(job.folder)]  # an interrupted run goes on
            code = launch(command, log, stop)
            if code == StorageError.exit_code and job.folder.exists():  # it cannot be continued
                shutil.rmtree(job.folder, ignore_errors=True)
                code = launch(command, log, stop)
            if code == 0 and job.done:
                log.unlink(missing_ok=True)
                return None
            return LeftOut(job.cell, _last_error(log) or f"exit code {code}", code)
    except OSError as error:
        return LeftOut(job.cell, f"{job.folder}: {error.strerror or error}", StorageError.exit_code)


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
