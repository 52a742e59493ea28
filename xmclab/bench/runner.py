"""Running the cells of a bench: each in a process of its own, some at a time, finished ones never again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from xmclab.bench.spec import LeftOut
from xmclab.bench.view import GridView, Job

SECONDS_BETWEEN_LOOKS = 1.0


def run_jobs(jobs: Sequence[Job], at_once: int, console: Console, threads: int | None = None) -> list[LeftOut]:
    """Run what is not done yet; a failure is noted, the others go on.

    Args:
        at_once: processes.
        threads: of each process; the cores shared evenly by default.
    """
    waiting = [job for job in jobs if not job.done]
    threads = threads or max(1, (os.cpu_count() or 1) // at_once)
    failures: list[LeftOut] = []
    with (
        GridView(jobs, console) as view,
        ThreadPoolExecutor(max_workers=at_once) as pool,
        _processes() as launch,
    ):
        futures: dict[Future[str], Job] = {pool.submit(_run, job, threads, launch): job for job in waiting}
        while futures:
            finished, _ = wait(futures, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            for future in finished:
                job, reason = futures.pop(future), future.result()
                if reason:
                    failures.append(LeftOut(job.cell, reason))
                view.ended(job, reason)
            view.update()
    return failures


Launch = Callable[[Sequence[str], Path, int], int]


@contextmanager
def _processes() -> Iterator[Launch]:
    """A way to run a command to its end; whatever still runs when the block is left is ended."""
    running: set[subprocess.Popen[bytes]] = set()
    over = False

    def launch(command: Sequence[str], log: Path, threads: int) -> int:
        if over:
            return 130
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
            running.add(process)
            try:
                return process.wait()
            finally:
                running.discard(process)

    try:
        yield launch
    finally:
        over = True
        for process in list(running):
            process.terminate()


def _run(job: Job, threads: int, launch: Launch) -> str:
    """Why the run failed, empty if it did not."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{job.folder}.lock"):
        if job.done:
            return ""
        shutil.rmtree(job.folder, ignore_errors=True)  # of a run that was cut off
        log = job.folder.with_suffix(".log")
        command = [sys.executable, "-m", "xmclab", "run", *job.cell.overrides, "--out", str(job.folder)]
        code = launch(command, log, threads)
        if code == 0 and job.done:
            log.unlink(missing_ok=True)
            return ""
        return _last_error(log) or f"exit code {code}"


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
