"""`make bench-speed`: all goals in one table, and as JSON next to this file.

python benchmarks/speed/run.py [part ...]
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import torch
from harness import THREADS, Row

HERE = Path(__file__).parent
NO_PARTS = {"harness", "run"}


def machine() -> dict[str, str | int]:
    """The machine that the numbers were measured on."""
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy", "transformers")}
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "threads": THREADS,
        "python": platform.python_version(),
        **versions,
    }


def main() -> None:
    torch.set_num_threads(THREADS)
    sys.path.insert(0, str(HERE))
    parts = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_PARTS)
    path = HERE / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    for part in parts:
        rows: list[Row] = importlib.import_module(part).measure()
        results["rows"][part] = [{**asdict(row), "met": row.met} for row in rows]
        for row in rows:
            print(f"{'met ' if row.met else 'MISS'} {row.goal:>2}  {row.what}: {row.ours} | {row.peer}", flush=True)
        results["machine"] = machine()
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (HERE / "results.md").write_text(table(results["rows"]), encoding="utf-8")


def table(parts: dict[str, list[dict[str, Any]]]) -> str:
    """All rows as a Markdown table, ordered by goal."""
    lines = ["| goal | part | ours | beside | bound | measured | met |", "|---|---|---|---|---|---|---|"]
    for row in sorted((row for rows in parts.values() for row in rows), key=lambda row: row["goal"]):
        bound = f"{row['sense']} {row['bound']:g}"
        met = "yes" if row["met"] else "no"
        lines.append(
            f"| {row['goal']} | {row['what']} | {row['ours']} | {row['peer']} | {bound} | {row['value']:.3g} | {met} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
