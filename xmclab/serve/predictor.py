"""One class that ranks labels for texts, whether the model comes from a run folder or from an export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmclab.api import Index, Ranking, Search
from xmclab.data.sparse import no_pairs
from xmclab.errors import ConfigError, PluginError, Problem, did_you_mean
from xmclab.evaluation.search import Space, rank_all
from xmclab.host.config import Config
from xmclab.host.options import make_part
from xmclab.model.model import Model
from xmclab.plan.indexes.checks import refuse_non_finite
from xmclab.runs.store import SEARCH_INDEX, Labels

Query = TypeVar("Query")  # a text, or something that has one

CHUNKS_OF_A_BLOCK = 4  # texts of similar length are encoded together, so a block is several chunks
CHARACTERS_OF_A_BLOCK = 1 << 22  # a block of long texts ends here: tokenising takes a hundred bytes for each


class Predictor:
    """A trained model with its labels, and the `searches` that it offers.

    Args:
        label_vectors: z_LD of a head as searched; called at most once for a head.
        stored_index: the prebuilt index of heads that are searched together, None where there is none.
        chosen: which index the run chose for a search, as `Index.report` says it.
        load_search: reads what a search learned from the training queries; None: nothing was saved.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        labels: Labels,
        label_vectors: Callable[[str], Tensor],
        stored_index: Callable[[str], Index | None] = lambda search: None,
        chosen: Mapping[str, Mapping[str, Any]] | None = None,
        load_search: Callable[[Search], None] | None = None,
    ) -> None:
        self.config, self.model, self.labels = config, model, labels
        self.space = Space(model.head_names, len(labels), label_vectors, self._index_of)
        self._stored_index, self._chosen = stored_index, chosen or {}
        self.without_word = 0  # texts ranked so far without a word of the vocabulary
        self.search: Search = config.make("search")
        self._load = load_search if self.search.reads_training_queries else None
        if self.search.reads_training_queries and load_search is None:
            self.search = config.registry.get("search", "heads")()
        self.searches: tuple[str, ...] = self.search.names(model.head_names)

    def pick_search(self, name: str | None) -> str:
        """The search of this name; by default the last one, or the last by heads alone if labels were added.

        Other searches may know added labels less well: no training query votes for them.
        """
        if name is None:
            fair = [each for each in self.searches if set(each.split("+")) <= set(self.model.head_names)]
            return self.searches[-1] if self.space.added_AD is None or not fair else fair[-1]
        if name not in self.searches:
            raise ConfigError(
                Problem(f"--head {name}", "the model has no such search", did_you_mean(name, self.searches))
            )
        return name

    @property
    def reads_label_texts(self) -> bool:
        """Whether the model can rank labels that it was not trained with."""
        return "de" in self.model.head_names and self.model.head("de").labels_from == "text"

    def for_labels(self, labels: Labels) -> Predictor:
        """The same model over other labels: with the dual encoder alone, which reads their texts."""
        tokens = self.model.encoder.tokenise(labels.texts)

        def label_vectors(head: str) -> Tensor:
            return self.model.label_vectors(tokens, self._chunk, [head], new=True)[head]

        other = Predictor(self.config, self.model, labels, label_vectors)
        other.searches = ("de",)
        return other

    # Labels

    def _index_of(self, heads: str) -> tuple[Index, bool]:
        """The index of heads that are searched together, and whether it is built."""
        index = self._stored_index(heads)
        return (self.new_index(heads)[1], False) if index is None else (index, True)

    def new_index(self, search: str) -> tuple[str, Index]:
        """The name and the index, not yet built, that the run chose for a search; otherwise that of the config."""
        with contextlib.suppress(PluginError):  # faiss may not be installed here
            if chosen := self._chosen.get(search):
                cls = self.config.registry.get("index", chosen["name"])
                return chosen["name"], make_part(cls, chosen["options"], f"index of {search}")
        return self.config.choice("index") or "", self.config.make("index")

    def add_labels(self, labels: Labels) -> None:
        """Rank these labels as well, by their texts; their ids follow those of the others.

        They have no classifier. Where both heads are searched, the mean classifier score of the labels that the dual
        encoder finds nearest to the query stands in for it, so that old and new labels compete fairly.
        """
        if not self.reads_label_texts:
            raise ConfigError(
                Problem("--add-labels", "the model has only classifiers, and none for new labels", "train a `de` head")
            )
        tokens = self.model.encoder.tokenise(labels.texts)
        added_AD = self.model.label_vectors(tokens, self._chunk, ["de"], new=True)["de"]
        refuse_non_finite(added_AD, "label", len(self.labels))
        earlier = self.space.added_AD
        self.space.added_AD = added_AD if earlier is None else torch.cat([earlier, added_AD])
        self.labels = Labels([*self.labels.names, *labels.names], [*self.labels.texts, *labels.texts])

    # Queries

    def rank(self, texts: Sequence[str], k: int, search: str, first: int = 0) -> Ranking:
        """The k best labels of each text; the first text is called `first` in errors."""
        return self.rank_all(texts, k, names=(search,), first=first)[search]

    def rank_all(
        self,
        texts: Sequence[str],
        k: int,
        names: Sequence[str] | None = None,
        filter_NL: sp.csr_array | None = None,
        first: int = 0,
    ) -> dict[str, Ranking]:
        """The k best labels of each text that are not filtered for it, by several searches (default: all)."""
        names = names or self.searches
        if "clf" in names and self.space.added_AD is not None:
            raise ConfigError(Problem("--add-labels", "the classifier head has no rows for them", "use --head de"))
        tokens = self.model.encoder.tokenise(texts)
        self.without_word += int(np.count_nonzero(np.diff(tokens.offsets) == 0))
        vectors = self.model.query_vectors(tokens, self._chunk, self._heads(names))
        for q_ND in vectors.values():
            refuse_non_finite(q_ND, "query", first)
        if self._load and any(name not in self.model.head_names for name in names):
            self.search.index = self.new_index(SEARCH_INDEX)[1]
            self._load(self.search)
            self._load = None
        if filter_NL is None:
            filter_NL = no_pairs(len(texts), len(self.labels))
        return rank_all(self.search, names, vectors, self.space, filter_NL, k)

    def _heads(self, names: Sequence[str]) -> list[str]:
        """The heads that these searches need: those in their names, or all."""
        pieces = {piece for name in names for piece in name.split("+")}
        heads = [head for head in self.model.head_names if head in pieces]
        return heads if pieces <= set(self.model.head_names) else list(self.model.head_names)

    def answer(
        self,
        queries: Iterable[Query],
        k: int,
        search: str,
        text_of: Callable[[Query], str] = str,
        threshold: float | None = None,
    ) -> Iterator[tuple[list[Query], Ranking]]:
        """(queries, their ranking) block by block: neither all queries nor all rankings are held in memory.

        Args:
            threshold: lower scores are left out.
        """
        first = 0
        for block in _blocks(queries, CHUNKS_OF_A_BLOCK * self._chunk, text_of):
            ranking = self.rank([text_of(query) for query in block], k, search, first=first)
            yield block, ranking if threshold is None else above(ranking, threshold)
            first += len(block)

    @property
    def _chunk(self) -> int:
        return self.config.settings.encode.search_chunk


def above(ranking: Ranking, threshold: float) -> Ranking:
    """The labels whose score is not below the threshold; the others become padding."""
    low_NK = ranking.scores_NK < threshold
    return Ranking(np.where(low_NK, -1, ranking.ids_NK), np.where(low_NK, np.float32(-np.inf), ranking.scores_NK))


def _blocks(queries: Iterable[Query], size: int, text_of: Callable[[Query], str]) -> Iterator[list[Query]]:
    """Up to `size` queries at a time, fewer if their texts are long."""
    block: list[Query] = []
    held = 0
    for query in queries:
        block.append(query)
        held += len(text_of(query))
        if len(block) >= size or held >= CHARACTERS_OF_A_BLOCK:
            yield block
            block, held = [], 0
    if block:
        yield block
