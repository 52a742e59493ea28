"""One class that ranks labels for texts, whether the model comes from a run folder or from an export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Index, Ranking
from xmclab.data.sparse import no_pairs
from xmclab.errors import ConfigError, PluginError, Problem, did_you_mean
from xmclab.evaluation.search import COMBINED, look_up, recall_rng, searches
from xmclab.host.config import Config
from xmclab.host.options import make_part
from xmclab.model.model import Model
from xmclab.plan.indexes.checks import refuse_non_finite
from xmclab.plan.indexes.exact import Exact
from xmclab.runs.store import Labels

NEAREST = 10  # trained labels that stand in for a label without a classifier
CHUNKS_OF_A_BLOCK = 4  # texts of similar length are encoded together, so a block is several chunks


class Predictor:
    """A trained model with its labels. Its `searches` are `de`, `clf` and `de+clf`, as far as it has these heads.

    Args:
        label_vectors: z_LD of a head as searched; called at most once for a head.
        stored_index: the prebuilt index of a search, None where there is none.
        chosen: which index the run chose for a search, as `Index.report` says it.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        labels: Labels,
        label_vectors: Callable[[str], Tensor],
        stored_index: Callable[[str], Index | None] = lambda search: None,
        chosen: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.config, self.model = config, model
        self.searches: tuple[str, ...] = model.head_names
        if len(self.searches) > 1:
            self.searches += (COMBINED,)
        self.labels = labels
        self.trained_labels = len(labels)  # the first ones; later ones were added
        self._label_vectors, self._stored_index, self._chosen = label_vectors, stored_index, chosen or {}
        self._vectors: dict[str, Tensor] = {}
        self._indexes: dict[str, Index] = {}
        self.without_word = 0  # texts ranked so far without a word of the vocabulary
        self._added_AD: Tensor | None = None  # vectors of the added labels in the dual encoder's space

    def pick_search(self, name: str | None) -> str:
        """The search of this name, the last one by default."""
        if name is None:
            return self.searches[-1]
        if name not in self.searches:
            raise ConfigError(
                Problem(f"--head {name}", "the model has no such search", did_you_mean(name, self.searches))
            )
        return name

    @property
    def reads_label_texts(self) -> bool:
        """Whether the model can rank labels that it was not trained with."""
        return "de" in self.model.head_names and self.model.head("de").labels_from == "text"

    @property
    def reads_content(self) -> bool:
        """Whether the model was trained on titles together with contents."""
        reader = self.config.parts["reader"]
        return reader is not None and reader.options.get("text") == "title+content"

    def for_labels(self, labels: Labels) -> Predictor:
        """The same model over other labels: with the dual encoder alone, which reads their texts."""
        tokens = self.model.encoder.tokenise(labels.texts)
        other = Predictor(
            self.config, self.model, labels, lambda head: self.model.label_vectors(tokens, self._chunk, [head])[head]
        )
        other.searches = ("de",)
        return other

    # Labels

    def vectors(self, head: str) -> Tensor:
        """z_LD of a head, of the labels that it was trained with."""
        if head not in self._vectors:
            self._vectors[head] = self._label_vectors(head)
        return self._vectors[head]

    def index(self, search: str, q_ND: Tensor | None = None) -> Index:
        """The index over the labels that the model was trained with; the first queries may adapt it."""
        if search not in self._indexes:
            index = self._stored_index(search)
            if index is None:
                _, index = self.new_index(search)
                index.build(self.search_vectors(search))
                if q_ND is not None:
                    index.tune(q_ND, recall_rng())
            self._indexes[search] = index
        return self._indexes[search]

    def new_index(self, search: str) -> tuple[str, Index]:
        """The name and the index, not yet built, that the run chose for a search; otherwise that of the config."""
        with contextlib.suppress(PluginError):  # faiss may not be installed here
            if chosen := self._chosen.get(search):
                cls = self.config.registry.get("index", chosen["name"])
                return chosen["name"], make_part(cls, chosen["options"], f"index of {search}")
        return self.config.choice("index") or "", self.config.make("index")

    def search_vectors(self, search: str) -> Tensor:
        """z_LD of a search."""
        return searches({head: self.vectors(head) for head in search.split("+")})[search]

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
        added_AD = self.model.label_vectors(tokens, self._chunk, ["de"])["de"]
        refuse_non_finite(added_AD, "label", len(self.labels))
        self._added_AD = added_AD if self._added_AD is None else torch.cat([self._added_AD, added_AD])
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
        heads = [head for head in self.model.head_names if any(head in name.split("+") for name in names)]
        tokens = self.model.encoder.tokenise(texts)
        self.without_word += int(np.count_nonzero(np.diff(tokens.offsets) == 0))
        vectors = searches(self.model.query_vectors(tokens, self._chunk, heads))
        if filter_NL is None:
            filter_NL = no_pairs(len(texts), self.trained_labels)
        rankings = {}
        for name in names:
            refuse_non_finite(vectors[name], "query", first)
            rankings[name] = self._look_up(name, vectors, filter_NL, k)
        return rankings

    def _look_up(self, search: str, vectors: Mapping[str, Tensor], filter_NL: sp.csr_array, k: int) -> Ranking:
        ranking = look_up(self.index(search, vectors[search]), vectors[search], filter_NL, k)
        if self._added_AD is None:
            return ranking
        if search == "clf":
            raise ConfigError(Problem("--add-labels", "the classifier head has no rows for them", "use --head de"))
        index = Exact()
        index.build(self._added_AD)
        added = look_up(index, vectors["de"], no_pairs(len(vectors["de"]), len(self._added_AD)), k)
        ids_NK = np.where(added.ids_NK < 0, -1, added.ids_NK + self.trained_labels)
        scores_NK = added.scores_NK + (self._classifier_guess(vectors) if search == COMBINED else 0)
        return merged(ranking, Ranking(ids_NK, scores_NK))

    def _classifier_guess(self, vectors: Mapping[str, Tensor]) -> NDArray[np.float32]:
        """[N, 1] the stand-in for the classifier's cosine of an added label: the mean over the nearest others."""
        nearest_NK, _ = self.index("de", vectors["de"]).search(vectors["de"], min(NEAREST, self.trained_labels))
        z_NKD = self.vectors("clf")[nearest_NK.clamp(min=0)]
        cosines_NK = torch.einsum("nd,nkd->nk", vectors["clf"], z_NKD)
        found_NK = nearest_NK >= 0
        mean_N = (cosines_NK * found_NK).sum(dim=1) / found_NK.sum(dim=1).clamp(min=1)
        return mean_N[:, None].cpu().numpy()

    def answer(self, texts: Iterable[str], k: int, search: str) -> Iterator[tuple[list[str], Ranking]]:
        """(texts, their ranking) block by block: neither all texts nor all rankings are held in memory."""
        stream, first = iter(texts), 0
        while block := list(islice(stream, CHUNKS_OF_A_BLOCK * self._chunk)):
            yield block, self.rank(block, k, search, first=first)
            first += len(block)

    @property
    def _chunk(self) -> int:
        return self.config.settings.encode.search_chunk


def merged(first: Ranking, second: Ranking) -> Ranking:
    """The best of two rankings of the same depth; the first one's labels lead among equals."""
    ids_NK = np.concatenate([first.ids_NK, second.ids_NK], axis=1)
    scores_NK = np.concatenate([first.scores_NK, second.scores_NK], axis=1)
    order = np.argsort(-scores_NK, axis=1, kind="stable")[:, : first.ids_NK.shape[1]]
    return Ranking(np.take_along_axis(ids_NK, order, axis=1), np.take_along_axis(scores_NK, order, axis=1))
