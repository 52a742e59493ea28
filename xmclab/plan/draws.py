"""Uniform draws, for all queries of a batch at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE = 256  # numbers of a row; Floyd's algorithm is faster up to about this many


def distinct(sizes_Q: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[Q, n] different numbers per row, a uniform subset of range(size); all of them and -1 where the size is below n.

    Floyd's algorithm on all rows at once: a number is drawn from range(j + 1), or replaced by j if drawn before. Its
    time is quadratic in n, so many numbers are drawn row by row.
    """
    longer_Q = sizes_Q > n
    drawn_Qn = np.where(np.arange(n) < sizes_Q[:, None], np.arange(n), -1)
    if n > AT_ONCE:
        for row in np.flatnonzero(longer_Q):
            drawn_Qn[row] = rng.choice(sizes_Q[row], n, replace=False, shuffle=False)
        return drawn_Qn
    uniform_Rn = rng.random((np.count_nonzero(longer_Q), n))
    floyd_Rn = np.empty(uniform_Rn.shape, dtype=np.int64)
    for step in range(n):
        last_R = sizes_Q[longer_Q] - n + step
        draw_R = (uniform_Rn[:, step] * (last_R + 1)).astype(np.int64)
        taken_R = (floyd_Rn[:, :step] == draw_R[:, None]).any(axis=1)
        floyd_Rn[:, step] = np.where(taken_R, last_R, draw_R)
    drawn_Qn[longer_Q] = floyd_Rn
    return drawn_Qn


def repeated(sizes_Q: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[Q, n] numbers per row, each uniform in range(size) and independent of the others; -1 where the size is 0."""
    drawn_Qn = (rng.random((len(sizes_Q), n)) * sizes_Q[:, None]).astype(np.int64)
    return np.where(sizes_Q[:, None] > 0, drawn_Qn, -1)
