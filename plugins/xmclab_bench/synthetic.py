"""Synthetic data of any size: labels with Zipf frequencies in topics, and texts whose words reveal the labels.

Label r (from 0) belongs to topic r mod T and is drawn in proportion to (r + 1)^-exponent. Its text is two words of its
own and two of its topic. A query draws its first label from all, the others from the same topic, by frequency,
so that every draw follows the law; its text mixes words of its labels with common words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from xmclab.api import Keys

CHUNK = 8_192  # queries made at once; each chunk has its own random draws
SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprstvwz" for vowel in "aeiou"]
COMMON = 200  # words common to all topics
OF_TOPIC = 10  # words of each topic
MOST = 16  # most labels of a query

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """What to generate."""

    train: int
    test: int
    labels: int
    topics: int  # 0: about the square root of the labels
    labels_per_query: float
    words: int  # of a query
    exponent: float
    seed: int

    @property
    def num_topics(self) -> int:
        return min(self.topics or max(round(self.labels**0.5), 1), self.labels)


def make_synthetic(folder: Path, recipe: Recipe) -> None:
    """Write label-feature JSON, chunk by chunk."""
    words, draw = _Words(recipe), LabelDraw(recipe)
    with _text_file(folder / "lbl.json") as stream:
        for start in range(0, recipe.labels, CHUNK):
            texts = words.texts(words.of_labels(np.arange(start, min(start + CHUNK, recipe.labels))))
            stream.writelines(f'{{"uid": "l{row}", "title": "{text}"}}\n' for row, text in enumerate(texts, start))
    for name, letter, number in (("trn", "q", recipe.train), ("tst", "t", recipe.test)):
        with _text_file(folder / f"{name}.json") as stream:
            for start in range(0, number, CHUNK):
                rng = Keys(recipe.seed).rng(f"synthetic {name}", start)
                labels_BM, numbers_B = draw(min(CHUNK, number - start), rng)
                texts = words.texts(words.of_queries(labels_BM, numbers_B, rng))
                rows = zip(texts, labels_BM.tolist(), numbers_B.tolist(), strict=True)
                stream.writelines(
                    f'{{"uid": "{letter}{row}", "title": "{text}", "target_ind": {labels[:size]}}}\n'
                    for row, (text, labels, size) in enumerate(rows, start)
                )


def _text_file(path: Path) -> TextIO:
    return path.open("w", encoding="utf-8", newline="\n")


class LabelDraw:
    """Draws the labels of queries."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        labels_L = np.arange(recipe.labels)
        self.by_topic_L = np.lexsort((labels_L, labels_L % recipe.num_topics))  # topic after topic
        weight_L = (labels_L + 1.0) ** -recipe.exponent
        self.until_L = np.cumsum(weight_L[self.by_topic_L])
        sizes_T = np.bincount(labels_L % recipe.num_topics)
        self.until_T = np.concatenate([[0.0], self.until_L[np.cumsum(sizes_T) - 1]])

    def __call__(self, size: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """(labels_BM, how many leading labels of each row count; these are distinct)."""
        numbers_B = np.minimum(1 + rng.poisson(self.recipe.labels_per_query - 1, size), MOST)
        width = int(numbers_B.max())
        first_B = self._at(rng.random(size) * self.until_L[-1])
        topic_B1 = (first_B % self.recipe.num_topics)[:, None]
        low_B1, high_B1 = self.until_T[topic_B1], self.until_T[topic_B1 + 1]
        labels_BM = self._at(low_B1 + rng.random((size, width)) * (high_B1 - low_B1))
        labels_BM[:, 0] = first_B
        fresh_BM = np.arange(width) < numbers_B[:, None]
        for place in range(1, width):
            fresh_BM[:, place] &= (labels_BM[:, :place] != labels_BM[:, place, None]).all(axis=1)
        order_BM = np.argsort(~fresh_BM, axis=1, kind="stable")
        return np.take_along_axis(labels_BM, order_BM, axis=1), fresh_BM.sum(axis=1)

    def _at(self, weight: NDArray[np.float64]) -> Ids:
        place = np.searchsorted(self.until_L, weight, side="right")
        return np.asarray(self.by_topic_L[np.minimum(place, len(self.by_topic_L) - 1)])


class _Words:
    """The vocabulary: common words, then the words of topics, then two of each label."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.first_of_topics = COMMON
        self.first_of_labels = COMMON + OF_TOPIC * recipe.num_topics
        self.spelt = _spell(self.first_of_labels + 2 * recipe.labels)

    def texts(self, ids_BW: Ids) -> Iterator[str]:
        """A text per row."""
        spell = self.spelt.__getitem__
        return (" ".join(map(spell, row)) for row in ids_BW.tolist())

    def of_labels(self, labels_B: Ids) -> Ids:
        """The words of label texts: two of the label's own, two of its topic."""
        own_B = self.first_of_labels + 2 * labels_B
        topic_B = self.first_of_topics + OF_TOPIC * (labels_B % self.recipe.num_topics)
        return np.stack([own_B, own_B + 1, *(topic_B + (labels_B // 7 + step) % OF_TOPIC for step in (0, 3))], axis=1)

    def of_queries(self, labels_BM: Ids, numbers_B: Ids, rng: np.random.Generator) -> Ids:
        """The words of queries: half of the labels' own, a quarter of the topic, a quarter common."""
        shape = (len(labels_BM), self.recipe.words)
        which_BW = (rng.random(shape) * numbers_B[:, None]).astype(np.int64)
        labels_BW = np.take_along_axis(labels_BM, which_BW, axis=1)
        own = self.first_of_labels + 2 * labels_BW + rng.integers(0, 2, shape)
        topical = (
            self.first_of_topics + OF_TOPIC * (labels_BW % self.recipe.num_topics) + rng.integers(0, OF_TOPIC, shape)
        )
        common = (COMMON * rng.random(shape) ** 3).astype(np.int64)  # some are much more common than others
        kind = rng.random(shape)
        return np.where(kind < 0.5, own, np.where(kind < 0.75, topical, common))


def _spell(number: int) -> Sequence[str]:
    """This many distinct words, shortest first."""
    words = [""]
    level = [""]
    while len(words) <= number:
        level = [word + syllable for word in level for syllable in SYLLABLES][: number + 1]
        words += level
    return words[1 : number + 1]
