"""Statistics of a data set: sizes, label frequencies, words, and common pitfalls."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmclab.api import Dataset, Split
from xmclab.data.holdout import own_labels, rows_with_entry
from xmclab.data.propensity import frequency_bands, label_frequencies
from xmclab.errors import ConfigError, PluginError, Problem

RANKS = 100  # points of the frequency curve that the exponent is fitted to


def statistics(dataset: Dataset) -> dict[str, Any]:
    """Everything that `xmclab data stats` shows, as JSON values."""
    frequency_L = label_frequencies(dataset.train.targets_NL)
    bands = frequency_bands(dataset.train.targets_NL)
    test_pairs_L = label_frequencies(dataset.test.targets_NL)
    seen = set(dataset.train.texts)
    return {
        "name": dataset.name,
        "sha256": dataset.fingerprint,
        "train": _of_queries(dataset.train, dataset.label_texts),
        "test": {
            **_of_queries(dataset.test, dataset.label_texts),
            "texts_of_training": sum(text in seen for text in dataset.test.texts),
            "true_pairs_filtered": int(dataset.test.targets_NL.multiply(dataset.test.filter_NL).nnz),
        },
        "labels": {
            "number": dataset.num_labels,
            "queries_per_label": _spread(frequency_L),
            "without_training_query": int(np.count_nonzero(frequency_L == 0)),
            "with_one_training_query": int(np.count_nonzero(frequency_L == 1)),
            "zipf_exponent": zipf_exponent(frequency_L),
            **_of_texts(dataset.label_texts),
            "duplicate_names": len(dataset.label_names) - len(set(dataset.label_names)),
        },
        "bands": {
            name: {
                "labels": int(np.count_nonzero(bands.group_L == group)),
                "train_pairs": int(frequency_L[bands.group_L == group].sum()),
                "test_pairs": int(test_pairs_L[bands.group_L == group].sum()),
            }
            for group, name in enumerate(bands.names)
        },
    }


def _of_queries(split: Split, label_texts: Sequence[str]) -> dict[str, Any]:
    labels_N = np.diff(split.targets_NL.indptr)
    own = own_labels(split, label_texts)
    return {
        "queries": len(split),
        "pairs": int(split.targets_NL.nnz),
        "labels_per_query": _spread(labels_N),
        "without_label": int(np.count_nonzero(labels_N == 0)),
        "filter_pairs": int(split.filter_NL.nnz),
        **_of_texts(split.texts),
        "texts_of_labels": own.queries,
        "own_labels_listed": own.listed,
        "own_labels_left_out": own.filtered,
        "own_labels_unlisted": rows_with_entry(own.others_NL),
    }


def _of_texts(texts: Sequence[str]) -> dict[str, Any]:
    return {
        "words": _spread(np.fromiter((len(text.split()) for text in texts), np.int64, len(texts))),
        "empty_texts": sum(not text.strip() for text in texts),
        "duplicate_texts": len(texts) - len(set(texts)),
    }


def _spread(counts: NDArray[np.integer[Any]]) -> dict[str, float]:
    if not len(counts):
        return {"mean": 0.0, "median": 0.0, "max": 0}
    return {"mean": float(counts.mean()), "median": float(np.median(counts)), "max": int(counts.max())}


def zipf_exponent(frequency_L: NDArray[np.integer[Any]]) -> float | None:
    """The slope s of frequency ~ rank^-s over the labels that occur, with equal weight per decade of ranks.

    None with fewer than two different ranks.
    """
    curve = frequency_curve(frequency_L)
    if len(curve) < 2:
        return None
    ranks = np.unique(np.geomspace(1, len(curve), RANKS).round().astype(np.int64))
    slope, _ = np.polyfit(np.log(ranks), np.log(curve[ranks - 1]), 1)
    return float(-slope)


def frequency_curve(frequency_L: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The frequencies of the labels that occur, most frequent first."""
    return np.sort(frequency_L[frequency_L > 0])[::-1]


def remarks(stats: dict[str, Any]) -> Iterator[str]:
    """What is allowed in a data set but worth knowing before training on it."""
    test, labels = stats["test"], stats["labels"]
    if count := test["texts_of_training"]:
        yield f"{count:,} test queries have the same text as a training query"
    if count := test["true_pairs_filtered"]:
        yield f"{count:,} true test pairs are in the filter file: they can never be predicted"
    if count := labels["without_training_query"]:
        yield f"{count:,} labels have no training query: only their text can match them"
    if count := labels["duplicate_names"]:
        yield f"{count:,} labels share their name with another label: predictions by name cannot tell them apart"


def plot(dataset: Dataset, file: Path) -> None:
    """Plot the label frequencies on log-log axes with the fitted exponent; the file's suffix selects the format."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(6, 4), layout="constrained")
    except ImportError as error:
        hint = 'pip install "xmclab[plot]"'
        raise PluginError(Problem("--plot", f"matplotlib cannot be imported: {error}", hint)) from error
    known, wanted = figure.canvas.get_supported_filetypes(), file.suffix.lower().removeprefix(".")
    if wanted not in known:
        raise ConfigError(Problem(f"--plot {file}", "not an image format", f"known: {', '.join(sorted(known))}"))
    frequency_L = label_frequencies(dataset.train.targets_NL)
    curve = frequency_curve(frequency_L)
    axes = figure.subplots()
    axes.loglog(np.arange(1, len(curve) + 1), curve, ".-", markersize=3)
    exponent = zipf_exponent(frequency_L)
    title = f"{dataset.name}: {len(curve):,} labels"
    axes.set_title(title if exponent is None else f"{title}, Zipf exponent {exponent:.2f}")
    axes.set_xlabel("rank of the label")
    axes.set_ylabel("training queries")
    axes.grid(alpha=0.3)
    figure.savefig(file, format=wanted, dpi=150)
