"""The selection of the best scores, compiled; `best.keep` defines what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xmclab.kernels.dispatch import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Scores = NDArray[np.float32]

RUN = 64  # neighbouring scores compared with the worst kept one in a first quick pass


@jit
def keep(ids_NK: Ids, scores_NK: Scores, rows_Q: Ids, s_QP: Scores, labels_P: Ids) -> None:
    """Each row of `ids_NK` and `scores_NK` is a heap with its worst entry, of equal ones the largest id, in front."""
    for query in range(len(rows_Q)):
        ids, scores, row = ids_NK[rows_Q[query]], scores_NK[rows_Q[query]], s_QP[query]
        for start in range(0, len(labels_P), RUN):
            end = min(start + RUN, len(labels_P))
            worst, candidates = scores[0], 0
            for place in range(start, end):
                candidates += row[place] >= worst
            if candidates:
                for place in range(start, end):
                    if _behind(scores[0], ids[0], row[place], labels_P[place]):
                        _replace_worst(ids, scores, labels_P[place], row[place])


@jit
def _behind(score: float, label: int, other_score: float, other_label: int) -> bool:
    """Whether an entry ranks behind another."""
    return score < other_score or (score == other_score and label > other_label)


@jit
def _replace_worst(ids_K: Ids, scores_K: Scores, label: int, score: float) -> None:
    """Replace the front entry of a heap."""
    place, child = 0, 1
    while child < len(ids_K):
        if child + 1 < len(ids_K) and _behind(scores_K[child + 1], ids_K[child + 1], scores_K[child], ids_K[child]):
            child += 1
        if not _behind(scores_K[child], ids_K[child], score, label):
            break
        ids_K[place], scores_K[place] = ids_K[child], scores_K[child]
        place, child = child, 2 * child + 1
    ids_K[place], scores_K[place] = label, score
