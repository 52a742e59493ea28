"""What predictions cost beside what they cannot do without: encoding the texts, and bare products of vectors.

    python benchmarks/predict/compare.py [--run FOLDER] [--repeats 5]

The floor of a search encodes the same texts with the same encoder, and multiplies them by what the search compares them
with: the vectors of all labels, and for the vote those of all training queries. With `topk` it also takes the best of
every row. Ours is all of `Model.predict` for one query, and all of `Model.predict_file` in bulk: reading and checking a
CSV file, search, names, and writing JSON lines. Alternatives are interleaved in one process, and the numbers are
medians; memory is the peak of a process of its own. Writes `results.json` and `results.md` next to this file.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import torch
from torch import Tensor

import xmclab as xl
from xmclab.evaluation.searches.neighbours import Neighbours, directions
from xmclab.system.usage import peak

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
from harness import interleaved

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "runs" / "predict"
SEARCHES = ("de", "de+clf", "de+clf+nn")
K, BLOCK, BOUND, TIMES, MIB = 5, 1024, 1.5, 4, 2**20
QUERIES = 200  # single ones, in turn


def trained(folder: Path) -> Path:
    """A quick run on `debian`, made unless it is there."""
    if not (folder / "result.json").is_file():
        xl.train("unidec", "debian", "miner=none", "baseline=none", epochs=1, out=folder)
    return folder


class Floor:
    """Encoding and bare products of a search."""

    def __init__(self, model: xl.Model, search: str) -> None:
        self.model, self.space = model.predictor.model, model.predictor.space
        self.chunk = model.predictor.config.settings.encode.search_chunk
        self.heads = [head for head in search.split("+") if head in self.model.head_names]
        self.z_LD = self.space.together("+".join(self.heads)).contiguous()
        found = model.predictor.search
        votes = search.endswith("nn")
        assert not votes or isinstance(found, Neighbours)
        self.train_ND: Tensor | None = found._directions_ND if votes else None
        self.scores = torch.empty(BLOCK * max(len(self.z_LD), 0 if self.train_ND is None else len(self.train_ND)))

    @torch.inference_mode()
    def answer(self, texts: Sequence[str], topk: bool) -> None:
        for start in range(0, len(texts), 4 * self.chunk):
            tokens = self.model.encoder.tokenise(texts[start : start + 4 * self.chunk])
            vectors = self.model.query_vectors(tokens, self.chunk, self.heads)
            sides = [(self.space.matching("+".join(self.heads), vectors), self.z_LD, K)]
            if self.train_ND is not None:
                sides.append((directions(vectors), self.train_ND, 50))
            for q_ND, z_MD, k in sides:
                for first in range(0, len(q_ND), BLOCK):
                    q_QD = q_ND[first : first + BLOCK]
                    out = self.scores[: len(q_QD) * len(z_MD)].view(len(q_QD), len(z_MD))
                    torch.mm(q_QD, z_MD.T, out=out)
                    if topk:
                        out.topk(k, dim=1)


def single(model: xl.Model, floor: Floor, search: str, texts: Sequence[str]) -> dict[str, float]:
    """Median seconds of one warm query."""
    alternatives: Mapping[str, Callable[[str], Any]] = {
        "products": lambda text: floor.answer([text], topk=False),
        "topk": lambda text: floor.answer([text], topk=True),
        "ours": lambda text: model.predict(text, K, head=search),
    }
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    for text in texts[: QUERIES + 5]:
        for name, run in alternatives.items():
            run(text)  # what the caches hold is its own
            started = time.perf_counter()
            run(text)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(some[5:]) for name, some in times.items()}


def bulk(
    model: xl.Model, floor: Floor, search: str, file: Path, texts: Sequence[str], repeats: int
) -> dict[str, float]:
    """Median seconds of all texts."""
    out = file.with_suffix(".jsonl")
    return interleaved(
        {
            "products": lambda: floor.answer(texts, topk=False),
            "topk": lambda: floor.answer(texts, topk=True),
            "ours": lambda: model.predict_file(file, out, K, head=search, overwrite=True),
        },
        repeats,
    )


def write_csv(file: Path, texts: Sequence[str], times: int = 1) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["query"])
        rows.writerows([text] for _ in range(times) for text in texts)


def memory(run: Path, file: Path, search: str) -> int:
    """Peak bytes of a process that predicts for a file."""
    xl.load(run, device="cpu").predict_file(file, file.with_suffix(".jsonl"), K, head=search, overwrite=True)
    return peak()


def alone(*arguments: Any) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(memory, arguments)


def measure(run: Path, repeats: int) -> dict[str, Any]:
    model = xl.load(run, device="cpu")
    data = xl.read("debian").dataset
    texts = [*data.train.texts, *data.test.texts]
    found: dict[str, Any] = {"texts": len(texts), "labels": len(model.labels), "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        file, larger = Path(folder) / "queries.csv", Path(folder) / "more.csv"
        write_csv(file, texts)
        write_csv(larger, texts, TIMES)
        model.predict(texts[0], head=SEARCHES[-1])
        for search in SEARCHES:
            floor = Floor(model, search)
            one, many = single(model, floor, search, texts), bulk(model, floor, search, file, texts, repeats)
            found[search] = {"one": one, "bulk": many}
            print(search, json.dumps(found[search]), flush=True)
        found["memory"] = [alone(run, each, SEARCHES[-1]) for each in (file, larger)]
    return found


def page(found: Mapping[str, Any]) -> str:
    lines = [
        "| search | of what | ours | to products | to products and topk | |",
        "|---|---|--:|--:|--:|---|",
    ]
    for search in SEARCHES:
        for what, told in (("one", "one warm query"), ("bulk", f"{found['texts']:,} texts")):
            times = found[search][what]
            ratios = [times["ours"] / times[floor] for floor in ("products", "topk")]
            ours = (
                f"{times['ours'] * 1e3:.1f} ms" if what == "one" else f"{found['texts'] / times['ours']:,.0f} texts/s"
            )
            met = "met" if ratios[0] <= BOUND else "missed"
            lines.append(f"| {search} | {told} | {ours} | {ratios[0]:.2f} | {ratios[1]:.2f} | {met} |")
    small, large = (size / MIB for size in found["memory"])
    return f"""# Predictions beside encoding and bare products

`make bench-predict`: a model of the embedded Debian packages, {found["labels"]:,} labels, {found["threads"]} thread(s).
The last columns divide our time by that of encoding the same texts and multiplying them by the vectors that the search
compares them with (for `nn`, also those of the training queries), without and with `topk`. The goal is {BOUND} times
the products alone. Ours includes reading and checking a CSV file, names, and writing JSON lines.

{chr(10).join(lines)}

Peak memory of a process, `{SEARCHES[-1]}`: {small:,.0f} MiB for {found["texts"]:,} texts, {large:,.0f} MiB for {TIMES}
times as many.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=RUN, help="a run on debian with both heads and the vote")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = measure(trained(options.run), options.repeats)
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "results.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
