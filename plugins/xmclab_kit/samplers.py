"""The laws of a sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from xmclab.api import Keys, Sampler, View
from xmclab_kit.core import Broken, Subject, named, numbers
from xmclab_kit.structure import OPTIONS, structural_laws

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAWS = structural_laws()
LARGEST = 2  # times batch_size queries in a batch: leaves of a tree may exceed it


@dataclass(frozen=True)
class Epoch:
    """The arguments of a plan."""

    rows_N: NDArray[np.int64]
    queries: int  # in the view, including those without a label
    batch_size: int
    epoch: int
    seed: int
    viewed: bool

    def __str__(self) -> str:
        view = f"a view of {self.queries} queries" if self.viewed else "no view"
        asked = f"batch_size={self.batch_size}, epoch={self.epoch}, seed={self.seed}, {view}"
        return f"{named(rows_N=self.rows_N)}\n{asked}"

    @property
    def targets_NL(self) -> sp.csr_array:
        """Every row that can be trained on has a label: one of five."""
        labels_N = self.rows_N % 5
        cells = np.ones(len(labels_N), np.float32), (self.rows_N, labels_N)
        return sp.csr_array(cells, shape=(self.queries, 5))

    @property
    def view(self) -> View | None:
        if not self.viewed:
            return None
        rng = np.random.default_rng(0)
        queries_ND, labels_LD = (rng.normal(size=(size, 3)).astype(np.float32) for size in (self.queries, 5))
        return View(self.epoch, queries_ND, labels_LD)


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    queries = draw(st.integers(1, 30))
    rows_N = np.flatnonzero(numbers(draw, queries) < 170)
    return Epoch(
        rows_N if len(rows_N) else np.array([queries - 1]),
        queries,
        batch_size=draw(st.integers(1, 24)),
        epoch=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 3)),
        viewed=draw(st.booleans()),
    )


def plan(sampler: Sampler, asked: Epoch) -> list[NDArray[np.int64]]:
    """The batches, from a copy of the rows."""
    return sampler.plan(asked.rows_N.copy(), asked.targets_NL, asked.epoch, asked.view, Keys(asked.seed))


@LAWS.law(
    says="plan() returns a list of arrays of query ids (int64, one dimension), none of them empty",
    fix="return a list of int64 arrays: np.array_split of the permuted rows_N is the simplest",
    examples=epochs(),
    needs=[OPTIONS],
)
def shape(subject: Subject, asked: Epoch) -> None:
    batches = plan(subject.make(batch_size=asked.batch_size), asked)
    if not isinstance(batches, list):
        raise Broken(f"plan() returned {type(batches).__name__}, not a list")
    for number, batch in enumerate(batches):
        if not isinstance(batch, np.ndarray) or batch.dtype != np.int64 or batch.ndim != 1:
            kind = f"{batch.dtype} of shape {batch.shape}" if isinstance(batch, np.ndarray) else type(batch).__name__
            raise Broken(f"batch {number} is {kind}")
        if not len(batch):
            raise Broken(f"batch {number} is empty")


@LAWS.law(
    says="an epoch visits each query once: its batches are a partition of rows_N",
    fix="drop no remainder, repeat no query, and plan only rows that are in rows_N",
    examples=epochs(),
    needs=["shape"],
)
def partition(subject: Subject, asked: Epoch) -> None:
    visited, times = np.unique(
        np.concatenate(plan(subject.make(batch_size=asked.batch_size), asked)), return_counts=True
    )
    if len(lost := np.setdiff1d(asked.rows_N, visited)):
        raise Broken(f"query {lost[0]} is in no batch")
    if len(strangers := np.setdiff1d(visited, asked.rows_N)):
        raise Broken(f"query {strangers[0]} is planned, but is not in rows_N")
    if (times > 1).any():
        raise Broken(f"query {visited[times > 1][0]} is planned {times.max()} times")


@LAWS.law(
    says=f"no batch is larger than {LARGEST} x batch_size",
    fix="cut at batch_size queries: a step's memory grows with it",
    examples=epochs(),
    needs=["shape"],
)
def sizes(subject: Subject, asked: Epoch) -> None:
    largest = max(map(len, plan(subject.make(batch_size=asked.batch_size), asked)))
    if largest > LARGEST * asked.batch_size:
        raise Broken(f"a batch has {largest} queries, where batch_size is {asked.batch_size}")


@LAWS.law(
    says="the number of batches depends only on the number of queries, not on epoch or view",
    fix="compute it from len(rows_N) and batch_size: the learning-rate schedule relies on it",
    examples=epochs(),
    needs=["shape"],
)
def steps(subject: Subject, asked: Epoch) -> None:
    sampler = subject.make(batch_size=asked.batch_size)
    first = len(sampler.plan(asked.rows_N.copy(), asked.targets_NL, 0, None, Keys(asked.seed)))
    now = len(plan(sampler, asked))
    if now != first:
        raise Broken(f"{now} batches, but {first} in epoch 0 without a view")


@LAWS.law(
    says="a plan depends only on (rows_N, epoch, view, seed): a second call or instance gives the same",
    fix="draw from keys.rng('plan', epoch) and nothing else; keep nothing between calls that changes the answer",
    examples=epochs(),
    needs=["shape"],
)
def pure(subject: Subject, asked: Epoch) -> None:
    sampler, other = (subject.make(batch_size=asked.batch_size) for _ in range(2))
    first = plan(sampler, asked)
    sampler.plan(asked.rows_N.copy(), asked.targets_NL, asked.epoch + 1, asked.view, Keys(asked.seed + 1))
    for who, again in (("asked again", plan(sampler, asked)), ("another instance", plan(other, asked))):
        if [batch.tolist() for batch in again] != [batch.tolist() for batch in first]:
            before, now = (str([batch.tolist() for batch in batches]) for batches in (first, again))
            raise Broken(f"first: {before}\n{who}: {now}")


@LAWS.law(
    says="rows_N, targets_NL and the vectors of the view are not modified",
    fix="use rng.permutation(rows_N), which copies, not rng.shuffle; do not write into arrays that are passed in",
    examples=epochs(),
    needs=["shape"],
)
def unchanged(subject: Subject, asked: Epoch) -> None:
    rows_N, targets_NL, view, before = asked.rows_N.copy(), asked.targets_NL, asked.view, asked.view
    subject.make(batch_size=asked.batch_size).plan(rows_N, targets_NL, asked.epoch, view, Keys(asked.seed))
    if not np.array_equal(rows_N, asked.rows_N):
        raise Broken("plan() wrote into rows_N: " + named(afterwards=rows_N))
    if not np.array_equal(targets_NL.toarray(), asked.targets_NL.toarray()):
        raise Broken("plan() wrote into targets_NL")
    for name in ("queries_ND", "labels_LD") if view and before else ():
        if not np.array_equal(getattr(view, name), getattr(before, name)):
            raise Broken(f"plan() wrote into view.{name}")
