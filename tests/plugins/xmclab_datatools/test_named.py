"""Queries and labels by name: whose answer is whose, and what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xmclab.errors import DataError
from xmclab.system.messages import kept
from xmclab_datatools.named import Names, read_named

LABELS = ["a", "b", "c", "c"]
NAMES = Names(LABELS, ["x", "y", "z"], ["red", "green", "red"])
UNNAMED = Names(LABELS, ["0", "1", "2"], ["red", "green", "blue"])


def read(folder: Path, records: Sequence[dict[str, Any]], names: Names | None = NAMES) -> tuple[Any, Any]:
    (folder / "p.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    ids, scores = read_named(folder / "p.jsonl", (3, 4), names, "the test set")
    return ids.tolist(), None if scores is None else scores.tolist()


def answers(key: str, values: Sequence[object], **more: object) -> list[dict[str, Any]]:
    """An answer for each value: the label of this place."""
    return [{key: value, "labels": [{"label": place}], **more} for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("names", "records", "expected"),
    [
        (NAMES, answers("query", ["red", "green", "red"]), [0, 1, 2]),
        (NAMES, answers("query", ["green", "red", "other", "red"]), [1, 0, 3]),
        (NAMES, answers("query", ["green", "red"]), [1, 0, 1]),
        (NAMES, answers("id", ["z", "other", "y", "x"]), [3, 2, 0]),
        (UNNAMED, answers("query", ["blue", "green", "red"], id="1"), [2, 1, 0]),
        (NAMES, answers("row", [2, 0, 1]), [1, 2, 0]),
        (None, answers("row", [2, 0, 1]), [1, 2, 0]),
        (None, answers("unknown", [7, 7, 7]), [0, 1, 2]),
    ],
)
def test_every_query_gets_its_answer(
    tmp_path: Path, names: Names | None, records: list[dict[str, Any]], expected: list[int]
) -> None:
    assert read(tmp_path, records, names)[0] == [[label] for label in expected]


def test_ids_of_rows_are_not_ids(tmp_path: Path) -> None:
    """A file that counts its queries from 1 is not shifted by one."""
    records = [{"id": str(row + 1), "query": text, "labels": [row]} for row, text in enumerate(UNNAMED.texts)]
    records.append({"id": "0", "query": "other", "labels": [3]})
    assert read(tmp_path, records, UNNAMED)[0] == [[0], [1], [2]]


def test_what_is_done_with_other_queries_is_said(tmp_path: Path) -> None:
    with kept("xmclab.cli") as records:
        read(tmp_path, answers("query", ["green", "red", "other", "red"]))
        read(tmp_path, answers("query", ["Red", "Green", "Red"]))
    first, second = (record.getMessage() for record in records)
    assert first.endswith("p.jsonl: 3 of its 4 queries are those of the test set, by text")
    assert second.endswith("p.jsonl: its texts are not those of the test set; queries are matched by row")


def test_names_come_before_numbers(tmp_path: Path) -> None:
    rows = [
        [{"label": 3, "name": "b", "score": 1}, {"name": "a", "score": 2}],
        [{"label": 3, "name": "c", "score": 5}],
        [],
    ]
    ids, scores = read(tmp_path, [{"labels": row} for row in rows])
    assert ids == [[1, 0], [3, -1], [-1, -1]]
    assert scores == [[1, 2], [5, float("-inf")], [float("-inf")] * 2]
    assert read(tmp_path, [{"labels": row} for row in (["a"], [{"name": "b", "score": 1}], [])])[1] is None


@pytest.mark.parametrize(
    ("names", "records", "message"),
    [
        (NAMES, answers("query", ["green", "blue"]), "has 1 of the 3 queries of the test set, by text; the first"),
        (NAMES, answers("query", ["x", "y"]), "has 2 queries, but the test set has 3"),
        (NAMES, answers("row", [0, 1, 1]), "its rows are not 0 to 2, each once (row 2 is missing)"),
        (NAMES, [{"labels": ["b"]}, {"labels": ["B"]}, {"labels": ["A"]}], "p.jsonl:2: 'B', 'A': not labels of"),
        (NAMES, [{"labels": ["c"]}] * 3, "p.jsonl:1: 'c': names of several labels of the test set (add a column"),
        (
            NAMES,
            [{"labels": [4]}, {"labels": [-1]}, {"labels": []}],
            "'4', '-1': not numbers of labels: the test set has 4",
        ),
        (None, [{"labels": ["a"]}] * 3, "'a': names of labels, which --truth does not have"),
    ],
)
def test_mistakes(tmp_path: Path, names: Names | None, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, records, names)
    assert message in str(error.value)
