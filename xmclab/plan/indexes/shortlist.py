"""Exact search that never waits for the device: products of float16 choose a shortlist, scores in float32 decide.

Formula:  h_ij = q'_i·z'_j of vectors rounded to float16;  |q_i·z_j - h_ij| <= e_i
Where:    the shortlist of query i holds the labels with the largest h_ij, h_i is the least of them, and t_i the k-th
          best score in the shortlist. The score of any other label is at most h_i + e_i, so where this is below t_i,
          the k best labels are those of the shortlist. All other queries are named to the caller.
          e_i comes from what rounding took from the vectors (Cauchy-Schwarz), so it holds for vectors of any length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.plan.indexes.order import best

TIMES, MORE, LEAST = 4, 512, 64  # a shortlist has 4 k labels, but at most k + 512, and at least 64
FLOATS_AT_ONCE = 1 << 26  # copied to score shortlists
ALIGNED = 8  # tensor cores want widths that are multiples of this
SUM_ERROR = 2.0**-22  # per term of an inner product: of sums in float32, truncated ones included, and of both scores


@dataclass(frozen=True)
class Found:
    """Results of some queries, and whether they are certain."""

    ids_QK: Tensor
    scores_QK: Tensor
    sure_Q: Tensor


@dataclass(frozen=True)
class Part:
    """Some columns of the label vectors, scaled, and what rounding does to them."""

    columns: slice
    longest: Tensor  # largest norm of a label
    lost: Tensor  # largest norm of what rounding takes from a label


class Shortlist:
    """Label vectors to search; `width` columns of a query and a label are compared on their own, and all together.

    Args:
        widths: of runs of columns, whose results are found one by one, and those of all columns last.
        label_block: labels compared at once.
    """

    def __init__(self, z_LD: Tensor, widths: Sequence[int], label_block: int) -> None:
        self._z_LD, self._label_block = z_LD, label_block
        self._scale = _scale(torch.stack([z_PD.abs().amax() for z_PD in z_LD.split(label_block)]).amax())
        self._parts = [self._part(slice(*ends)) for ends in pairwise(accumulate(widths, initial=0))]

    def search(self, q_QD: Tensor, k: int) -> list[Found]:
        """The k best labels (fewer if there are fewer) of each part, and of all columns if there are several parts."""
        scale_Q1 = _scale(q_QD.abs().amax(dim=1, keepdim=True))
        scaled_QD = q_QD * scale_Q1
        halves = [_half(scaled_QD[:, part.columns]) for part in self._parts]
        errors = [self._error(scaled_QD[:, part.columns], part) for part in self._parts]
        columns = [part.columns for part in self._parts]
        if len(columns) > 1:
            columns.append(slice(None))
            errors.append(torch.stack(errors).sum(dim=0))
        size = min(max(min(TIMES * k, k + MORE), LEAST), len(self._z_LD))
        listed = self._listed(halves, len(columns), size)
        found = []
        for of, error_Q, (ids_QM, least_Q) in zip(columns, errors, listed, strict=True):
            ids_QK, scores_QK = best(ids_QM, _scores(q_QD[:, of], self._z_LD[:, of], ids_QM), k)
            last_Q = scores_QK[:, -1]
            others_Q = least_Q + error_Q if size < len(self._z_LD) else torch.full_like(last_Q, -torch.inf)
            sure_Q = (others_Q < last_Q * scale_Q1[:, 0] * self._scale) & last_Q.isfinite()
            found.append(Found(ids_QK, scores_QK, sure_Q))
        return found

    def _part(self, columns: slice) -> Part:
        norms = [self._norms(z_PD[:, columns] * self._scale) for z_PD in self._z_LD.split(self._label_block)]
        longest, lost = (torch.stack(most).amax() for most in zip(*norms, strict=True))
        return Part(columns, longest, lost)

    @staticmethod
    def _norms(scaled_PD: Tensor) -> tuple[Tensor, Tensor]:
        return torch.linalg.vector_norm(scaled_PD, dim=1).amax(), _lost(scaled_PD).amax()

    def _error(self, scaled_QD: Tensor, part: Part) -> Tensor:
        """e_Q, the most by which a float16 product of this part differs from its score, or two scores in float32 do."""
        lost_Q, norm_Q = _lost(scaled_QD), torch.linalg.vector_norm(scaled_QD, dim=1)
        rounding_Q = lost_Q * (part.longest + part.lost) + norm_Q * part.lost
        error_Q: Tensor = 1.001 * rounding_Q + SUM_ERROR * (scaled_QD.shape[1] + 2) * norm_Q * part.longest
        return error_Q

    def _listed(self, halves: list[Tensor], lists: int, size: int) -> list[tuple[Tensor, Tensor]]:
        """(ids_QM, least_Q) of each shortlist."""
        running: list[tuple[Tensor, Tensor] | None] = [None] * lists
        for start in range(0, len(self._z_LD), self._label_block):
            z_PD = self._z_LD[start : start + self._label_block] * self._scale
            for each, s_QP in enumerate(_products(halves, [_half(z_PD[:, part.columns]) for part in self._parts])):
                running[each] = _merged(running[each], s_QP, start, size)
                del s_QP  # before the next block
        return [(ids_QM, scores_QM.amin(dim=1)) for ids_QM, scores_QM in filter(None, running)]


def _scale(most: Tensor) -> Tensor:
    """The power of two that brings the largest number to between 0.5 and 1."""
    return torch.ldexp(torch.ones_like(most), -torch.frexp(most).exponent)


def _half(x_BD: Tensor) -> Tensor:
    """In float16, padded with zeros to an aligned width."""
    return F.pad(x_BD.half(), (0, -x_BD.shape[1] % ALIGNED))


def _lost(x_BD: Tensor) -> Tensor:
    """[B] the norm of what rounding to float16 takes from each row."""
    lost_B: Tensor = torch.linalg.vector_norm(x_BD - x_BD.half(), dim=1)
    return lost_B


def _products(q_parts: list[Tensor], z_parts: list[Tensor]) -> Iterator[Tensor]:
    """The scores of each part, and their sum if there are several."""
    total_QP: Tensor | None = None
    for q_QD, z_PD in zip(q_parts, z_parts, strict=True):
        s_QP = _product(q_QD, z_PD)
        yield s_QP
        total_QP = s_QP if total_QP is None else total_QP.add_(s_QP)
    if len(q_parts) > 1 and total_QP is not None:
        yield total_QP


def _product(q_QD: Tensor, z_PD: Tensor) -> Tensor:
    """q z^T of float16 in float32."""
    if q_QD.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(q_QD, z_PD.T, out_dtype=torch.float32)
    return q_QD.float() @ z_PD.float().T


def _merged(before: tuple[Tensor, Tensor] | None, s_QP: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """(ids_QM, scores_QM) of the best so far, in any order."""
    scores_QM, ids_QM = s_QP.topk(min(size, s_QP.shape[1]), dim=1, sorted=False)
    ids_QM = ids_QM + start
    if before is None:
        return ids_QM, scores_QM
    ids_QM, scores_QM = torch.cat([before[0], ids_QM], dim=1), torch.cat([before[1], scores_QM], dim=1)
    scores_QM, place_QM = scores_QM.topk(min(size, scores_QM.shape[1]), dim=1, sorted=False)
    return ids_QM.gather(1, place_QM), scores_QM


def _scores(q_QD: Tensor, z_LD: Tensor, ids_QM: Tensor) -> Tensor:
    """s_QM in float32; equal vectors have equal scores, as each is summed in the same way."""
    width = q_QD.shape[1]
    s_QM = q_QD.new_empty(ids_QM.shape)
    rows = max(FLOATS_AT_ONCE // max(ids_QM.shape[1] * width, 1), 1)
    for start in range(0, len(q_QD), rows):
        block = slice(start, start + rows)
        z_BMD = z_LD.index_select(0, ids_QM[block].flatten()).view(-1, ids_QM.shape[1], width)
        s_QM[block] = z_BMD.mul_(q_QD[block, None]).sum(dim=2)
    return s_QM
