"""Balanced k-means on the unit sphere: clusters of equal size, fitted on a sample.

Formula:  maximise sum_i x_i·c_(i) where every cluster has its share of the vectors; c_j = normalised sum of cluster j
Where:    the c_j start from the leaves of balanced 2-means of the sample; in each assignment a vector asks its nearest
          centroids in turn, and a cluster asked by too many keeps those that would lose most by moving on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xmclab.plan.indexes.exact import Exact
from xmclab.plan.samplers.two_means import as_tensor, balanced_clusters, unit_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITERATIONS = 1  # on the sample; the starting tree is already good
SAMPLE = 64  # vectors per cluster that centroids are fitted on
CLUSTERS = 2048  # most clusters: further leaves are split from these by 2-means
CHOICES = 8  # clusters that a vector asks before it looks again at those with room left
TURNS = 8  # rounds of asking; later ones would move few vectors
ROWS_AT_ONCE = 65536  # bounds the copies


def balanced_k_means(
    x_ND: NDArray[np.float32] | Tensor, rows_M: NDArray[np.int64], leaves: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Cut rows into clusters of similar vectors whose sizes differ by at most one.

    Arguments and result are those of `two_means.balanced_clusters`.
    """
    x = as_tensor(x_ND)
    clusters = min(leaves, CLUSTERS)
    firsts = np.arange(clusters + 1) * leaves // clusters  # cluster j becomes the leaves firsts[j]:firsts[j + 1]
    room_C = np.diff(firsts * len(rows_M) // leaves)
    centroids_CD = _fit(x, rng.permutation(rows_M)[: SAMPLE * clusters], clusters, rng)
    parts = _split(rows_M, _assign(x, rows_M, centroids_CD, room_C), room_C)
    if clusters == leaves:
        return parts
    grown = zip(parts, np.diff(firsts).tolist(), strict=True)
    return [leaf for part, count in grown for leaf in balanced_clusters(x, part, count, rng)]


def _fit(x: Tensor, rows_S: NDArray[np.int64], clusters: int, rng: np.random.Generator) -> Tensor:
    """centroids_CD of even clusters of the sampled rows."""
    room_C = np.diff(np.arange(clusters + 1) * len(rows_S) // clusters)
    parts = balanced_clusters(x, rows_S, clusters, rng)
    for _ in range(ITERATIONS):
        parts = _split(rows_S, _assign(x, rows_S, _centroids(x, parts), room_C), room_C)
    return _centroids(x, parts)


def _centroids(x: Tensor, parts: list[NDArray[np.int64]]) -> Tensor:
    """The mean directions of clusters."""
    return F.normalize(torch.stack([_unit(x, part).sum(dim=0) for part in parts]), dim=1)


def _split(
    rows_M: NDArray[np.int64], cluster_M: NDArray[np.int64], room_C: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The rows of each cluster."""
    return np.split(rows_M[np.argsort(cluster_M, kind="stable")], np.cumsum(room_C)[:-1])


def _assign(x: Tensor, rows_M: NDArray[np.int64], centroids_CD: Tensor, room_C: NDArray[np.int64]) -> NDArray[np.int64]:
    """The cluster of each row: cluster c gets `room_C[c]` rows."""
    cluster_M = np.full(len(rows_M), -1)
    room_C = room_C.copy()
    while len(left := np.flatnonzero(cluster_M < 0)):
        open_C = np.flatnonzero(room_C)
        chosen = _accept(*_choices(x, rows_M[left], centroids_CD[open_C]), room_C[open_C])
        given = chosen >= 0
        cluster_M[left[given]] = open_C[chosen[given]]
        room_C -= np.bincount(cluster_M[left[given]], minlength=len(room_C))
    return cluster_M


def _choices(
    x: Tensor, rows_M: NDArray[np.int64], centroids_CD: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest centroids of each row and their cosines, best first."""
    index = Exact()
    index.build(centroids_CD)
    chunks = (rows_M[start : start + ROWS_AT_ONCE] for start in range(0, len(rows_M), ROWS_AT_ONCE))
    found = [index.search(_unit(x, chunk), min(CHOICES, len(centroids_CD))) for chunk in chunks]
    ids, scores = zip(*found, strict=True)
    return torch.cat(ids).cpu().numpy(), torch.cat(scores).cpu().numpy()


def _unit(x: Tensor, rows: NDArray[np.int64]) -> Tensor:
    return unit_rows(x, torch.from_numpy(rows).to(x.device))


def _accept(
    choices_MK: NDArray[np.int64], cosines_MK: NDArray[np.float32], room_C: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The cluster that keeps each row, -1 for rows that all of their choices refuse; never more than its room."""
    last = choices_MK.shape[1] - 1
    loss_MK = np.full_like(cosines_MK, np.inf)  # of moving on
    loss_MK[:, :last] = cosines_MK[:, :last] - cosines_MK[:, 1:]
    asked_M = np.zeros(len(choices_MK), dtype=np.int64)
    cluster_M = choices_MK[:, 0].copy()
    for turn in range(TURNS):
        asking = np.flatnonzero(cluster_M >= 0)
        crowded_C = np.bincount(cluster_M[asking], minlength=len(room_C)) > room_C
        asking = asking[crowded_C[cluster_M[asking]]]
        if not len(asking):
            break
        asking = asking[np.lexsort((-loss_MK[asking, asked_M[asking]], cluster_M[asking]))]
        cluster = cluster_M[asking]
        rank = np.arange(len(cluster)) - np.searchsorted(cluster, cluster)
        refused = asking[rank >= room_C[cluster]]
        asked_M[refused] = last + 1 if turn == TURNS - 1 else asked_M[refused] + 1
        next_choice = choices_MK[refused, np.minimum(asked_M[refused], last)]
        cluster_M[refused] = np.where(asked_M[refused] > last, -1, next_choice)
    return cluster_M
