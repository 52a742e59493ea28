"""Goal 5: choosing the label pool of a batch, at the size of LF-AmazonTitles-1.3M (random data)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from harness import Row, interleaved
from numpy.typing import NDArray

from xmclab.api import Batch
from xmclab.plan.miners.ann import AnnMiner
from xmclab.plan.pool import build_batch

QUERIES, POINTS, LABELS, PER_POINT = 1098, 400_000, 1_300_000, 22
BETA, ETA, MINED = 3, 6, 30


@dataclass
class Data:
    """The inputs of a planner; every call takes different queries, as in an epoch."""

    targets_NL: sp.csr_array
    filter_NL: sp.csr_array
    hard_NH: NDArray[np.int32]
    plan: Iterator[NDArray[np.int64]]


def inputs() -> Data:
    rng = np.random.default_rng(0)
    lengths_N = rng.poisson(PER_POINT - 1, POINTS) + 1
    columns = (LABELS * rng.random(lengths_N.sum()) ** 2).astype(np.int32)  # squared: smaller ids are more frequent
    indptr = np.concatenate([[0], np.cumsum(lengths_N)]).astype(np.int32)  # as the file readers return it
    targets_NL = sp.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape=(POINTS, LABELS))
    targets_NL.sum_duplicates()
    own = np.arange(0, POINTS, 4)
    filter_NL = sp.csr_array((np.ones(len(own), np.float32), (own, own)), shape=targets_NL.shape)
    hard_NH = rng.integers(0, LABELS, (POINTS, MINED), dtype=np.int32)
    batches = POINTS // QUERIES
    plan = itertools.cycle(rng.permutation(POINTS)[: batches * QUERIES].reshape(batches, QUERIES))
    return Data(targets_NL, filter_NL, hard_NH, plan)


def ours(data: Data, miner: AnnMiner, cap: int) -> Batch:
    rows = next(data.plan)
    mined = miner.sample(rows, ETA, data.targets_NL, np.random.default_rng(1))
    return build_batch(rows, data.targets_NL, data.filter_NL, mined, BETA, cap, np.random.default_rng(2))


def vectorised(data: Data) -> tuple[NDArray[np.int64], sp.csr_array, sp.csr_array]:
    """The obvious vectorised version in numpy and scipy: sliced matrices, random keys, sort, unique."""
    rows, rng = next(data.plan), np.random.default_rng(0)
    hard_QH = data.hard_NH[rows]
    mined = np.take_along_axis(hard_QH, np.argsort(rng.random(hard_QH.shape), axis=1)[:, :ETA], axis=1)
    true, unknown = data.targets_NL[rows], data.filter_NL[rows].tocoo()
    row = np.repeat(np.arange(len(rows)), np.diff(true.indptr))
    order = np.lexsort((rng.random(len(row)), row))
    place = np.arange(len(row)) - true.indptr[row]
    pool = np.unique(np.concatenate([true.indices[order[place < BETA]], mined.ravel()]))
    shape = len(rows), len(pool)
    inside = np.isin(true.indices, pool)
    where = row[inside], np.searchsorted(pool, true.indices[inside])
    positives = sp.csr_array((true.data[inside], where), shape=shape)
    inside = np.isin(unknown.col, pool)
    where = unknown.row[inside], np.searchsorted(pool, unknown.col[inside])
    ignored = sp.csr_array((unknown.data[inside], where), shape=shape)
    return pool, positives, ignored - ignored.multiply(positives)


def by_query(data: Data) -> tuple[NDArray[np.int64], list[list[int]]]:
    """As in a typical collate function: draws and a lookup per query (without the filter)."""
    rows, rng = next(data.plan), np.random.default_rng(0)
    true = [data.targets_NL.indices[slice(*data.targets_NL.indptr[row : row + 2])] for row in rows]
    sampled = [rng.choice(labels, min(BETA, len(labels)), replace=False) for labels in true]
    mined = [rng.choice(data.hard_NH[row], ETA, replace=False) for row in rows]
    pool = np.unique(np.concatenate([*sampled, *mined]))
    places = {label: place for place, label in enumerate(pool.tolist())}
    return pool, [[places[label] for label in labels.tolist() if label in places] for labels in true]


def measure() -> list[Row]:
    data = inputs()
    miner = AnnMiner()
    miner._hard_NH, miner._mined_N = data.hard_NH, np.full(POINTS, MINED)
    caps = {"no cap": functools.partial(ours, data, miner, 0), "cap=3000": functools.partial(ours, data, miner, 3000)}
    calls = {
        **caps,
        "vectorised": functools.partial(vectorised, data),
        "per query": functools.partial(by_query, data),
    }
    ms = {name: 1e3 * value for name, value in interleaved(calls, repeats=31, settle=2).items()}
    what = f"planner, {QUERIES} queries, N=400K, L=1.3M, {PER_POINT} labels per point, beta={BETA}, eta={ETA}"
    hidden = "in a thread beside the step"
    rows = [Row(5, f"{what}, {cap}", f"{ms[cap]:.2f} ms", hidden, ms[cap], 1.5) for cap in caps]
    for name in ("vectorised", "per query"):
        peer = f"numpy/scipy {name} {ms[name]:.1f} ms"
        rows.append(Row(5, f"{what}, no cap", f"{ms['no cap']:.2f} ms", peer, ms[name] / ms["no cap"], 5, ">="))
    return rows
