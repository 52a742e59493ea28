"""A transformer on modest data: `unidec_transformer` beside what needs no xmclab, and beside the bag.

    pip install ".[minilm]" sentence-transformers
    python benchmarks/quality/transformer.py

The data is a part of the embedded set: 4,000 training and 1,500 test queries, drawn by a hash of their titles, and the
labels of those training queries. Writes `transformer.json` (every number) and `transformer.md` next to this file.
To choose settings, `--validate` tests on a fifth of the training queries instead, which is held out; further arguments
are overrides of `unidec_transformer`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.sentence_transformer.datasets import NoDuplicatesDataLoader
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from xmclab.api import Dataset, Ranking, Split
from xmclab.data import open_dataset
from xmclab.data.holdout import drawn, key_of, take
from xmclab.evaluation.metrics import drop_filtered
from xmclab.evaluation.report import COLUMNS
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.encoders.hf import locate
from xmclab.runs.run import run
from xmclab_datatools.write import NO_CONTENTS, write_raw_text

HERE = Path(__file__).parent
TRAIN, TEST, VALIDATION = 4000, 1500, 0.2
NEIGHBOURS, VOTE_TEMPERATURE, COSINE_WEIGHT = 50, 0.05, 0.5
BATCH, RATE, DEPTH = 128, 1e-4, 100

Scores = dict[str, dict[str, float]]


def part(split: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """The queries of a share, drawn by their titles, and the others."""
    chosen = drawn(np.array([key_of(text, seed) for text in split.texts], dtype=np.uint64), share)
    return take(split, np.flatnonzero(chosen)), take(split, np.flatnonzero(~chosen))


def with_labels(split: Split, labels: np.ndarray) -> Split:
    """Only the pairs of these labels, renumbered."""
    return Split(split.texts, split.names, split.targets_NL[:, labels], split.filter_NL[:, labels])


def cut(data: Dataset, validate: bool) -> Dataset:
    """Some training queries, all their labels, and some queries to test with that have one of these."""
    train, _ = part(data.train, TRAIN / len(data.train))
    test = data.test
    if validate:
        test, train = part(train, VALIDATION, seed=1)
    labels = np.unique(train.targets_NL.indices)
    train, test = with_labels(train, labels), with_labels(test, labels)
    test = take(test, np.flatnonzero(np.diff(test.targets_NL.indptr)))
    test, _ = part(test, min(TEST / len(test), 1))
    texts, names = ([column[label] for label in labels] for column in (data.label_texts, data.label_names))
    return Dataset("debian-4000", train, test, texts, names, "")


def trained(overrides: list[str]) -> Callable[[Dataset], Scores]:
    """The searches of a run of xmclab."""

    def measure(data: Dataset) -> Scores:
        with tempfile.TemporaryDirectory() as folder:
            write_raw_text(Path(folder), data, NO_CONTENTS)
            config = resolve([*overrides, f"data={folder}", "keep_model=false", "baseline=none"], default_registry())
            return run(config, Path(folder) / "run").metrics

    return measure


def encoded(model: SentenceTransformer, data: Dataset) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors of training queries, test queries and labels."""
    train, test, labels = (
        model.encode(list(texts), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False)
        for texts in (data.train.texts, data.test.texts, data.label_texts)
    )
    return train, test, labels


def searched(model: SentenceTransformer, data: Dataset) -> Scores:
    """Label texts by cosine, and that with a vote of the nearest training queries."""
    train_ND, test_ND, labels_LD = encoded(model, data)
    cosine_NL = test_ND @ labels_LD.T
    near = (test_ND @ train_ND.T).topk(NEIGHBOURS, dim=1)
    weight_NN = torch.zeros(len(test_ND), len(train_ND))
    weight_NN.scatter_(1, near.indices, (near.values / VOTE_TEMPERATURE).softmax(dim=1))
    vote_NL = torch.from_numpy(weight_NN.numpy() @ data.train.targets_NL)
    evaluator, scores = Evaluator.of_data(data), {}
    for name, score_NL in {"cosine": cosine_NL, "vote + cosine": vote_NL + COSINE_WEIGHT * cosine_NL}.items():
        best = score_NL.topk(DEPTH + 10, dim=1)
        ranking = Ranking(best.indices.numpy(), best.values.numpy())
        scores[name] = evaluator.metrics(drop_filtered(ranking, data.test.filter_NL, DEPTH))
    return scores


def frozen(data: Dataset) -> Scores:
    """The encoder as it is."""
    return searched(SentenceTransformer(locate("minilm")), data)


def ranking_loss(passes: int) -> Callable[[Dataset], Scores]:
    """The encoder trained by sentence-transformers on all pairs of a query and one of its labels."""

    def measure(data: Dataset) -> Scores:
        random.seed(0)  # of the loader
        torch.manual_seed(0)
        model = SentenceTransformer(locate("minilm"))
        pairs = zip(*data.train.targets_NL.nonzero(), strict=True)
        examples = [InputExample(texts=[data.train.texts[row], data.label_texts[label]]) for row, label in pairs]
        loader = NoDuplicatesDataLoader(examples, BATCH)
        model.old_fit(
            [(loader, MultipleNegativesRankingLoss(model))],
            epochs=passes,
            warmup_steps=passes * len(loader) // 10,
            optimizer_params={"lr": RATE},
            show_progress_bar=False,
        )
        return searched(model, data)

    return measure


def runs(passes: int, overrides: list[str]) -> dict[str, Callable[[Dataset], Scores]]:
    """What is compared, each with the same number of passes over its training queries or pairs."""
    ours = ["recipe=unidec_transformer", "encoder.model=minilm", f"epochs={passes}", *overrides]
    return {
        "frozen MiniLM": frozen,
        "MultipleNegativesRankingLoss": ranking_loss(passes),
        "unidec": trained(["recipe=unidec", f"epochs={passes}"]),
        "unidec_transformer": trained(ours),
    }


def table(measured: dict[str, dict], title: str) -> str:
    """One Markdown row per run and search."""
    lines = [f"| {title} | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, result in measured.items():
        for search, metrics in result["metrics"].items():
            lines.append(f"| {name}, {search} | " + " | ".join(f"{metrics[column]:.2f}" for column in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--validate", action="store_true", help="compare on held-out training queries; writes nothing")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--only", help="a single run; the files keep the others")
    parser.add_argument("overrides", nargs="*", help="overrides for unidec_transformer")
    arguments = parser.parse_args()
    data = cut(open_dataset("debian", "title", default_registry()), arguments.validate)
    every = runs(arguments.passes, arguments.overrides)
    measured = {}
    for name in [arguments.only] if arguments.only else every:
        started = time.perf_counter()
        metrics = every[name](data)
        measured[name] = {"metrics": metrics, "seconds": round(time.perf_counter() - started)}
    title = f"{data.name}, {arguments.passes} passes"
    if arguments.validate:
        print(table(measured, title))
        return
    file = HERE / "transformer.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if known.get("passes") == arguments.passes:
        measured = known["runs"] | measured
    measured = {name: measured[name] for name in every if name in measured}
    sizes = {"train": len(data.train), "test": len(data.test), "labels": data.num_labels}
    document = {"data": sizes, "passes": arguments.passes, "runs": measured}
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (HERE / "transformer.md").write_text(table(measured, title), encoding="utf-8")
    print(table(measured, title))


if __name__ == "__main__":
    main()
