"""Lines of a text and its labels.

Files:    `train.tagged` and `test.tagged`, in UTF-8: a query per line, a tab, and its
          labels with a separator between them; a label is known by its text
Use with: xmclab run recipe=unidec reader=part_name data=FOLDER
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import xmclab
from xmclab.api import Dataset, Reader, Split
from xmclab.errors import DataError, Problem

TRAIN, TEST = "train.tagged", "test.tagged"


@dataclass
class PartName(Reader):
    """`train.tagged` and `test.tagged`: a text, a tab and its labels on each line."""

    separator: str = xmclab.option(",", "separator of the labels")

    def matches(self, folder: Path) -> bool:
        """Whether the folder has such files."""
        return (folder / TRAIN).is_file() and (folder / TEST).is_file()

    def read(self, folder: Path) -> Dataset:
        """Read both files; everything that is wrong is reported at once."""
        problems: list[Problem] = []
        ids: dict[str, int] = {}
        digest = hashlib.sha256(self.separator.encode())
        halves = []
        for name in (TRAIN, TEST):
            content = (folder / name).read_bytes()
            digest.update(content)
            lines = content.decode(errors="replace").splitlines()
            halves.append(self._lines(folder / name, lines, ids, problems))
        if problems:
            raise DataError(*problems)
        train, test = (_split(texts, labels, len(ids)) for texts, labels in halves)
        return Dataset(folder.name, train, test, [*ids], [*ids], digest.hexdigest())

    def _lines(
        self,
        file: Path,
        lines: Sequence[str],
        ids: dict[str, int],
        problems: list[Problem],
    ) -> tuple[list[str], list[list[int]]]:
        """The texts, and the label ids of each; new labels get the next id."""
        texts, labels = [], []
        for number, line in enumerate(lines, start=1):
            text, _, cell = line.partition("\t")
            names = [name.strip() for name in cell.split(self.separator)]
            names = [name for name in names if name]
            if not text or not names:
                problems.append(Problem(f"{file}:{number}", "no text or no label"))
            texts.append(text)
            labels.append(sorted({ids.setdefault(name, len(ids)) for name in names}))
        return texts, labels


def _split(texts: list[str], labels: list[list[int]], num_labels: int) -> Split:
    ends = np.cumsum([0, *map(len, labels)])
    columns = np.array([label for row in labels for label in row], dtype=np.int64)
    ones = np.ones(len(columns), dtype=np.float32)
    shape = len(texts), num_labels
    targets_NL = sp.csr_array((ones, columns, ends), shape=shape)
    no_ends = np.zeros(len(texts) + 1, dtype=np.int64)
    nothing = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64), no_ends
    nothing_NL = sp.csr_array(nothing, shape=shape)
    names = [str(number) for number in range(len(texts))]
    return Split(texts, names, targets_NL, nothing_NL)
