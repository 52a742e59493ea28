"""Quality on the embedded data: recipes over several seeds, with baselines.

    python benchmarks/quality/debian.py --seeds 3

Writes `debian.json` (every number, the versions, the data's hash) and `debian.md` (mean and standard deviation) next to
this file. Nothing is chosen on the test set: the recipes were tuned on a split of the training set.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from xmclab.evaluation.report import COLUMNS
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run

HERE = Path(__file__).parent
RUNS = {"unidec": ["recipe=unidec"], "depsl": ["recipe=depsl"]}


def measure(overrides: list[str], seeds: int) -> list[dict]:
    """The result documents of a recipe, one per seed."""
    documents = []
    for seed in range(seeds):
        config = resolve([*overrides, f"seed={seed}"], default_registry())
        with tempfile.TemporaryDirectory() as folder:
            result = run(config, Path(folder) / "run")
            environment = json.loads((result.folder / "environment.json").read_text())
            documents.append({**result.document, "environment": environment, "config": config.to_dict()})
    return documents


def rows(name: str, documents: list[dict]) -> list[str]:
    """One Markdown row per search: mean and standard deviation over the seeds."""
    lines = []
    for search in documents[0]["metrics"]:
        cells = []
        for column in COLUMNS:
            values = [document["metrics"][search][column] for document in documents]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        lines.append(f"| {name}, {search} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    results = {name: measure(overrides, seeds) for name, overrides in RUNS.items()}
    first = results["unidec"][0]
    lines = [
        f"| {first['data']['name']}, {seeds} seeds | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, metrics in first["baselines"].items():
        lines.append(f"| {name} | " + " | ".join(f"{metrics[column]:.2f}" for column in COLUMNS) + " |")
    for name, documents in results.items():
        lines += rows(name, documents)
        seconds = [document["seconds"]["train"] for document in documents]
        print(f"{name}: trained in {statistics.median(seconds):.0f} s (median)")
    table = "\n".join(lines) + "\n"
    print(table)
    (HERE / "debian.md").write_text(table, encoding="utf-8")
    for documents in results.values():
        for document in documents:
            del document["out"]
    (HERE / "debian.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
