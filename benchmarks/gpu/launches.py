"""`make bench-launches`: launches, waits, copies and peak memory of a step, and its launches by line, without a GPU.

python benchmarks/gpu/launches.py [preset ...]

Steps run on the fake CUDA device of tests/cuda: operations are counted, not timed. A launch is an operation that is
more than a view or an allocation; some take several kernels. The counts are exact, what they cost is not known here.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HARNESS = HERE.parents[1] / "tests" / "cuda"
sys.path.insert(0, str(HARNESS))
shim: Any = importlib.import_module("shim")

GIB = 1 << 30
GOALS = {"launches": 700, "waits": 1, "copies from pinned memory": 1, "other copies to the device": 0}
BY_LINE = ("MiniLM titles", "titles 1.3M")  # presets whose launches are listed
LINES = 40
PRESETS = (
    "MiniLM titles",
    "titles 1.3M",
    "titles 1.3M, chunk 512",
    "amazon 131K",
    "amazon 131K, chunk 256",
    "all labels 131K",
    "all labels 1.3M",
)


def main(names: list[str]) -> None:
    if reason := shim.missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HARNESS / "presets.py"), *(names or PRESETS)]
        environment = shim.environment(shim.build(Path(folder)))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    pages = {"launches.md": "\n".join(page(found)) + "\n"}
    pages["lines.md"] = "\n".join(line for each in found for line in by_line(each)) + "\n"
    for file, text in pages.items():
        print(text)
        if not names:
            (HERE / file).write_text(text, encoding="utf-8")


def page(found: list[dict[str, Any]]) -> Iterator[str]:
    goals = "; ".join(f"{name} {number}" for name, number in GOALS.items())
    yield "Computed by `make bench-launches` on a fake CUDA device: nothing here was measured on a GPU."
    yield f"Goals of a step: {goals}."
    yield ""
    titles = "a step of, queries, labels, tokens, launches, waits, pinned copies, other copies, peak GiB, predicted"
    yield f"| {' | '.join(titles.split(', '))} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for each in found:
        counts = (total(each, name) for name in ("launches", "waits", "pinned_copies"))
        others = total(each, "copies") + total(each, "prepared_copies")
        sizes = (each["queries"], each["pool"], sum(each["tokens"]))
        peaks = (f"{each[name] / GIB:.2f}" for name in ("peak", "predicted"))
        cells = (each["preset"], *(f"{number:,}" for number in (*sizes, *counts, others)), *peaks)
        yield f"| {' | '.join(cells)} |"


def by_line(each: dict[str, Any]) -> Iterator[str]:
    """The lines of a preset that ask most, if it is one of those that are listed."""
    if each["preset"] not in BY_LINE:
        return
    words = {"waits": "waits", "pinned_copies": "copies", "prepared_copies": "pageable copies"}
    found = (f"{word}: {number} at {line}" for key, word in words.items() for line, number in each[key].items())
    yield from (f"# {each['preset']}", "", "; ".join(found), "")
    yield from ("| launches | line |", "|---|---|")
    lines = list(each["launches"].items())
    yield from (f"| {number} | {line} |" for line, number in lines[:LINES])
    yield f"| {sum(number for _, number in lines[LINES:])} | {max(len(lines) - LINES, 0)} other lines |"
    yield ""


def total(each: dict[str, Any], name: str) -> int:
    return sum(each[name].values())


if __name__ == "__main__":
    main(sys.argv[1:])
