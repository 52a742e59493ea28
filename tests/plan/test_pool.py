"""The label pool of a batch: laws over random sparse data, and a naive reference for the cap."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.api import Batch
from xmclab.objectives.truth import Truth
from xmclab.plan.csr import row_pairs
from xmclab.plan.miners.random import RandomMiner
from xmclab.plan.pool import build_batch, draw_positives, draw_repeatedly


@dataclass
class Case:
    """A random batch with everything that goes into its pool."""

    rows: np.ndarray
    targets: sp.csr_array
    filtered: sp.csr_array
    mined: np.ndarray
    beta: int
    cap: int
    seed: int

    def build(self, **changes: object) -> Batch:
        given = {
            "rows_Q": self.rows,
            "targets_NL": self.targets,
            "filter_NL": self.filtered,
            "mined_QE": self.mined,
            "beta": self.beta,
            "cap": self.cap,
            "rng": np.random.default_rng(self.seed),
        }
        return build_batch(**(given | changes))

    def draws(self) -> list[list[int]]:
        """The labels that each query draws."""
        drawn_E = draw_positives(self.rows, self.targets, self.beta, np.random.default_rng(self.seed))
        true = row_pairs(self.targets, self.rows)
        return [true.column_E[drawn_E & (true.row_E == place)].tolist() for place in range(len(self.rows))]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    shape = draw(st.integers(1, 10)), draw(st.integers(1, 15))
    targets = (rng.random(shape) < draw(st.sampled_from([0.05, 0.3, 0.9]))) * (rng.random(shape) + 0.1)
    filtered = rng.random(shape) < draw(st.sampled_from([0.0, 0.3]))
    rows = rng.permutation(shape[0])[: draw(st.integers(1, shape[0]))]
    mined = rng.integers(-1, shape[1], size=(len(rows), draw(st.integers(0, 4))))
    return Case(
        rows,
        sp.csr_array(targets.astype(np.float32)),
        sp.csr_array(filtered.astype(np.float32)),
        mined,
        beta=draw(st.integers(1, 5)),
        cap=draw(st.integers(0, 12)),
        seed=seed,
    )


def cells(batch: Batch, part: str) -> set[tuple[int, int]]:
    """The (query id, label id) pairs of the positives or of the ignored."""
    rows, columns = getattr(batch, part)[:2]
    return set(zip(batch.rows_Q[rows].tolist(), batch.labels_P[columns].tolist(), strict=True))


@settings(deadline=None)
@given(cases())
def test_no_true_pair_is_ever_a_negative(case: Case) -> None:
    batch = case.build()
    true = case.targets.toarray()[batch.rows_Q][:, batch.labels_P]
    truth = Truth.of_batch(batch, "cpu")
    assert np.array_equal(truth.matrix(torch.float32).numpy(), true)
    unknown = (case.filtered.toarray()[batch.rows_Q][:, batch.labels_P] > 0) & (true == 0)
    assert np.array_equal(truth.hide_ignored(torch.zeros(truth.shape), 1.0).numpy() > 0, unknown)


@settings(deadline=None)
@given(cases())
def test_pool_is_unique_and_ascending_and_every_kept_query_has_a_positive(case: Case) -> None:
    batch = case.build()
    assert (np.diff(batch.labels_P) > 0).all()
    assert set(batch.positives[0].tolist()) == set(range(len(batch.rows_Q)))
    assert len(batch.rows_Q) + batch.dropped == len(case.rows)
    assert [row for row in case.rows if row in batch.rows_Q] == batch.rows_Q.tolist()
    lost = set(case.rows.tolist()) - set(batch.rows_Q.tolist())
    assert not case.targets.toarray()[sorted(lost)][:, batch.labels_P].any()
    if case.cap:
        assert len(batch.labels_P) <= case.cap


@settings(deadline=None)
@given(cases())
def test_without_a_cap_the_pool_is_at_most_beta_positives_each_and_the_mined(case: Case) -> None:
    batch = case.build(cap=0)
    truth = [set(np.flatnonzero(row).tolist()) for row in case.targets.toarray()[case.rows]]
    mined = set(case.mined[case.mined >= 0].tolist())
    pool = set(batch.labels_P.tolist())
    assert mined <= pool <= mined | set().union(*truth)
    assert len(pool - mined) <= sum(min(case.beta, len(positives)) for positives in truth)
    assert all(len(positives & pool) >= min(case.beta, len(positives)) for positives in truth)
    assert set(batch.rows_Q.tolist()) == {row for row, positives in zip(case.rows, truth, strict=True) if positives}


@settings(deadline=None)
@given(cases())
def test_beta_larger_than_the_positives_takes_all_of_them(case: Case) -> None:
    batch = case.build(beta=10**6, cap=0, mined_QE=case.mined[:, :0])
    assert batch.labels_P.tolist() == np.flatnonzero(case.targets.toarray()[case.rows].any(axis=0)).tolist()


def naive_pool(sampled: list[list[int]], mined: list[list[int]], truth: list[list[int]], cap: int) -> list[int]:
    """The capped pool, label after label."""
    pool: list[int] = []
    for stage in (sampled, mined, truth):
        counts = Counter(label for row in stage for label in row if label >= 0 and label not in pool)
        while counts and len(pool) < cap:
            best = min(counts, key=lambda label: (-counts[label], label))
            pool.append(best)
            del counts[best]
    return sorted(pool)


@settings(max_examples=300, deadline=None)
@given(cases(), st.booleans())
def test_cap_keeps_the_fill_order(case: Case, with_mined: bool) -> None:
    mined = case.mined if with_mined else case.mined[:, :0]
    cap = max(case.cap, 1)
    truth = [np.flatnonzero(row).tolist() for row in case.targets.toarray()[case.rows]]
    sampled = case.draws()
    assert [len(some) for some in sampled] == [min(case.beta, len(row)) for row in truth]
    assert all(set(some) <= set(row) and len(set(some)) == len(some) for some, row in zip(sampled, truth, strict=True))
    batch = case.build(cap=cap, mined_QE=mined)
    assert batch.labels_P.tolist() == naive_pool(sampled, mined.tolist(), truth, cap)


def drawn_repeatedly(case: Case) -> list[list[int]]:
    """The labels that each query draws with replacement, with repetitions."""
    true = row_pairs(case.targets, case.rows)
    entries = draw_repeatedly(case.rows, case.targets, case.beta, np.random.default_rng(case.seed))
    return [true.column_E[entries[true.row_E[entries] == place]].tolist() for place in range(len(case.rows))]


def most_brought(brought: list[list[int]], pool: list[int]) -> list[int]:
    """Labels outside the pool, by how often they were brought, then by id."""
    times: dict[int, int] = {}
    for row in brought:
        for label in row:
            if label >= 0 and label not in pool:
                times[label] = times.get(label, 0) + 1
    return sorted(times, key=lambda label: (-times[label], label))


def released_pool(
    sampled: list[list[int]], mined: list[list[int]], truth: list[list[int]], cap: int, gap: int
) -> list[int]:
    """The pool of the authors' program: sampled positives, then negatives, then positives where the gap is exceeded."""
    pool = most_brought(sampled, [])
    if len(pool) > cap:
        return sorted(pool[:cap])
    if cap - len(pool) > gap:
        pool += most_brought(mined, pool)[: cap - len(pool)]
    if cap - len(pool) > gap:
        pool += most_brought(truth, pool)[: cap - len(pool)]
    return sorted(pool)


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(0, 8))
def test_with_replacement_and_a_gap_it_is_the_pool_of_the_authors_program(case: Case, gap: int) -> None:
    cap = max(case.cap, 1)
    truth = [np.flatnonzero(row).tolist() for row in case.targets.toarray()[case.rows]]
    sampled = drawn_repeatedly(case)
    assert [len(some) for some in sampled] == [case.beta if row else 0 for row in truth]
    assert all(set(some) <= set(row) for some, row in zip(sampled, truth, strict=True))
    batch = case.build(cap=cap, replacement=True, gap=gap)
    assert batch.labels_P.tolist() == released_pool(sampled, case.mined.tolist(), truth, cap, gap)
    rows, columns, _ = (part[batch.drawn_E] for part in batch.positives)
    drawn = set(zip(batch.rows_Q[rows].tolist(), batch.labels_P[columns].tolist(), strict=True))
    pairs = {(row, label) for row, some in zip(case.rows.tolist(), sampled, strict=True) for label in some}
    assert drawn == {pair for pair in pairs if pair[1] in batch.labels_P}
    uncapped = {label for some in sampled for label in some} | set(case.mined.ravel().tolist()) - {-1}
    assert case.build(cap=0, replacement=True, gap=gap).labels_P.tolist() == sorted(uncapped)


@settings(deadline=None)
@given(cases(), st.integers(0, 8))
def test_a_gap_draws_the_same_positives(case: Case, gap: int) -> None:
    cap = max(case.cap, 1)
    truth = [np.flatnonzero(row).tolist() for row in case.targets.toarray()[case.rows]]
    batch = case.build(cap=cap, gap=gap)
    assert batch.labels_P.tolist() == released_pool(case.draws(), case.mined.tolist(), truth, cap, gap)


def test_a_gap_by_hand() -> None:
    targets = sp.csr_array(np.array([[1, 1, 1, 0, 0]], dtype=np.float32))
    nothing, mined = sp.csr_array(targets.shape, dtype=np.float32), np.array([[4]])

    def size(gap: int) -> int:
        rng = np.random.default_rng(0)
        return len(build_batch(np.array([0]), targets, nothing, mined, 1, 4, rng, gap=gap).labels_P)

    assert [size(gap) for gap in range(5)] == [4, 4, 2, 1, 1]


def test_a_label_drawn_twice_by_a_query_counts_twice() -> None:
    """The only label of one query, drawn twice, outnumbers two different draws of another, whatever the ids."""
    targets = sp.csr_array(np.array([[1, 1, 0], [0, 0, 1]], dtype=np.float32))
    nothing, no_mined = sp.csr_array(targets.shape, dtype=np.float32), np.empty((2, 0), dtype=np.int64)
    for seed in range(20):
        own = draw_repeatedly(np.array([0, 1]), targets, 2, np.random.default_rng(seed))[:2].tolist()
        rng = np.random.default_rng(seed)
        batch = build_batch(np.arange(2), targets, nothing, no_mined, 2, 1, rng, replacement=True)
        assert batch.labels_P.tolist() == ([own[0]] if own[0] == own[1] else [2])


def test_fill_order_by_hand() -> None:
    """Sampled positives, then mined, then further positives; the most frequent first, the smaller id among equals."""
    targets = sp.csr_array(
        np.array([[1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]], dtype=np.float32)
    )
    nothing = sp.csr_array(targets.shape, dtype=np.float32)
    mined = np.array([[5, 6], [6, 4], [-1, 5]])

    def pool(cap: int) -> tuple[list[int], int]:
        batch = build_batch(np.arange(3), targets, nothing, mined, 1, cap, np.random.default_rng(0))
        return batch.labels_P.tolist(), batch.dropped

    assert pool(1) == ([0], 1)
    assert pool(2) == ([0, 1], 0)
    assert pool(3) == ([0, 1, 5], 0)
    assert pool(4) == ([0, 1, 5, 6], 0)
    assert pool(0) == pool(100) == ([0, 1, 4, 5, 6], 0)


def test_room_under_the_cap_goes_to_further_positives() -> None:
    targets = sp.csr_array(np.array([[1, 1, 1, 1, 0]], dtype=np.float32))
    nothing, no_mined = sp.csr_array(targets.shape, dtype=np.float32), np.empty((1, 0), dtype=np.int64)
    sizes = [
        len(build_batch(np.array([0]), targets, nothing, no_mined, 1, cap, np.random.default_rng(0)).labels_P)
        for cap in (0, 1, 3, 100)
    ]
    assert sizes == [1, 1, 3, 4]


def test_positives_are_sampled_uniformly() -> None:
    targets = sp.csr_array(np.ones((1, 5), dtype=np.float32))
    nothing, no_mined = sp.csr_array(targets.shape, dtype=np.float32), np.empty((1, 0), dtype=np.int64)
    rng = np.random.default_rng(0)
    draws = [build_batch(np.array([0]), targets, nothing, no_mined, 2, 0, rng).labels_P for _ in range(2000)]
    share = np.bincount(np.concatenate(draws), minlength=5) / len(draws)
    assert np.abs(share - 2 / 5).max() < 0.05


@settings(deadline=None)
@given(cases())
def test_a_drawn_pair_is_one_that_its_own_query_drew_and_the_cap_left(case: Case) -> None:
    batch = case.build()
    rows, columns, _ = (part[batch.drawn_E] for part in batch.positives)
    drawn = list(zip(batch.rows_Q[rows].tolist(), batch.labels_P[columns].tolist(), strict=True))
    pool = set(batch.labels_P.tolist())
    assert drawn == [
        (row, label)
        for row, some in zip(case.rows.tolist(), case.draws(), strict=True)
        for label in some
        if label in pool
    ]
    assert batch.drawn_E.dtype == np.bool_


def test_a_query_may_lose_its_draw_to_the_cap_and_keep_a_positive() -> None:
    targets = sp.csr_array(np.array([[1, 0], [1, 0], [1, 1]], dtype=np.float32))
    nothing, no_mined = sp.csr_array(targets.shape, dtype=np.float32), np.empty((3, 0), dtype=np.int64)
    seen = set()
    for seed in range(20):
        batch = build_batch(np.arange(3), targets, nothing, no_mined, 1, 1, np.random.default_rng(seed))
        assert (batch.labels_P.tolist(), batch.dropped) == ([0], 0)
        seen.add(tuple(batch.drawn_E.tolist()))
    assert seen == {(True, True, True), (True, True, False)}


@settings(deadline=None)
@given(cases())
def test_pure_in_the_generator(case: Case) -> None:
    one, two = case.build(), case.build()
    for name in ("rows_Q", "labels_P", "drawn_E"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert cells(one, "positives") == cells(two, "positives")
    assert cells(one, "ignored") == cells(two, "ignored")


@settings(deadline=None)
@given(cases())
def test_all_labels_is_every_label(case: Case) -> None:
    batch = case.build(all_labels=True)
    assert batch.labels_P.tolist() == list(range(case.targets.shape[1]))
    assert len(cells(batch, "positives")) == case.targets[case.rows].nnz
    assert batch.drawn_E is None


def naive_pairs(case: Case, batch: Batch) -> tuple[list[tuple[int, int, float]], list[tuple[int, int]]]:
    """(positives, ignored) of a pool, query after query: every true pair in it, and every filter pair that is not."""
    targets, filtered = case.targets.toarray(), case.filtered.toarray()
    pool = batch.labels_P.tolist()
    kept = [row for row in case.rows.tolist() if targets[row, pool].any()]
    positives, ignored = [], []
    for position, row in enumerate(kept):
        for place, label in enumerate(pool):
            if targets[row, label]:
                positives.append((position, place, float(targets[row, label])))
            elif filtered[row, label]:
                ignored.append((position, place))
    return positives, ignored


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@settings(max_examples=200, deadline=None)
@given(cases())
def test_pairs_are_listed_query_after_query(index_type: type, case: Case) -> None:
    for matrix in (case.targets, case.filtered):
        matrix.indices, matrix.indptr = matrix.indices.astype(index_type), matrix.indptr.astype(index_type)
    batch = case.build()
    positives, ignored = (
        list(zip(*(ids.tolist() for ids in part), strict=True)) for part in (batch.positives, batch.ignored)
    )
    assert (positives, ignored) == naive_pairs(case, batch)
    types = [part.dtype for part in (batch.rows_Q, batch.labels_P, *batch.positives, *batch.ignored)]
    assert types == [np.int64, np.int64, np.int64, np.int64, np.float32, np.int64, np.int64]


@settings(deadline=None)
@given(cases())
def test_a_pool_without_a_cap_is_the_union_of_what_was_brought(case: Case) -> None:
    sampled = itertools.chain.from_iterable(case.draws())
    assert case.build(cap=0).labels_P.tolist() == sorted({*sampled, *case.mined.ravel().tolist()} - {-1})


@pytest.mark.parametrize("cap", [0, 50])
def test_nothing_of_the_size_of_the_label_set_is_made(cap: int) -> None:
    rng = np.random.default_rng(0)
    labels = 50_000_000
    targets = sp.csr_array((np.ones(200, np.float32), (np.repeat(np.arange(20), 10), rng.integers(0, labels, 200))))
    targets.resize(20, labels)
    rows = np.arange(20)

    def plan() -> Batch:
        mined = RandomMiner().sample(rows, 3, targets, rng)
        return build_batch(rows, targets, targets, mined, 3, cap, rng)

    plan()
    tracemalloc.start()
    plan()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_batch_where_nothing_can_be_trained() -> None:
    empty = sp.csr_array((3, 4), dtype=np.float32)
    for mined in (np.empty((3, 0), dtype=np.int64), np.array([[1], [-1], [2]])):
        batch = build_batch(np.arange(3), empty, empty, mined, 3, 0, np.random.default_rng(0))
        assert batch.dropped == 3
        assert Truth.of_batch(batch, "cpu").shape == (0, (mined >= 0).sum())
        assert batch.missing == (mined < 0).sum()
