"""The same numbers wherever a command runs.

54  another clock, hash seed, locale, path or working folder: same losses, weights, metrics and predictions
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from small_sets import SMALL_BAG

ROWS = 40
LONGER = [*SMALL_BAG, "sampler=cluster", "sampler.batch_size=16", "refresh_every=1", "epochs=3", "validate.share=0.2"]
QUERY = "café 3 茶"

# Trains, exports and predicts in one process. The clock that is moved starts in 1973 and runs backwards.
PROGRAM = """
import json, sys

moved, data, out, query, *overrides = json.loads(sys.stdin.buffer.read())
if moved:
    import datetime, time

    seconds = iter(range(10**8, 0, -1000))
    time.time = lambda: float(next(seconds))
    time.time_ns = lambda: next(seconds) * 10**9

    class Moved(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(next(seconds), tz)

    datetime.datetime = Moved

from xmclab import cli

for command in (
    ["run", *overrides, f"data={data}", f"data.cache={out}/cache", "--out", f"{out}/run"],
    ["export", f"{out}/run", "--to", f"{out}/export"],
    ["predict", f"{out}/export", "--text", query],
    ["predict", f"{out}/export", "--text", query, "--json", "--out", f"{out}/predictions.jsonl"],
):
    sys.argv = ["xmclab", *command]
    try:
        cli.main()
    except SystemExit as exit_:
        if exit_.code:
            raise
"""


@dataclass(frozen=True)
class Surroundings:
    """Where a program runs: its folder, its environment, its clock."""

    folder: str = "plain"
    environment: dict[str, str] = field(default_factory=dict)
    clock_moved: bool = False

    def start(self, root: Path) -> subprocess.Popen[bytes]:
        home = root / self.folder
        write_data(home / "data")
        (home / "cwd").mkdir(mode=0o555)
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"} | self.environment
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=home / "cwd", env=environment, **pipes)
        assert process.stdin is not None
        arguments = [self.clock_moved, str(home / "data"), str(home / "out"), QUERY, *LONGER]
        process.stdin.write(json.dumps(arguments).encode())
        process.stdin.close()
        return process


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("lbl", "trn", "tst"):
        lines = [
            {"title": f"café {row % 7} 茶 {name}{row % 5}", "target_ind": [row, row * 7 % ROWS]} for row in range(ROWS)
        ]
        (folder / f"{name}.json").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def results_of(out: Path) -> dict[str, Any]:
    """What may not depend on the surroundings."""
    records = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    result = json.loads((out / "run" / "result.json").read_text(encoding="utf-8"))
    return {
        "losses": [(record["loss"], record["terms"]) for record in records if record["event"] == "step"],
        "weights": hashlib.sha256((out / "run" / "model.safetensors").read_bytes()).hexdigest(),
        "metrics": (result["metrics"], result["baselines"]),
        "predictions": (out / "predictions.jsonl").read_text(encoding="utf-8"),
    }


# 54

ELSEWHERE = {
    "clock": Surroundings("clock", {"TZ": "Asia/Kathmandu"}, clock_moved=True),
    "hash seed and locale": Surroundings(
        "locale", {"PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ),
    "path": Surroundings("a path with 'spaces', ümlauts & 茶"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, Any]]]:
    """What a program found in its surroundings; they all run side by side."""
    root = tmp_path_factory.mktemp("surroundings")
    places = {"here": Surroundings(), **ELSEWHERE}
    processes = {name: place.start(root) for name, place in places.items()}

    def results(name: str) -> dict[str, Any]:
        process, home = processes[name], root / places[name].folder
        error = process.stderr.read().decode() if process.stderr else ""
        assert process.wait() == 0, error
        assert list((home / "cwd").iterdir()) == []
        return results_of(home / "out")

    yield results
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def here(found: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return found("here")


@pytest.mark.parametrize("place", ELSEWHERE)
def test_the_same_numbers_elsewhere(found: Callable[[str], dict[str, Any]], here: dict[str, Any], place: str) -> None:
    elsewhere = found(place)
    assert len(here["losses"]) == 6
    assert "茶" in here["predictions"]
    for what, expected in here.items():
        assert elsewhere[what] == expected, what
