"""What predictions cost beside what they cannot do without: encoding the texts, and bare products of vectors.

    python benchmarks/predict/compare.py [--run FOLDER] [--repeats 3] [--only de de+clf memory]

The floor of a search encodes the same texts with the same encoder, and multiplies them by what the search compares them
with: the vectors of all labels, and for the vote those of all training queries. With `topk` it also takes the best of
every row. Ours is all of `Model.predict` for one query, and all of `Model.predict_file` in bulk: reading and checking a
CSV file, search, names, and writing JSON lines. Alternatives are interleaved in one process, and the numbers are
medians of the processor time of all threads, which other work on the machine changes least; memory is the peak of a
process of its own. Writes
`results.json` and `results.md` next to this file, in which what was not asked for keeps its numbers.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import torch
from torch import Tensor

import xmclab as xl
from xmclab.evaluation.searches.neighbours import Neighbours, directions
from xmclab.system.usage import peak

HERE = Path(__file__).parent
RUN = HERE.parents[1] / "runs" / "predict"
SEARCHES = ("de", "de+clf", "de+clf+nn")
K, BLOCK, BOUND, TIMES, MIB = 5, 1024, 1.5, 4, 2**20
QUERIES = 100  # single ones, in turn
OURS, MEMORY = "ours", "memory"


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


Alternatives = Mapping[str, Callable[[], Any]]


def timed(rounds: Iterable[Alternatives], settle: bool) -> dict[str, float]:
    """Median processor seconds of each alternative, and the median ratios of ours to the others.

    Args:
        settle: run each once right before it is timed, so that the caches hold what it leaves there itself.
    """
    times: list[dict[str, float]] = []
    for alternatives in rounds:
        times.append({})
        for name, run in alternatives.items():
            if settle:
                run()
            started = time.process_time()
            run()
            times[-1][name] = time.process_time() - started
    found = {name: statistics.median(each[name] for each in times) for name in times[0]}
    ratios = {
        f"to {name}": statistics.median(each[OURS] / each[name] for each in times) for name in found if name != OURS
    }
    return {**found, **ratios}


def single(model: xl.Model, floor: Floor, search: str, texts: Sequence[str]) -> dict[str, float]:
    """One warm query at a time."""

    def of(text: str) -> Alternatives:
        return {
            "products": lambda: floor.answer([text], topk=False),
            "topk": lambda: floor.answer([text], topk=True),
            OURS: lambda: model.predict(text, K, head=search),
        }

    return timed(map(of, texts[:QUERIES]), settle=True)


def bulk(
    model: xl.Model, floor: Floor, search: str, file: Path, texts: Sequence[str], repeats: int
) -> dict[str, float]:
    """All texts, from file to file."""
    out = file.with_suffix(".jsonl")
    alternatives: Alternatives = {
        "products": lambda: floor.answer(texts, topk=False),
        "topk": lambda: floor.answer(texts, topk=True),
        OURS: lambda: model.predict_file(file, out, K, head=search, overwrite=True),
    }
    return timed([alternatives] * repeats, settle=False)


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


def measure(run: Path, repeats: int, only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What was measured, piece by piece."""
    model = xl.load(run, device="cpu")
    data = xl.read("debian").dataset
    texts = [*data.train.texts, *data.test.texts]
    yield {"texts": len(texts), "labels": len(model.labels), "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        file, larger = Path(folder) / "queries.csv", Path(folder) / "more.csv"
        write_csv(file, texts)
        write_csv(larger, texts, TIMES)
        model.predict(texts[0], head=SEARCHES[-1])
        for search in (search for search in SEARCHES if search in only):
            floor = Floor(model, search)
            one, many = single(model, floor, search, texts), bulk(model, floor, search, file, texts, repeats)
            yield {search: {"one": one, "bulk": many}}
        if MEMORY in only:
            yield {MEMORY: [alone(run, each, SEARCHES[0]) for each in (file, larger)]}


def page(found: Mapping[str, Any]) -> str:
    lines = [
        "| search | of what | ours | to products | to products and topk | |",
        "|---|---|--:|--:|--:|---|",
    ]
    for search in (search for search in SEARCHES if search in found):
        for what, told in (("one", "one warm query"), ("bulk", f"{found['texts']:,} texts")):
            times = found[search][what]
            ratios = [times["ours"] / times[floor] for floor in ("products", "topk")]
            ours = (
                f"{times['ours'] * 1e3:.1f} ms" if what == "one" else f"{found['texts'] / times['ours']:,.0f} texts/s"
            )
            met = "met" if ratios[0] <= BOUND else "missed"
            lines.append(f"| {search} | {told} | {ours} | {ratios[0]:.2f} | {ratios[1]:.2f} | {met} |")
    held = ""
    if sizes := found.get(MEMORY):
        small, large = (size / MIB for size in sizes)
        held = f"\nPeak memory of a process, `{SEARCHES[0]}`: {small:,.0f} MiB for {found['texts']:,} texts, "
        held += f"{large:,.0f} MiB for {TIMES} times as many.\n"
    return f"""# Predictions beside encoding and bare products

`make bench-predict`: a model of the embedded Debian packages, {found["labels"]:,} labels, {found["threads"]} thread(s),
in processor time.
The last columns divide our time by that of encoding the same texts and multiplying them by the vectors that the search
compares them with (for `nn`, also those of the training queries), without and with `topk`. The goal is {BOUND} times
the products alone. Ours includes reading and checking a CSV file, names, and writing JSON lines.

{chr(10).join(lines)}
{held}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=RUN, help="a run on debian with both heads and the vote")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=(*SEARCHES, MEMORY), default=(*SEARCHES, MEMORY))
    options = parser.parse_args()
    results = HERE / "results.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for some in measure(trained(options.run), options.repeats, options.only):
        found |= some
        results.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(some), flush=True)
    (HERE / "results.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
