"""Runs what needs the fake CUDA device in processes of its own, as torch looks for devices when it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

HERE = Path(__file__).parent
sys.path.append(str(HERE))
SECONDS = 400  # that a process may take
Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def in_process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Run a script of this folder beside the shim: its arguments to the lines of JSON that it prints, once a session.

    Skips, and warns, where the shim cannot be had.
    """
    import shim

    shim.require()
    shared = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        shared = shared.parent  # of all workers
    with FileLock(shared / "cuda-shim.lock"):
        library = shim.build(request.config.cache.mkdir("cuda"))

    def ask(script: str, topic: str, *arguments: str) -> list[dict[str, Any]]:
        """`topic`: what it is asked, as the name of a file."""
        answer = shared / f"cuda-{script}-{topic}.jsonl"
        with FileLock(answer.with_suffix(".lock")):
            if not answer.is_file():
                command = [sys.executable, str(HERE / f"{script}.py"), *arguments]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    check=False,
                    env=shim.environment(library),
                    timeout=SECONDS,
                )
                assert not done.returncode, f"{' '.join(command)}\n{done.stderr[-4000:]}"
                answer.write_text(done.stdout)
        return [json.loads(line) for line in answer.read_text().splitlines()]

    return ask
