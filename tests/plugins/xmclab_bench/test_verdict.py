"""The verdict in words: planted comparisons, and what must be said of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from xmclab_bench.document import completed
from xmclab_bench.verdict import judged

Means = Mapping[str, float]
APART, ALIKE = 0.001, 0.6


def compared(means: Means, alike: Collection[frozenset[str]] = (), seeds: int = 3, **more: Any) -> dict[str, Any]:
    """A document whose rows differ significantly, by their means ± 0.5, except for the pairs that are alike."""
    rows = [
        {
            "name": name,
            "column": "",
            "search": "de",
            "metrics": {
                "P@1": {"mean": mean, "sd": 0.1 if seeds > 1 else None, "values": [mean] * seeds, "best": False}
            },
        }
        for name, mean in means.items()
    ]
    names = list(means)
    tests = [
        {
            "search": "de",
            "column": "",
            "metric": "P@1",
            "a": a,
            "b": b,
            "value": means[a] - means[b],
            "low": means[a] - means[b] - 0.5,
            "high": means[a] - means[b] + 0.5,
            "p": ALIKE if frozenset((a, b)) in alike else APART,
        }
        for at, a in enumerate(names)
        for b in names[at + 1 :]
    ]
    groups = [{"name": name, "column": "", "state": "finished"} for name in means]
    found = {"metrics": ["P@1"], "columns": "", "rows": rows, "groups": groups, "tests": tests, "left_out": []}
    return judged({**found, "tuning": None, **more})


def pairs(*names: str) -> set[frozenset[str]]:
    """Every two of these names, each a letter."""
    return {frozenset(pair) for pair in names}


def told(document: Mapping[str, Any]) -> str:
    return " ".join(document["verdict"]["sentences"])


def bold(document: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in document["rows"] if row["metrics"]["P@1"]["best"]]


def tuning(**bands: list[tuple[float | None, float | None]]) -> dict[str, Any]:
    """Rows with the band of their best trial so far, after every trial."""
    rows = [
        {
            "name": name,
            "column": "",
            "chosen": {},
            "scores": [],
            "curve": [{"n": n, "median": 0.0, "low": low, "high": high} for n, (low, high) in enumerate(some, start=1)],
        }
        for name, some in bands.items()
    ]
    return {"trials": max(map(len, bands.values())), "metric": "P@1", "search": "de", "rows": rows}


def test_a_clear_winner() -> None:
    document = compared({"OvA": 38.0, "PSL": 41.0, "POL": 40.0})
    assert told(document) == (
        "P@1 of de: PSL is better than POL by 0.5 to 1.5 and OvA by 2.5 to 3.5 points (95 % intervals)."
    )
    assert bold(document) == ["PSL"]
    assert (document["verdicts"][0]["leader"], document["verdicts"][0]["best"]) == ("PSL", "PSL")


def test_many_rows_behind_are_one_range() -> None:
    document = compared({name: 40.0 - at for at, name in enumerate("ABCDEF")})
    assert told(document) == "P@1 of de: A is better than every other row, by 0.5 to 5.5 points (95 % intervals)."


def test_rows_tied_with_the_highest_are_one_group() -> None:
    document = compared({"A": 41.0, "B": 40.9, "C": 40.8, "D": 38.0}, pairs("AB", "AC", "BC"))
    assert told(document) == (
        "P@1 of de: A, B and C cannot be told apart; each is better than D, by 2.3 to 3.5 points (95 % interval)."
    )
    assert bold(document) == []
    assert document["verdicts"][0]["leader"] == "A"


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ("AB", "A and B cannot be told apart: A minus B is -0.4 to 0.6 points (95 % interval)."),
        ("ABC", "A, B and C cannot be told apart: A minus the others is -0.4 to 0.7 points (95 % interval)."),
    ],
)
def test_rows_that_are_all_tied_have_the_interval_of_their_difference(names: str, sentence: str) -> None:
    document = compared({name: 41 - 0.1 * at for at, name in enumerate(names)}, pairs("AB", "AC", "BC"))
    assert told(document) == f"P@1 of de: {sentence}"


def test_no_interval_begins_at_minus_zero() -> None:
    document = compared({"A": 41.0, "B": 40.503}, pairs("AB"))
    assert "A minus B is 0.00 to 1.00 points" in told(document)


def test_ties_are_not_transitive() -> None:
    document = compared({"A": 41.0, "B": 40.5, "C": 40.0}, pairs("AB", "BC"))
    assert told(document) == (
        "P@1 of de: A and B cannot be told apart."
        " A is better than C, by 0.5 to 1.5 points (95 % interval); B cannot be told apart from C."
    )
    assert bold(document) == []


def test_rows_tied_with_the_highest_may_differ_from_each_other() -> None:
    document = compared({"A": 41.0, "B": 40.9, "C": 40.0}, pairs("AB", "AC"))
    assert told(document) == "P@1 of de: B and C cannot be told apart from A, though B is ahead of C."


def test_the_tests_are_corrected_for_their_number() -> None:
    document = compared({name: 40.0 - at for at, name in enumerate("ABCD")})
    for test in document["tests"]:
        test["p"] = 0.02  # three of them: 0.06
    assert "cannot be told apart" in told(judged(document))
    assert bold(judged(document)) == []


def test_with_one_seed_nothing_is_better() -> None:
    document = compared({"A": 41.2, "B": 30.0}, seeds=1)
    assert told(document) == ("P@1 of de: A has the highest, 41.20, but with one seed nothing can be called better.")
    assert bold(document) == []
    document = compared({"A": 41.2, "B": 30.0})
    document["rows"][1]["metrics"]["P@1"]["sd"] = None
    assert "but with one seed of B nothing can be called better." in told(judged(document))


def test_all_rows_with_the_highest_mean_are_named() -> None:
    """By the numbers that the tables show."""
    document = compared({"A": 41.2, "B": 30.0, "C": 41.201, "D, E": 41.2}, seeds=1)
    assert told(document) == (
        'P@1 of de: C, A and "D, E" tie for the highest, 41.20, but with one seed nothing can be called better.'
    )
    document = compared({"A": 41.0, "B": 41.0})
    assert told(judged({**document, "tests": []})) == (
        "P@1 of de: A and B tie for the highest, 41.00, but the rows were not tested against each other."
    )
    document = compared(dict.fromkeys("ABCDE", 41.0), seeds=1)
    assert told(document) == "P@1 of de: all 5 rows are tied at 41.00, but with one seed nothing can be called better."


def test_a_row_alone_and_no_rows() -> None:
    assert told(compared({"A": 41.2})) == "P@1 of de: A is the only row."
    assert told(compared({})) == "There are no results to compare yet."


def test_rows_that_were_not_tested_are_named_and_nothing_is_bold() -> None:
    document = compared({"A": 41.0, "B": 40.0})
    assert told(judged({**document, "tests": []})) == (
        "P@1 of de: A has the highest, 41.00, but the rows were not tested against each other."
    )
    more = compared({"A": 41.0, "B": 40.0, "C": 50.0})
    more["tests"] = document["tests"]
    assert told(judged(more)).endswith("A is better than B, by 0.5 to 1.5 points (95 % interval). Not tested: C.")
    more["groups"][2]["state"] = "training"
    assert told(judged(more)).endswith("(95 % interval). Not finished: C.")
    assert bold(judged(more)) == []


def test_missing_cells_are_counted() -> None:
    missing = [{"name": name, "column": "", "seed": seed, "reason": "failed"} for name, seed in (("A", 1), ("A", 2))]
    missing.append({"name": "C", "column": "", "seed": 0, "reason": "failed"})
    assert told(compared({"A": 41.0, "B": 40.0}, left_out=missing)).endswith("Missing: A (2 cells) and C (1 cell).")


def test_names_that_look_like_lists_are_quoted() -> None:
    document = compared({"a, b": 41.0, "c": 40.0})
    assert told(document) == 'P@1 of de: "a, b" is better than c, by 0.5 to 1.5 points (95 % interval).'


LUCK = "but not clearly in 2 trials: it may only have been luckier in its search."


@pytest.mark.parametrize(
    ("a", "b", "ending"),
    [
        ([(38, 40), (40.5, 41)], [(37, 41), (39, 40)], "A is better than B, by 0.5 to 1.5 points (95 % interval)."),
        ([(38, 40), (39, 41)], [(37, 41), (39, 40)], LUCK),
        ([(None, 50), (39, None)], [(1, 2), (38, 39.5)], LUCK),
        ([(30, 31), (41, 42)], [(32, 33), (39, 40)], "but behind in the bands of 2 trials."),
    ],
)
def test_a_tuned_row_is_better_only_if_the_bands_are_apart_too(a: Any, b: Any, ending: str) -> None:
    document = compared({"A": 41.0, "B": 40.0}, tuning=tuning(A=a, B=b))
    better = "is better" in ending
    assert told(document).endswith(ending)
    assert ("A is ahead of B, by 0.5 to 1.5 points (95 % interval) on the test queries, " in told(document)) != better
    assert bold(document) == (["A"] if better else [])
    assert document["verdicts"][0]["best"] == ("A" if better else None)


def test_tied_rows_with_unlike_bands_are_told_one_by_one() -> None:
    bands = tuning(A=[(41, 42)], B=[(39, 42)], C=[(38, 40)])
    document = compared({"A": 42.0, "B": 41.9, "C": 40.0}, pairs("AB"), tuning=bands)
    assert told(document) == (
        "P@1 of de: A and B cannot be told apart. A is better than C, by 1.5 to 2.5 points (95 % interval);"
        " B is ahead of C, by 1.4 to 2.4 points (95 % interval) on the test queries, but not clearly in 1 trials:"
        " it may only have been luckier in its search."
    )


def test_rows_as_shipped_stand_beside_tuned_ones() -> None:
    document = compared({"A": 41.0, "B": 40.0}, tuning=tuning(A=[(1, 2)]))
    assert told(document).endswith("A is better than B, by 0.5 to 1.5 points (95 % interval). Not tuned: B.")
    assert bold(document) == ["A"]


def test_the_headline_is_of_the_search_that_most_rows_have_in_every_column() -> None:
    document = compared({"A": 41.0, "B": 40.0})
    rows = [
        {**row, "column": column, "search": search}
        for row in document["rows"]
        for column, search in (("0", "de"), ("0", "clf"), ("6", "de"), ("6", "clf"))
    ]
    rows.append({**rows[0], "search": "de+clf"})
    tests = [{**document["tests"][0], "column": "0", "search": "clf"}]
    found = judged({**document, "columns": "pool.eta", "rows": rows, "tests": tests})["verdict"]
    assert (found["search"], found["metric"]) == ("clf", "P@1")
    assert found["sentences"] == [
        "pool.eta=0, P@1 of clf: A is better than B, by 0.5 to 1.5 points (95 % interval).",
        "pool.eta=6, P@1 of clf: A has the highest, 41.00, but the rows were not tested against each other.",
    ]


def test_another_search_with_another_verdict_is_told_in_one_further_line() -> None:
    alike = compared({"A": 41.0, "B": 40.9, "C": 40.8}, pairs("AB", "AC", "BC"))
    apart = compared({"A": 36.2, "B": 36.0, "C": 24.4}, pairs("AB"))
    same = compared({"A": 51.0, "B": 50.9, "C": 50.8}, pairs("AB", "AC", "BC"))

    def headline(**searches: dict[str, Any]) -> list[str]:
        rows, tests = (
            [{**each, "search": search.replace("_", "+")} for search, found in searches.items() for each in found[key]]
            for key in ("rows", "tests")
        )
        found: list[str] = judged({**alike, "rows": rows, "tests": tests})["verdict"]["sentences"]
        return found

    first = "P@1 of de+clf: A, B and C cannot be told apart: A minus the others is -0.4 to 0.7 points (95 % interval)."
    other = "A and B cannot be told apart; each is better than C, by 11.1 to 12.3 points (95 % interval)."
    assert headline(de=apart, clf=same, de_clf=alike) == [first, f"Other searches differ. P@1 of de: {other}"]
    assert headline(de=same, clf=same, de_clf=alike) == [first]
    both = headline(de=alike, clf=same, de_clf=apart)
    assert both[0] == f"P@1 of de+clf: {other}"
    assert both[1].startswith("Other searches differ. P@1 of de: A, B and C cannot be told apart")
    many = {f"m{number}": apart for number in range(6)}
    assert headline(**many, de_clf=alike)[1].endswith(" 2 more verdicts differ.")


def test_judging_again_changes_nothing() -> None:
    document = compared({"A": 41.0, "B": 40.0})
    assert judged(document) == document
    assert completed(document)["verdicts"] is document["verdicts"]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((4, 4), "All rows trained for at most 4 steps, too few to tell: lower sampler.batch_size or raise epochs"),
        ((9, 200), "A trained for at most 9 steps, too few to tell"),
        ((10, 200), ""),
    ],
)
def test_rows_that_hardly_trained_are_named(steps: tuple[int, int], said: str) -> None:
    document = compared({"A": 42.0, "B": 41.0})
    groups = [{**group, "steps": number} for group, number in zip(document["groups"], steps, strict=True)]
    text = told(judged({**document, "groups": groups}))
    assert said in text
    assert ("too few to tell" in text) == bool(said)
