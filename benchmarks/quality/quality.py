"""Quality over several seeds: the recipes, and what each part of `unidec` adds.

    python benchmarks/quality/quality.py debian --seeds 3
    python benchmarks/quality/quality.py LF-GeneOntology-17K --data FOLDER --seeds 3

Writes `NAME.json` (every number, the versions, the data's hash) and `NAME.md` (mean and standard deviation over the
seeds) next to this file. Runs that `NAME.json` already has are not repeated. Nothing is chosen on the test set: the
recipes were tuned on splits of the training sets.
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
OVA = ["recipe=unidec", "head.de=none", "loss.clf=bce", "reduction.clf=ova"]
RUNS = {"unidec": ["recipe=unidec"], "depsl": ["recipe=depsl"], "OvA with BCE": OVA}
WITHOUT = {
    "a tower of their own for labels": ["encoder.towers=shared"],
    "the classifier's bias": ["head.clf.bias=none"],
    "more positives a query (3 instead of 10)": ["pool.beta=3"],
}

Documents = list[dict]


def measure(overrides: list[str], seed: int) -> dict:
    """The result document of a run."""
    config = resolve([*overrides, f"seed={seed}"], default_registry())
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, Path(folder) / "run")
        environment = json.loads((result.folder / "environment.json").read_text())
    return {**result.document, "environment": environment, "out": ""}


def row(name: str, documents: Documents, search: str) -> str:
    """A Markdown row: mean and standard deviation over the seeds."""
    cells = []
    for column in COLUMNS:
        values = [document["metrics"][search][column] for document in documents]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.2f}{spread}")
    return f"| {name} | " + " | ".join(cells) + " |"


def table(results: dict[str, Documents]) -> str:
    """The recipes with all their searches, then `unidec` with one part removed."""
    first = results["unidec"][0]
    last = list(first["metrics"])[-1]
    lines = [
        f"| {first['data']['name']} | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, metrics in first["baselines"].items():
        lines.append(f"| {name} | " + " | ".join(f"{metrics[column]:.2f}" for column in COLUMNS) + " |")
    for name, documents in results.items():
        if name in RUNS:
            seeds = "" if len(documents) == len(results["unidec"]) else f" (seeds: {len(documents)})"
            lines += [row(f"{name}, {search}{seeds}", documents, search) for search in documents[0]["metrics"]]
        else:
            lines.append(row(f"unidec without {name}, {last}", documents, last))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="name of the files")
    parser.add_argument("--data", help="data set; default: the name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", help="a run by name; can be repeated")
    options = parser.parse_args()
    stored = HERE / f"{options.name}.json"
    results: dict[str, Documents] = json.loads(stored.read_text()) if stored.exists() else {}
    baselines = "baseline=all"
    for name in options.only or (*RUNS, *WITHOUT):
        overrides = [*RUNS.get(name, RUNS["unidec"]), *WITHOUT.get(name, []), f"data={options.data or options.name}"]
        documents = results.setdefault(name, [])
        for seed in range(len(documents), options.seeds):
            documents.append(measure([*overrides, baselines], seed))
            baselines = "baseline=none"  # they have no seed
            stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        seconds = [document["seconds"]["train"] for document in documents]
        print(f"{name}: trained in {statistics.median(seconds):.0f} s (median)")
    results = {name: results[name] for name in (*RUNS, *WITHOUT) if name in results}
    (HERE / f"{options.name}.md").write_text(table(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
