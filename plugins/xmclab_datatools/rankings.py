"""Predictions of any program: sparse text, sparse matrices, arrays of the k best or named answers, as rankings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.api import Ranking
from xmclab.cli.common import note
from xmclab.data.sparse import no_pairs, read_matrix, refuse_rows
from xmclab.errors import DataError, Problem
from xmclab.evaluation.metrics import drop_filtered, ranking_from_scores
from xmclab.serve.answers import has_answers
from xmclab.system.limits import BeyondLimit
from xmclab.system.reading import UNREADABLE, load_arrays
from xmclab_datatools.named import Names, read_named

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = tuple[int, int]

ROWS = 1 << 14  # rows of an array checked at once


def read_ranking(
    path: Path,
    shape: Shape,
    k: int,
    filter_NL: sp.csr_array | None = None,
    truth: str = "the truth",
    names: Names | None = None,
) -> Ranking:
    """The first k labels of each row that are not filtered, by descending score.

    Args:
        path: a matrix of scores as for `read_matrix`; or label indices [rows, k], the best first and -1 where there are
            fewer: a `.npy`, or a `.npz` with `indices` and `scores`; or what `xmclab predict` writes.
        names: of queries and labels, for the last of these.
        truth: what has this shape, for errors.
    """
    widest = 0 if filter_NL is None else int(np.diff(filter_NL.indptr).max(initial=0))
    arrays = read_named(path, shape, names, truth) if has_answers(path) else _top_arrays(path)
    if arrays is None:
        scores_NL = read_matrix(path, *shape, truth)
        _refuse_repeated(path, scores_NL)
        deepest = int(np.diff(scores_NL.indptr).max(initial=0))
        ranking = ranking_from_scores(scores_NL, min(deepest, k + widest))
    else:
        ranking = _ranking_of_arrays(path, *arrays, shape, k + widest, truth)
    listed = ranking
    if filter_NL is not None or (ranking.ids_NK < 0).any():
        filter_NL = no_pairs(*shape) if filter_NL is None else filter_NL
        ranking = drop_filtered(ranking, filter_NL, ranking.ids_NK.shape[1])
        _note_places(path, listed, ranking, filter_NL, k)
    return Ranking(ranking.ids_NK[:, :k], ranking.scores_NK[:, :k])


def _note_places(path: Path, listed: Ranking, left: Ranking, filter_NL: sp.csr_array, k: int) -> None:
    """Say that filtered labels took places among the best, where other labels are then missing."""
    listed_N, left_N = ((ranking.ids_NK >= 0).sum(axis=1) for ranking in (listed, left))
    hidden_N = np.diff(filter_NL.indptr)
    k = min(k, listed.ids_NK.shape[1])
    if short := int((left_N < np.minimum(np.minimum(listed_N, k), filter_NL.shape[1] - hidden_N)).sum()):
        note(
            f"{path}: {short} of {len(left_N)} queries list filtered labels, which leaves them fewer than {k}; "
            f"a run ranks {hidden_N.max()} more for them: predict as many more"
        )


def _load(path: Path) -> Any:
    """What numpy stored; nothing is unpickled."""
    try:
        return load_arrays(path)
    except BeyondLimit as error:
        raise DataError(error.at(str(path))) from error
    except UNREADABLE as error:
        raise DataError(Problem(str(path), f"not a numpy file: {error}")) from error
    except OSError as error:
        raise DataError(Problem(str(path), f"cannot be read: {error.strerror or error}")) from error


def _top_arrays(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None] | None:
    """(indices, scores or None) of a file of the k best; None if it is a file of another kind."""
    if path.suffix == ".npy":
        return _load(path), None
    if path.suffix != ".npz":
        return None
    try:
        with _load(path) as arrays:
            if "format" in arrays.files:
                return None
            if "indices" not in arrays.files:
                names = ", ".join(arrays.files) or "nothing"
                hint = "expected `indices` and `scores` [rows, k], or what scipy.sparse.save_npz writes"
                raise DataError(Problem(str(path), f"contains {names}", hint))
            return arrays["indices"], arrays["scores"] if "scores" in arrays.files else None
    except UNREADABLE as error:
        raise DataError(Problem(str(path), f"damaged: {error}")) from error


def _ranking_of_arrays(
    path: Path, indices: NDArray[Any], scores: NDArray[Any] | None, shape: Shape, depth: int, truth: str
) -> Ranking:
    where = str(path)
    if indices.ndim != 2 or not np.issubdtype(indices.dtype, np.integer):
        kind = f"an array {list(indices.shape)} of {indices.dtype}"
        raise DataError(Problem(where, f"{kind}, not label indices [rows, k]"))
    if len(indices) != shape[0]:
        raise DataError(Problem(where, f"has {len(indices):,} rows, but {truth} has {shape[0]:,}"))
    ids_NK = indices.astype(np.int64)
    refuse_rows(path, (ids_NK < -1) | (ids_NK >= shape[1]), f"an index out of range ({shape[1]} labels, from 0)")
    blocks = (indices[start : start + ROWS] for start in range(0, max(len(indices), 1), ROWS))
    refuse_rows(path, np.concatenate([_repeats(block) for block in blocks]), "a label twice")
    if scores is None:
        places_NK = np.broadcast_to(-np.arange(ids_NK.shape[1], dtype=np.float32), ids_NK.shape)
        return Ranking(ids_NK[:, :depth], places_NK[:, :depth])
    if scores.shape != indices.shape or scores.dtype.kind not in "fiu":
        kind = f"{list(scores.shape)} of {scores.dtype}"
        raise DataError(Problem(where, f"`scores` is {kind}, but `indices` is {list(indices.shape)}"))
    scores_NK = np.where(ids_NK < 0, -np.inf, scores)
    refuse_rows(path, np.isnan(scores_NK), "a score that is not a number")
    order = np.lexsort((ids_NK, -scores_NK), axis=1)[:, :depth]
    best_NK = np.take_along_axis(scores_NK, order, axis=1).astype(np.float32)
    return Ranking(np.take_along_axis(ids_NK, order, axis=1), best_NK)


def _refuse_repeated(path: Path, matrix: sp.csr_array) -> None:
    once = matrix.copy()
    once.sum_duplicates()
    refuse_rows(path, np.diff(once.indptr) < np.diff(matrix.indptr), "a label twice")


def _repeats(ids_QK: NDArray[Any]) -> NDArray[np.bool_]:
    """[Q] whether a row has a label twice."""
    ordered = np.sort(ids_QK, axis=1)
    repeats: NDArray[np.bool_] = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    return repeats
