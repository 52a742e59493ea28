"""Searches, mining and clustering on a CUDA device that has no numbers: where the host waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ran(in_process: Callable[..., list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    return {found["case"]: found for found in in_process("searching", "all")}


def test_a_search_waits_once(ran: dict[str, dict[str, Any]]) -> None:
    """1024 queries, 400,000 labels; the copies of its results are up to the caller."""
    assert sum(ran["search"]["waits"].values()) == 1
    assert not ran["search"]["copies"]
    assert ran["search"]["peak"] < 1 << 30


def test_vectors_are_checked_once_a_build(ran: dict[str, dict[str, Any]]) -> None:
    assert list(ran["build"]["waits"].values()) == [1]
    assert ran["build"]["peak"] < 1 << 20  # no copy


def test_three_searches_by_heads_wait_once_and_copy_ids_and_scores(ran: dict[str, dict[str, Any]]) -> None:
    waits = ran["heads"]["waits"]
    assert sorted(waits.values()) == [1, 6]
    assert [line.partition(":")[0] for line in sorted(waits, key=waits.__getitem__)] == [
        "plan/indexes/exact.py",
        "evaluation/search.py",
    ]


def test_mining_waits_for_a_check_a_search_and_its_result(ran: dict[str, dict[str, Any]]) -> None:
    assert list(ran["mining"]["waits"].values()) == [1, 1, 1]
    assert sum(ran["mining"]["copies"].values()) == 2  # ids of queries, and what they exclude


def test_clusters_are_grown_on_the_device(ran: dict[str, dict[str, Any]]) -> None:
    assert list(ran["two_means"]["waits"].values()) == [1]  # the result
    assert sum(ran["k_means"]["waits"].values()) == 1 + 4 + 2  # a check, searches of 65,536 vectors, ids and cosines
