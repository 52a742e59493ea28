"""BM25 negatives: labels whose texts share words with the query, and are not among its positives.

Formula:  s(q, l) = Σ_{t∈q} log(1 + (L - n_t + ½) / (n_t + ½)) · f_tl / (f_tl + k₁ (1 - b + b |l| / mean |l|))
Where:    t each word of the query as often as it stands there, n_t labels that have it, f_tl how often label l has
          it, |l| words of label l, k₁ = 1.5, b = 0.75; weights by the package bm25s (variant lucene)
Paper:    Robertson et al., Okapi at TREC-3 (1994); one such negative per query: Karpukhin et al., Dense Passage
          Retrieval for Open-Domain Question Answering (EMNLP 2020).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Dataset, Keys, option
from xmclab.errors import ConfigError, Problem
from xmclab.plan.miners.lists import ListMiner

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD = re.compile(r"\w+")
QUERIES_AT_ONCE = 1024


def load_bm25s() -> Any:
    """The bm25s module, or an error with the command that installs it."""
    try:
        import bm25s
    except ImportError as error:
        hint = 'pip install "xmclab[bm25]"'
        raise ConfigError(Problem("miner=bm25", f"bm25s cannot be imported: {error}", hint)) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


@dataclass
class Bm25Miner(ListMiner):
    """Labels drawn from those that BM25 ranks highest for the query, by the words of their texts."""

    depth: int = option(100, "labels retrieved per query, besides its positives", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._bm25s = load_bm25s()

    def prepare(self, data: Dataset, exclude_NL: sp.csr_array, keys: Keys) -> None:
        """Rank the labels for every training query."""
        self.keep(self.retrieved(data.train.texts, data.label_texts, exclude_NL), exclude_NL)

    def retrieved(self, queries: Sequence[str], labels: Sequence[str], exclude_NL: sp.csr_array) -> sp.csr_array:
        """[N, L] the best `depth` labels of each query that share a word with it and are not excluded, with scores.

        Of labels with equal scores, those with smaller ids come first.
        """
        vocabulary: dict[str, int] = {}
        words = [[vocabulary.setdefault(word, len(vocabulary)) for word in words_of(text)] for text in labels]
        weights_VL = self._weights(words, vocabulary)
        found = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = np.arange(start, min(start + QUERIES_AT_ONCE, len(queries)))
            scores_QL = _counts([queries[row] for row in rows.tolist()], vocabulary) @ weights_VL
            found.append(_best(scores_QL, rows, exclude_NL, self.depth))
        columns, values, lengths = (np.concatenate(parts) for parts in zip(*found, strict=True))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return sp.csr_array((values, columns, offsets), shape=exclude_NL.shape)

    def _weights(self, words: list[list[int]], vocabulary: dict[str, int]) -> sp.csr_array:
        """[V, L] what a word of a query adds to the score of a label."""
        if not vocabulary:
            return sp.csr_array(np.zeros((0, len(words)), np.float32))
        engine = self._bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        engine.index((words, vocabulary), create_empty_token=False, show_progress=False)
        found = engine.scores
        return sp.csr_array((found["data"], found["indices"], found["indptr"]), shape=(len(vocabulary), len(words)))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case: letters, digits and underscores in a row."""
    return WORD.findall(text.lower())


def _counts(texts: Sequence[str], vocabulary: dict[str, int]) -> sp.csr_array:
    """[Q, V] how often each known word stands in each text."""
    found = [[vocabulary[word] for word in words_of(text) if word in vocabulary] for text in texts]
    offsets = np.cumsum([0, *map(len, found)])
    words = np.fromiter(chain.from_iterable(found), np.int64, offsets[-1])
    counts_QV = sp.csr_array((np.ones(len(words), np.float32), words, offsets), shape=(len(texts), len(vocabulary)))
    counts_QV.sum_duplicates()
    return counts_QV


def _best(
    scores_QL: sp.csr_array, rows: NDArray[np.int64], exclude_NL: sp.csr_array, depth: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """(labels, scores, how many of each query): the best of each row, without those excluded."""
    labels, values = [], []
    for place, row in enumerate(rows):
        scored = slice(scores_QL.indptr[place], scores_QL.indptr[place + 1])
        label_E, minus_E = scores_QL.indices[scored], -scores_QL.data[scored]
        excluded = exclude_NL.indices[exclude_NL.indptr[row] : exclude_NL.indptr[row + 1]]
        if len(minus_E) > (needed := depth + len(excluded)):
            near_E = minus_E <= np.partition(minus_E, needed - 1)[needed - 1]
            label_E, minus_E = label_E[near_E], minus_E[near_E]
        label_E, minus_E = (x_E[~np.isin(label_E, excluded)] for x_E in (label_E, minus_E))
        order = np.lexsort((label_E, minus_E))[:depth]
        labels.append(label_E[order])
        values.append(-minus_E[order])
    return np.concatenate(labels), np.concatenate(values), np.array(list(map(len, labels)))
