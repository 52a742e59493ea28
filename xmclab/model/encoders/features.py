"""Text to sparse weighted features, with numpy and scipy alone.

Kinds of features, each with its mark in the vocabulary:
    words        `w python3`          a run of letters and digits
    compounds    `k python3-schroot`  a white-space token of several words, as a whole
    pairs        `b source code`      two neighbouring words
    characters   `c <pyt`             an n-gram of a word, `<` and `>` being its boundaries
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ragged
from xmclab.options import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD = re.compile(r"[^\W_]+")
COMPOUND = re.compile(r"[^\W_].*[^\W_]")
CHUNK = 65_536  # texts counted at once: bounds the memory, not the result


def _no_idf() -> NDArray[np.float32]:
    return np.zeros(0, dtype=np.float32)


@dataclass(eq=False)
class FeatureOptions:
    """Which features a text has, and how they are weighted."""

    words: bool = option(True, "features: words")
    compounds: bool = option(False, "features: whole tokens of several words, such as python3-schroot")
    pairs: bool = option(False, "features: pairs of neighbouring words")
    chars_from: int = option(0, "features: shortest character n-gram of words; 0: none", ge=0)
    chars_to: int = option(0, "features: longest character n-gram of words; 0: as the shortest", ge=0)
    lowercase: bool = option(True, "convert to lower case")
    min_frequency: int = option(1, "drop features that occur in fewer texts than this", ge=1)
    max_features: int = option(0, "vocabulary: keep only the most frequent; 0: all", ge=0)
    buckets: int = option(0, "hash features to this many ids instead of keeping a vocabulary; 0: vocabulary", ge=0)
    sublinear: bool = option(False, "tf is 1 + ln(count) instead of the count")
    idf_power: float = option(1.0, "exponent of the idf; 0: plain counts", ge=0)


@dataclass
class Featuriser(FeatureOptions):
    """TF-IDF rows of unit length over words, word pairs and character n-grams.

    Formula:  weight = tf * idf^idf_power before the row is normalised, idf = ln((1 + N) / (1 + n)) + 1
    Where:    N texts were fitted, n of them have the feature; tf is its count in the text, or 1 + ln(count)
    """

    vocabulary: dict[str, int] = field(default_factory=dict, init=False, repr=False)  # empty when hashed
    idf: NDArray[np.float32] = field(default_factory=_no_idf, init=False, repr=False, compare=False)  # [F]; 0: dropped

    @property
    def width(self) -> int:
        """F, the number of feature ids."""
        return len(self.idf)

    def fit(self, texts: Sequence[str]) -> Self:
        """Learn the vocabulary, most frequent first and alphabetical among equals, and the idf."""
        if self.buckets:
            frequency_F = np.zeros(self.buckets, dtype=np.int64)
            for chunk in _chunks(texts):
                frequency_F += np.bincount(self._known(chunk).indices, minlength=self.buckets)
        else:
            names = self._frequent(texts)
            self.vocabulary = {name: position for position, name in enumerate(names)}
            frequency_F = np.fromiter(names.values(), np.int64, len(names))
        idf = (np.log((1 + len(texts)) / (1 + frequency_F)) + 1) ** self.idf_power
        self.idf = np.where(frequency_F >= self.min_frequency, idf, 0).astype(np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> Ragged:
        """Feature ids (ascending) and weights of every text; a text without a known feature is empty."""
        return Ragged.join([_as_ragged(self._weighted(chunk)) for chunk in _chunks(texts)])

    def to_csr(self, features: Ragged) -> sp.csr_array:
        """x_NF, the matrix whose rows `transform` returned."""
        weights = np.ones(len(features.ids), np.float32) if features.weights is None else features.weights
        return sp.csr_array((weights, features.ids, features.offsets), shape=(len(features), self.width))

    def state(self) -> tuple[dict[str, Any], NDArray[np.float32]]:
        """What `from_state` needs: options and vocabulary as plain JSON values, and the idf."""
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return {"options": options, "vocabulary": list(self.vocabulary)}, self.idf

    @classmethod
    def from_state(cls, state: Mapping[str, Any], idf: NDArray[np.float32]) -> Self:
        """The featuriser that gave this `state`."""
        featuriser = cls(**state["options"])
        featuriser.vocabulary = {name: position for position, name in enumerate(state["vocabulary"])}
        featuriser.idf = np.asarray(idf, dtype=np.float32)
        listed, distinct = len(state["vocabulary"]), len(featuriser.vocabulary)
        if distinct != listed or featuriser.idf.shape != (featuriser.buckets or listed,):
            raise ValueError(f"{listed} features, {distinct} of them distinct, but {len(idf)} weights")
        return featuriser

    def _frequent(self, texts: Sequence[str]) -> dict[str, int]:
        """The features of a vocabulary in its order, with the number of texts that have each."""
        frequency: dict[str, int] = defaultdict(int)
        for chunk in _chunks(texts):
            names, rows, columns = self._occurrences(chunk)
            counts = _sum_ones(rows, columns, (len(chunk), len(names)))
            for name, number in zip(names, np.bincount(counts.indices, minlength=len(names)).tolist(), strict=True):
                frequency[name] += number
        kept = sorted((-number, name) for name, number in frequency.items() if number >= self.min_frequency)
        return {name: -number for number, name in kept[: self.max_features or None]}

    def _weighted(self, texts: Sequence[str]) -> sp.csr_array:
        """x_NF: weighted rows of unit length."""
        x_NF = self._known(texts)
        if self.sublinear:
            x_NF.data = 1 + np.log(x_NF.data)
        x_NF.data *= self.idf[x_NF.indices]
        x_NF.eliminate_zeros()
        rows = np.repeat(np.arange(len(texts)), np.diff(x_NF.indptr))
        norm_N = np.sqrt(np.bincount(rows, weights=np.square(x_NF.data, dtype=np.float64), minlength=len(texts)))
        x_NF.data = (x_NF.data / norm_N[rows]).astype(np.float32)
        return x_NF

    def _known(self, texts: Sequence[str]) -> sp.csr_array:
        """Counts of the features that have an id, [N, F]; rows sorted by id."""
        names, rows, columns = self._occurrences(texts)
        if self.buckets:
            ids = np.array([zlib.crc32(name.encode()) % self.buckets for name in names], dtype=np.int64)
        else:
            ids = np.array([self.vocabulary.get(name, -1) for name in names], dtype=np.int64)
        columns = ids[columns]
        known = columns >= 0
        return _sum_ones(rows[known], columns[known], (len(texts), self.buckets or len(self.vocabulary)))

    def _occurrences(self, texts: Sequence[str]) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """All features of some texts: the distinct names, and (row, position of the name) of every occurrence.

        The features of a token or word are found once, however often it occurs; the rest is array arithmetic.
        """
        tokens, words, names = _numbering(), _numbering(), _numbering()
        in_texts = _ragged([tokens[token] for token in text.split()] for text in texts)
        folded = [token.lower() for token in tokens] if self.lowercase else list(tokens)
        in_tokens = _ragged([words[word] for word in WORD.findall(token)] for token in folded)
        spelled = _expand(in_tokens, in_texts)

        def numbered(features: Iterable[list[str]]) -> Ragged:
            return _ragged([names[name] for name in some] for some in features)

        found = [_expand(numbered(self._of_word(word) for word in words), spelled)]
        if self.compounds:
            found.append(_expand(numbered(map(_of_compound, folded)), in_texts))
        if self.pairs:
            found.append(_pairs(spelled, list(words), names))
        rows = np.concatenate([np.repeat(np.arange(len(texts)), np.diff(some.offsets)) for some in found])
        return list(names), rows, np.concatenate([some.ids for some in found]).astype(np.int64)

    def _of_word(self, word: str) -> list[str]:
        """The features that a word has by itself."""
        features = [f"w {word}"] if self.words else []
        if self.chars_from:
            marked = f"<{word}>"
            for n in range(self.chars_from, max(self.chars_from, self.chars_to) + 1):
                features += [f"c {marked[at : at + n]}" for at in range(len(marked) - n + 1)]
        return features


def _of_compound(token: str) -> list[str]:
    """The whole of a token that consists of several words, without punctuation around it."""
    whole = COMPOUND.search(token)
    return [f"k {whole.group()}"] if whole and not WORD.fullmatch(whole.group()) else []


def _pairs(spelled: Ragged, words: list[str], names: dict[str, int]) -> Ragged:
    """Features of neighbouring words, numbered in `names`."""
    lengths = np.maximum(np.diff(spelled.offsets) - 1, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    first = np.repeat(spelled.offsets[:-1] - offsets[:-1], lengths) + np.arange(offsets[-1])
    keys = spelled.ids[first].astype(np.int64) * len(words) + spelled.ids[first + 1]
    distinct, which = np.unique(keys, return_inverse=True)
    pairs = [f"b {words[key // len(words)]} {words[key % len(words)]}" for key in distinct.tolist()]
    ids = np.array([names[pair] for pair in pairs], dtype=np.int32)
    return Ragged(ids[which], offsets)


def _numbering() -> defaultdict[str, int]:
    """A dictionary that numbers its keys in the order in which they are first asked for."""
    return defaultdict(count().__next__)


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + CHUNK] for start in range(0, max(len(texts), 1), CHUNK))


def _ragged(lists: Iterable[list[int]]) -> Ragged:
    rows = list(lists)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return Ragged(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)


def _expand(parts: Ragged, of: Ragged) -> Ragged:
    """Replace every id of `of` by the ids of that row of `parts`."""
    expanded = parts.take(of.ids.astype(np.int64))
    return Ragged(expanded.ids, expanded.offsets[of.offsets])


def _sum_ones(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> sp.csr_array:
    """How often each (row, column) occurs; rows sorted by column."""
    matrix = sp.csr_array(sp.coo_array((np.ones(len(rows), np.float32), (rows, columns)), shape=shape))
    matrix.sum_duplicates()
    return matrix


def _as_ragged(x_NF: sp.csr_array) -> Ragged:
    return Ragged(x_NF.indices.astype(np.int32), x_NF.indptr.astype(np.int64), x_NF.data)
