"""The best labels of each query, kept while blocks of scores come in, in any order."""

from __future__ import annotations

import torch
from torch import Tensor

from xmclab.kernels.dispatch import in_threads

WORTH_A_THREAD = 1 << 17  # cells


class Best:
    """The k best labels of each query so far; of equal scores, the smaller id is better.

    Args:
        like: a tensor on the device where the scores will be.
        num: queries.
        k: labels kept of each; -1 and -inf where there are fewer.
        compiled: whether to keep them by the compiled loop, if the scores are on a CPU.
    """

    def __init__(self, like: Tensor, num: int, k: int, compiled: bool) -> None:
        self.ids_NK = like.new_full((num, k), -1, dtype=torch.int64)
        self.scores_NK = like.new_full((num, k), -torch.inf, dtype=torch.float32)
        self.compiled = compiled and like.device.type == "cpu"

    def keep(self, rows_Q: Tensor, s_QP: Tensor, labels_P: Tensor) -> None:
        """Let the scores of some queries (each listed once) and labels compete with those kept."""
        if self.compiled:
            _keep_compiled(self.ids_NK, self.scores_NK, rows_Q, s_QP, labels_P)
            return
        ids = torch.cat([self.ids_NK[rows_Q], labels_P.expand(len(rows_Q), -1)], dim=1)
        ids, scores = ranked(ids, torch.cat([self.scores_NK[rows_Q], s_QP], dim=1))
        k = self.ids_NK.shape[1]
        self.ids_NK[rows_Q], self.scores_NK[rows_Q] = ids[:, :k], scores[:, :k]

    def ranked(self) -> tuple[Tensor, Tensor]:
        """(ids_NK, scores_NK) by descending score, then by ascending id."""
        return ranked(self.ids_NK, self.scores_NK)


def ranked(ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Both by descending score, then by ascending id."""
    ids, by_id = ids.sort(dim=1)
    scores, by_score = scores.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, by_score), scores


def _keep_compiled(ids_NK: Tensor, scores_NK: Tensor, rows_Q: Tensor, s_QP: Tensor, labels_P: Tensor) -> None:
    """Process parts of the queries, in parallel where that is worth it."""
    from xmclab.kernels.search import keep

    parts = max(1, min(torch.get_num_threads(), len(rows_Q) * len(labels_P) // WORTH_A_THREAD))
    pieces = list(zip(rows_Q.tensor_split(parts), s_QP.tensor_split(parts), strict=True))
    kept, labels = (ids_NK.numpy(), scores_NK.numpy()), labels_P.numpy()
    in_threads(keep, [(*kept, rows.numpy(), s.numpy(), labels) for rows, s in pieces])
