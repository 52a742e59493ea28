"""Balanced recursive 2-means on the unit sphere: clusters of equal size.

Formula:  w = c1/|c1| - c2/|c2|; the half of a node with the largest x·w is its first child; repeat
Where:    c1, c2 sums of the unit vectors x of either child; at first, two vectors of the node
Paper:    Prabhu et al., Parabel (WWW 2018), whose label trees are grown this way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from numpy.typing import NDArray

ITERATIONS = 10  # most per split; few splits still change after that
SAMPLE = 4096  # most rows that the direction of a node is found on
FLOATS_AT_ONCE = 1 << 21  # nodes are split together while their vectors fit the cache of a CPU
ELSEWHERE = 1 << 26  # the same for other devices


def balanced_clusters(
    x_ND: NDArray[np.float32] | Tensor, rows_M: NDArray[np.int64], leaves: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Cut rows into clusters of similar vectors whose sizes differ by at most one.

    The tree is grown level by level: all nodes of a level are split at once, each in proportion to the leaves that
    its children will have, so that every leaf ends with its share whether or not `leaves` is a power of two.
    The direction w of a large node is found on a sample of its rows; all of them are then ordered along it.

    Args:
        x_ND: vectors of all rows; only their direction counts. Tensors are clustered on their device.
        rows_M: the rows to cluster.
        leaves: number of clusters, at most M.
        rng: draws the two vectors that each split starts from.

    Returns:
        `leaves` arrays that partition `rows_M`.
    """
    x = as_tensor(x_ND)
    rows = F.pad(torch.from_numpy(rows_M).to(x.device), (0, 1))  # the last place takes what is written as padding
    bounds = np.arange(leaves + 1) * len(rows_M) // leaves  # leaf j will hold rows[bounds[j]:bounds[j + 1]]
    firsts, lasts = np.array([0]), np.array([leaves])  # each node is a range of leaves
    while (growing := lasts - firsts > 1).any():
        middles = (firsts + lasts + 1) // 2
        starts, cuts, ends = bounds[firsts[growing]], bounds[middles[growing]], bounds[lasts[growing]]
        if (ends - starts).max() > SAMPLE:
            for start, cut, end in zip(starts.tolist(), cuts.tolist(), ends.tolist(), strict=True):
                _split_large(x, rows[start:end], cut - start, rng)
        else:
            for chunk in _chunks(ends - starts, _floats_at_once(x) // x.shape[1]):
                _split(x, rows, starts[chunk], cuts[chunk], ends[chunk], rng)
        done = firsts[~growing], lasts[~growing]
        firsts, lasts = (
            np.concatenate([firsts[growing], middles[growing], done[0]]),
            np.concatenate([middles[growing], lasts[growing], done[1]]),
        )
    ordered = rows.cpu().numpy()
    return [ordered[start:end] for start, end in pairwise(bounds)]


def as_tensor(x_ND: NDArray[np.float32] | Tensor) -> Tensor:
    """The vectors in float32, where they are."""
    if isinstance(x_ND, Tensor):
        return x_ND.float().contiguous()
    return torch.from_numpy(np.ascontiguousarray(x_ND, dtype=np.float32))


def _floats_at_once(x: Tensor) -> int:
    return FLOATS_AT_ONCE if x.device.type == "cpu" else ELSEWHERE


def _chunks(sizes: NDArray[np.int64], rows_at_once: int) -> list[slice]:
    """Runs of consecutive nodes with at most this many rows together, or a single node."""
    nodes = max(1, rows_at_once // int(sizes.max()))
    return [slice(start, start + nodes) for start in range(0, len(sizes), nodes)]


def _split(
    x: Tensor,
    rows: Tensor,
    starts: NDArray[np.int64],
    cuts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    """Reorder, in place, each range `rows[start:end]` so that its first child comes first, up to `cut`.

    Suffixes here: G nodes, M rows of the largest node (shorter ones are padded).
    """
    sizes = ends - starts
    start_G1, size_G1 = (torch.from_numpy(numbers)[:, None].to(x.device) for numbers in (starts, sizes))
    place_M = torch.arange(int(sizes.max()), device=x.device)
    absent_GM = place_M >= size_G1
    members_GM = rows[start_G1 + place_M.where(~absent_GM, 0)]
    x_GMD = unit_rows(x, members_GM).masked_fill_(absent_GM[:, :, None], 0)
    order_GM, _ = _fit(x_GMD, absent_GM, sizes, cuts - starts, rng)
    rows[(start_G1 + place_M).masked_fill_(absent_GM, len(rows) - 1)] = members_GM.gather(1, order_GM)


def _split_large(x: Tensor, rows_M: Tensor, left: int, rng: np.random.Generator) -> None:
    """Reorder, in place, the rows of one node so that its first child, `left` rows, comes first."""
    size = min(SAMPLE, len(rows_M))
    drawn = torch.from_numpy(rng.choice(len(rows_M), (1, size), replace=False))
    x_GMD = unit_rows(x, rows_M[drawn.to(x.device)])
    absent_GM = torch.zeros(1, size, dtype=torch.bool, device=x.device)
    _, w_GD = _fit(x_GMD, absent_GM, np.array([size]), np.array([size * left // len(rows_M)]), rng)
    blocks = rows_M.tensor_split(1 + len(rows_M) * x.shape[1] // _floats_at_once(x))
    towards_M = torch.cat([unit_rows(x, block) @ w_GD[0] for block in blocks])
    rows_M.copy_(rows_M[towards_M.argsort(descending=True, stable=True)])


def unit_rows(x: Tensor, rows: Tensor) -> Tensor:
    """A copy of the vectors of these rows, at unit length."""
    unit = x.index_select(0, rows.reshape(-1))
    unit /= unit.norm(dim=1, keepdim=True).clamp_(min=1e-12)
    return unit.view(*rows.shape, x.shape[1])


def _fit(
    x_GMD: Tensor, absent_GM: Tensor, sizes: NDArray[np.int64], lefts: NDArray[np.int64], rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """(positions of each node in their order along w, w_GD); the first `lefts` positions are the first child."""
    left_G1 = torch.from_numpy(lefts)[:, None].to(x_GMD.device)
    place_M = torch.arange(x_GMD.shape[1], device=x_GMD.device)
    w_GD = _first_directions(x_GMD, sizes, rng)
    order_GM = _order(x_GMD, w_GD, absent_GM)
    for _ in range(ITERATIONS):
        first_GM = torch.zeros_like(absent_GM).scatter_(1, order_GM, place_M < left_G1)
        sides_G2M = torch.stack([first_GM, ~first_GM], dim=1).to(x_GMD.dtype)
        centroids_G2D = F.normalize(sides_G2M @ x_GMD, dim=2)
        w_GD = centroids_G2D[:, 0] - centroids_G2D[:, 1]
        previous_GM, order_GM = order_GM, _order(x_GMD, w_GD, absent_GM)
        if x_GMD.device.type == "cpu" and torch.equal(previous_GM, order_GM):
            break  # more would change nothing; a GPU would have to be waited for to know
    return order_GM, w_GD


def _first_directions(x_GMD: Tensor, sizes: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
    """w_GD between two different, randomly drawn rows of each node."""
    one_G = rng.integers(sizes)
    other_G = (one_G + 1 + rng.integers(sizes - 1)) % sizes
    one_GD, other_GD = (_drawn(x_GMD, torch.from_numpy(place_G)) for place_G in (one_G, other_G))
    return one_GD - other_GD


def _drawn(x_GMD: Tensor, place_G: Tensor) -> Tensor:
    """x_GD, a row of each node."""
    return x_GMD[torch.arange(len(place_G), device=x_GMD.device), place_G.to(x_GMD.device)]


def _order(x_GMD: Tensor, w_GD: Tensor, absent_GM: Tensor) -> Tensor:
    """Positions within each node by descending x·w, padding last."""
    towards_GM = torch.bmm(x_GMD, w_GD[:, :, None])[:, :, 0].masked_fill_(absent_GM, -torch.inf)
    return towards_GM.argsort(dim=1, descending=True, stable=True)
