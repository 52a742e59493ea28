"""`make bench-index`: the searches that `index=auto` chooses between, on real and synthetic vectors.

python benchmarks/index/compare.py [FOLDER ...]

Real vectors come from the embedded data and from data folders: recipe unidec with the bag encoder, two epochs. Each
alternative is one mining search, from label vectors to the nearest labels of all queries, building and tuning
included. All of them run once per round; hnsw, which takes long to build, in the first round, with up to 30,000 labels.
Of the queries a part is searched, and the time of the search (not of building and tuning) is scaled to all of them. The
fastest build and the fastest search count, since other work on the machine only adds to the others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import numpy as np
import torch
from torch import Tensor

from xmclab.api import Index, Keys
from xmclab.data import open_data, with_reader
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.plan.indexes import auto
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss, load_faiss
from xmclab.training.loop import fit
from xmclab.training.trainer import Trainer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "speed"))
THREADS, WIDTH, K = 2, 256, 36
MOST = 2500  # queries searched


@dataclass(frozen=True)
class Case:
    """Vectors to search."""

    name: str
    q_ND: Tensor
    z_LD: Tensor


@dataclass
class AutoAlways(Auto):
    """`auto` that tries inverted lists whatever the sizes."""

    def tune(self, q_ND: Tensor, rng: np.random.Generator) -> None:
        before, auto.LISTS_FROM = auto.LISTS_FROM, 0
        try:
            super().tune(q_ND, rng)
        finally:
            auto.LISTS_FROM = before


ALTERNATIVES: dict[str, Callable[[], Index]] = {
    "exact": Exact,
    "lists, always tried": AutoAlways,
    "hnsw": lambda: Faiss(type="hnsw"),
    "auto": Auto,
}


def real(source: str) -> Case:
    """All training queries and labels of a data set, by a model trained for two epochs."""
    registry = default_registry()
    config = with_reader(resolve(["recipe=unidec", "loss.clf=ds", "epochs=2", f"data={source}"], registry))
    trainer = Trainer(config, open_data(config))
    fit(trainer, lambda record: None, dict)
    trainer.refresh(2)
    view = trainer.view
    assert view is not None
    name = f"{Path(source).name}, trained"
    return Case(name, torch.from_numpy(view.queries_ND), torch.from_numpy(view.labels_LD))


def clustered(centres: int, queries: int, labels: int) -> Case:
    """Unit vectors around common centres."""
    rng = np.random.default_rng(0)
    centres_CD = rng.standard_normal((centres, WIDTH), dtype=np.float32)

    def draw(rows: int) -> Tensor:
        noise = 0.8 * rng.standard_normal((rows, WIDTH), dtype=np.float32)
        return torch.nn.functional.normalize(torch.from_numpy(centres_CD[rng.integers(centres, size=rows)] + noise))

    return Case(f"{centres:,} clusters", draw(queries), draw(labels))


def unclustered(queries: int, labels: int) -> Case:
    """The worst case: directions drawn uniformly, where nothing is near anything."""
    generator = torch.Generator().manual_seed(0)
    q_ND, z_LD = (torch.randn(rows, WIDTH, generator=generator) for rows in (queries, labels))
    return Case("unclustered", torch.nn.functional.normalize(q_ND), torch.nn.functional.normalize(z_LD))


def mine(index: Index, case: Case, searched: int) -> tuple[float, float, Tensor]:
    """Seconds of building and tuning, and of the search, scaled to all queries; and the labels that it found."""
    started = time.perf_counter()
    index.build(case.z_LD)
    index.tune(case.q_ND, Keys(0).rng("recall", 0))
    built = time.perf_counter() - started
    started = time.perf_counter()
    ids_QK, _ = index.search(case.q_ND[:searched], K)
    return built, (time.perf_counter() - started) * len(case.q_ND) / searched, ids_QK


def measure(case: Case, rounds: int) -> dict[str, Any]:
    searched = min(MOST, len(case.q_ND))
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ALTERNATIVES}
    found: dict[str, Tensor] = {}
    for round_ in range(rounds):
        for name, make in ALTERNATIVES.items():
            if name != "hnsw" or (round_ == 0 and len(case.z_LD) <= 30_000):
                index = make()
                *taken, found[name] = mine(index, case, searched)
                seconds[name].append((taken[0], taken[1]))
    parts = {name: [min(times) for times in zip(*pairs, strict=True)] for name, pairs in seconds.items() if pairs}
    best = {name: sum(part) for name, part in parts.items()}
    row = {
        "vectors": case.name,
        "queries": len(case.q_ND),
        "labels": len(case.z_LD),
        "width": case.z_LD.shape[1],
        "searched": searched,
        "rounds": rounds,
        "seconds to build": {name: round(part[0], 2) for name, part in parts.items()},
        "seconds": {name: round(value, 2) for name, value in best.items()},
        "times as long as exact": {name: round(value / best["exact"], 3) for name, value in best.items()},
        "recall": {name: round(recall(ids_QK, found["exact"]), 4) for name, ids_QK in found.items()},
        "auto": index.report(),
    }
    print(json.dumps(row), flush=True)
    return row


def recall(found_QK: Tensor, nearest_QK: Tensor) -> float:
    """Share of the nearest 30 labels that were found, of 1024 queries."""
    nearest_QK, found_QK = nearest_QK[:1024, :30], found_QK[:1024, :30]
    return float((nearest_QK[:, :, None] == found_QK[:, None, :]).any(dim=2).float().mean())


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| vectors | queries × labels | exact | lists, always tried | hnsw | auto | auto chooses |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        what = "exact"
        if row["auto"]["name"] == "faiss":
            what = "{probes} of {lists} lists".format(**row["auto"]["options"])
        ratios = row["times as long as exact"]
        cells = [
            f"{ratios[name]:.2f} ({row['recall'][name]:.3f})" if name in ratios else ""
            for name in ALTERNATIVES
            if name != "exact"
        ]
        size = f"{row['queries']:,} × {row['labels']:,}"
        lines.append(f"| {row['vectors']} | {size} | {row['seconds']['exact']:.1f} s | {' | '.join(cells)} | {what} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", help="data folders")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help="cases with this in their name")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    from run import machine

    load_faiss()  # not timed
    cases = {f"{Path(source).name}, trained": partial(real, source) for source in ("debian", *given.folders)}
    for queries, labels in ((30_000, 30_000), (30_000, 100_000), (300_000, 100_000)):
        for name, make in {
            f"{labels // 130:,} clusters": partial(clustered, labels // 130),
            f"{labels // 33:,} clusters": partial(clustered, labels // 33),
            "unclustered": unclustered,
        }.items():
            cases[f"{name}, {queries} queries, {labels} labels"] = partial(make, queries, labels)
    path = HERE / "results.json"
    rows = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else {}
    for name, make_case in cases.items():
        if given.only in name:
            rows[name] = measure(make_case(), given.rounds)
            path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n", "utf-8")
            (HERE / "results.md").write_text(table(list(rows.values())), "utf-8")


if __name__ == "__main__":
    main()
