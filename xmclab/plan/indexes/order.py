"""The order of results: by descending score, ties by ascending id."""

from __future__ import annotations

import torch
from torch import Tensor


def best(ids_NM: Tensor, scores_NM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of these labels: by descending score, ties by ascending id, padded with -1."""
    by_id = ids_NM.argsort(dim=1, stable=True)
    ids_NM, scores_NM = ids_NM.gather(1, by_id), scores_NM.gather(1, by_id)
    scores_NM = scores_NM.masked_fill(ids_NM < 0, -torch.inf)
    order_NK = scores_NM.argsort(dim=1, descending=True, stable=True)[:, :k]
    return ids_NM.gather(1, order_NK), scores_NM.gather(1, order_NK)
