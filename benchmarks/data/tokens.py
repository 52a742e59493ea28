"""Read and tokenise synthetic data of two sizes, without and with the cache: texts per second and peak memory.

Every run is a separate process. Rates are texts per second of CPU time on one core, whatever the load of the
machine; the first run tokenises in as many processes as there are cores. Memory of the main process (RSS): the peak
while reading and the data set that remains, both above the level after importing; the peak while tokenising above that.
The last column adds the tokenising processes: anonymous pages (shared ones counted once) at the peak, above the level
after importing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xmclab_bench.synthetic import Recipe, make_synthetic

LABELS = 100_000
TEST_SHARE = 0.05
SECONDS_BETWEEN_SAMPLES = 0.1
MIB = 1024  # in the kB of /proc


@dataclass
class Row:
    """A run."""

    queries: int
    encoder: str
    run: str
    texts: int
    read: float  # CPU seconds
    vocabulary: float
    tokens: float
    start: float  # MiB after importing
    reading: float  # MiB above it, at the peak
    held: float  # MiB above it, of the data set
    tokenising: float  # MiB above that, at the peak
    together: float  # of all processes

    def cells(self) -> list[str]:
        def rate(seconds: float) -> str:
            return f"{self.texts / seconds:,.0f}"

        fitted = rate(self.vocabulary) if self.encoder == "bag" else ""
        memory = (f"{value:,.0f}" for value in (self.reading, self.held, self.tokenising, self.together))
        return [f"{self.queries:,}", self.encoder, self.run, rate(self.read), fitted, rate(self.tokens), *memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--models", nargs="+", default=["bag"], help="bag, or a name or folder for encoder=hf")
    parser.add_argument("--folder", type=Path, help="folder for the data, kept afterwards (default: temporary)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = []
        for queries in options.queries:
            source = (options.folder or Path(temporary)) / f"synthetic-{queries}"
            if not source.exists():
                source.mkdir(parents=True)
                test = round(TEST_SHARE * queries)
                make_synthetic(source, Recipe(queries - test, test, LABELS, 0, 3.0, 8, 1.0, 0))
            for model in options.models:
                cache = Path(temporary) / "cache"
                rows += [measure(source, model, cache, queries, run) for run in ("first", "cached")]
                shutil.rmtree(cache)
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def print_table(rows: list[Row]) -> None:
    head = [
        "queries",
        "encoder",
        "run",
        "read",
        "vocabulary",
        "tokens",
        "reading",
        "data set",
        "tokenising",
        "all processes",
    ]
    print(f"With {LABELS:,} labels; reading, vocabulary and tokens in texts per CPU second, the rest in MiB\n")
    for cells in (head, ["---"] * len(head), *(row.cells() for row in rows)):
        print(f"| {' | '.join(cells)} |")


def measure(source: Path, model: str, cache: Path, queries: int, run: str) -> Row:
    """Run in a separate process and watch it from outside."""
    command = [sys.executable, __file__, CHILD, str(source), model, str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        together = 0.0
        while process.poll() is None:
            together = max(
                together, sum(_memory(f"/proc/{pid}/smaps_rollup", "Pss_Anon") for pid in _family(process.pid))
            )
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        assert process.stdout is not None
        if process.returncode:
            raise SystemExit(process.returncode)
        found = json.loads(process.stdout.read().splitlines()[-1])
    name = "bag" if model == "bag" else Path(model).name
    together -= found.pop("written")
    return Row(queries=queries, encoder=name, run=run, together=together, **found)


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(int(child) for child in children)]


def _memory(file: str, name: str) -> float:
    """An entry of /proc in MiB; 0 if the process has ended."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return int(found[1]) / MIB if found else 0.0


# What the measured process does

CHILD = "--child"


def child(source: str, model: str, cache: str) -> None:
    from rich.console import Console

    from xmclab.data import open_dataset
    from xmclab.data.tokens import Tokeniser
    from xmclab.host.registry import default_registry
    from xmclab.host.schema import DataSettings
    from xmclab.model.encoders.bag import Bag
    from xmclab.model.encoders.hf import HuggingFace

    encoder: Any = Bag(dim=1) if model == "bag" else HuggingFace(model=model)
    settings = DataSettings(source=source, cache=cache)
    found: dict[str, float] = {"start": _memory("/proc/self/status", "VmRSS")}
    found["written"] = _memory("/proc/self/smaps_rollup", "Pss_Anon")
    clock = _core_seconds()

    def lap(name: str) -> None:
        nonlocal clock
        found[name], clock = _core_seconds() - clock, _core_seconds()

    data = open_dataset(source, "title", default_registry())
    lap("read")
    found["reading"] = _peak() - found["start"]
    found["held"] = _memory("/proc/self/status", "VmRSS") - found["start"]
    tokeniser = Tokeniser(settings, Console(stderr=True))
    tokeniser.fit(encoder, data.train.texts, data.label_texts)
    lap("vocabulary")
    parts = {"training queries": data.train.texts, "labels": data.label_texts, "test queries": data.test.texts}
    for what, texts in parts.items():
        tokeniser.tokens(encoder, texts, what)
    lap("tokens")
    found["tokenising"] = _peak() - found["start"] - found["held"]
    found["texts"] = sum(map(len, parts.values()))
    print(json.dumps(found))


def _core_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _peak() -> float:
    """The largest memory since the last call."""
    peak = _memory("/proc/self/status", "VmHWM")
    Path("/proc/self/clear_refs").write_text("5")  # the kernel starts over
    return peak


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == [CHILD] else main()
