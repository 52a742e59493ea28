"""Rank labels for queries with a trained model, by each of its searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmclab.api import Index, Ragged, Ranking
from xmclab.evaluation.metrics import drop_filtered
from xmclab.keys import Keys
from xmclab.model.model import Model, Vectors

COMBINED = "de+clf"


def searches(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vectors of each search: every head, and both side by side (whose inner product is the sum of the cosines)."""
    single = dict(vectors)
    if len(single) < 2:
        return single
    names = COMBINED.split("+")
    if isinstance(vectors, Vectors) and list(vectors) == names:
        return {**single, COMBINED: vectors.together}
    return {**single, COMBINED: torch.cat([vectors[name] for name in names], dim=1)}


def look_up(index: Index, q_ND: Tensor, filter_NL: sp.csr_array, k: int) -> Ranking:
    """The k best labels of every query that are not filtered for it."""
    widest = int(np.diff(filter_NL.indptr).max(initial=0))
    ids_NK, scores_NK = index.search(q_ND, min(k + widest, filter_NL.shape[1]))
    return drop_filtered(Ranking(ids_NK.cpu().numpy(), scores_NK.cpu().numpy()), filter_NL, k)


def recall_rng() -> np.random.Generator:
    """Draws the queries on which an index measures its recall: the same ones in every evaluation."""
    return Keys(0).rng("recall")


def rank_all(
    model: Model,
    make_index: Callable[[], Index],
    query_tokens: Ragged,
    label_tokens: Ragged,
    filter_NL: sp.csr_array,
    k: int,
    chunk: int,
) -> dict[str, Ranking]:
    """Rankings by every search of the model: `de`, `clf` and `de+clf`, as far as it has those heads."""
    queries = searches(model.query_vectors(query_tokens, chunk))
    labels = searches(model.label_vectors(label_tokens, chunk))
    rankings = {}
    for name in queries:
        index = make_index()
        index.build(labels[name])
        index.tune(queries[name], recall_rng())
        rankings[name] = look_up(index, queries[name], filter_NL, k)
    return rankings
