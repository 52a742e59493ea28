"""A subset of the embedded data, small enough to train a transformer in minutes on a CPU: packages of some languages.

    python benchmarks/results/subset.py FOLDER

Queries whose name begins with `r-` or `ruby-`, the labels of the training queries among them, and their pairs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Split
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab_datatools.write import NO_CONTENTS, write_raw_text

LANGUAGES = ("r-", "ruby-")


def part(split: Split) -> Split:
    """The queries of these languages, with all their pairs."""
    rows = np.array([row for row, text in enumerate(split.texts) if text.startswith(LANGUAGES)])
    texts, names = ([column[row] for row in rows] for column in (split.texts, split.names))
    return Split(texts, names, sp.csr_array(split.targets_NL[rows]), sp.csr_array(split.filter_NL[rows]))


def with_labels(split: Split, labels: np.ndarray) -> Split:
    """Only the pairs of these labels, renumbered."""
    return Split(split.texts, split.names, split.targets_NL[:, labels], split.filter_NL[:, labels])


def subset(data: Dataset) -> Dataset:
    train, test = part(data.train), part(data.test)
    labels = np.unique(train.targets_NL.indices)
    texts, names = ([column[label] for label in labels] for column in (data.label_texts, data.label_names))
    return Dataset("languages", with_labels(train, labels), with_labels(test, labels), texts, names, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    data = subset(open_dataset("debian", "title", default_registry()))
    folder.mkdir(parents=True, exist_ok=True)
    write_raw_text(folder, data, NO_CONTENTS)
    sizes = f"{len(data.train)} training and {len(data.test)} test queries, {data.num_labels} labels"
    print(f"{folder}: {sizes}, {data.train.targets_NL.nnz / len(data.train):.2f} of them a training query")


if __name__ == "__main__":
    main()
