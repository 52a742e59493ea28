"""Answers that name their queries and labels, as rankings of the test queries of a data set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xmclab.api import Dataset
from xmclab.cli.common import note
from xmclab.errors import DataError, Problem
from xmclab.serve.answers import Answer, read_answers

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHOWN = 5  # names in an error
LONGEST = 60  # characters of a name in an error


@dataclass(frozen=True)
class Names:
    """What labels and queries are called."""

    labels: Sequence[str]
    ids: Sequence[str]  # of queries
    texts: Sequence[str]  # of queries

    @classmethod
    def of(cls, data: Dataset) -> Names:
        """Those of the labels and test queries of a data set."""
        return cls(data.label_names, data.test.names, data.test.texts)


def read_named(
    path: Path, shape: tuple[int, int], names: Names | None, truth: str
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """(label indices, scores) [rows, k] of every query; -1 where there are fewer, no scores unless all labels have one.

    Args:
        names: None: queries are known by their rows alone, and labels by their numbers.
        truth: what has this shape, for errors.

    Raises:
        DataError: a query is missing, or a label is unknown.
    """
    rows, labels = shape
    answers = list(read_answers(path))
    answers = _by_row(path, answers, rows, truth) if names is None else _placed(path, answers, names, truth)
    ids = _label_ids(path, answers, labels, names, truth)
    width = max(map(len, ids), default=0) or 1
    ids_NK = np.full((len(ids), width), -1, np.int64)
    scores_NK = np.full((len(ids), width), -np.inf)
    scored = all(score is not None for answer in answers for score in answer.scores)
    for row, (found, answer) in enumerate(zip(ids, answers, strict=True)):
        ids_NK[row, : len(found)] = found
        if scored:
            scores_NK[row, : len(found)] = answer.scores
    return ids_NK, scores_NK if scored else None


# Queries


def _placed(path: Path, answers: list[Answer], names: Names, truth: str) -> list[Answer]:
    """The answer to each query: by id or text, in any order and among others; else by row."""
    texts = [answer.query for answer in answers]
    if texts == list(names.texts):
        return answers
    keys = {"id": ([answer.id for answer in answers], names.ids), "text": (texts, names.texts)}
    if names.ids == [str(row) for row in range(len(names.ids))] or len(set(keys["id"][0])) < len(answers):
        del keys["id"]  # rows for want of ids, or not an id each
    nearest: list[tuple[int, str]] = []
    for what, (given, wanted) in keys.items():
        known = set(given)
        missing = [name for name in wanted if name not in known]
        if not missing:
            if len(answers) > len(wanted):
                note(f"{path}: {len(wanted):,} of its {len(answers):,} queries are those of {truth}, by {what}")
            return list(_in_order(answers, given, wanted))
        if len(missing) < len(wanted):
            there = f"has {len(wanted) - len(missing):,} of the {len(wanted):,} queries of {truth}, by {what}"
            nearest.append((len(missing), f"{there}; the first that is missing: {_shown(missing[0])}"))
    if nearest:
        raise DataError(Problem(str(path), min(nearest)[1]))
    placed = _by_row(path, answers, len(names.texts), truth)
    if None not in texts:
        note(f"{path}: its texts are not those of {truth}; queries are matched by row")
    return placed


def _in_order(answers: Sequence[Answer], given: Sequence[str | None], wanted: Sequence[str]) -> Iterator[Answer]:
    """The answer of each wanted query; queries of one name take theirs in turn."""
    by_name: dict[str | None, list[Answer]] = defaultdict(list)
    for name, answer in zip(given, answers, strict=True):
        by_name[name].append(answer)
    taken: dict[str, int] = defaultdict(int)
    for name in wanted:
        some = by_name[name]
        yield some[min(taken[name], len(some) - 1)]
        taken[name] += 1


def _by_row(path: Path, answers: list[Answer], rows: int, truth: str) -> list[Answer]:
    """The answers in the order of their rows, or of the file if it has none."""
    if len(answers) != rows:
        raise DataError(Problem(str(path), f"has {len(answers):,} queries, but {truth} has {rows:,}"))
    if all(answer.row is None for answer in answers):
        return answers
    by_row = {answer.row: answer for answer in answers}
    if set(by_row) != set(range(rows)):
        absent = next(row for row in range(rows) if row not in by_row)
        raise DataError(Problem(str(path), f"its rows are not 0 to {rows - 1}, each once", f"row {absent} is missing"))
    return [by_row[row] for row in range(rows)]


# Labels


def _label_ids(path: Path, answers: Sequence[Answer], labels: int, names: Names | None, truth: str) -> list[list[int]]:
    """The label indices of each answer: by name where the names of labels are known."""
    of_name: dict[str, list[int]] = defaultdict(list)
    for place, known in enumerate(names.labels if names else ()):
        of_name[known].append(place)
    wrong: dict[str, dict[str, int]] = {"unknown": {}, "ambiguous": {}, "range": {}, "unnamed": {}}  # first lines
    found = []
    for answer in answers:
        row = []
        for number, name in zip(answer.labels, answer.names, strict=True):
            label, kind = _label_id(number, name, of_name if names else None, labels)
            if kind:
                wrong[kind].setdefault(str(number) if kind == "range" else name or "", answer.line)
            else:
                row.append(label)
        found.append(row)
    reasons = {
        "unknown": (f"not labels of {truth}", "predictions must be for the labels of the data"),
        "ambiguous": (f"names of several labels of {truth}", "add a column 'label' with their numbers"),
        "range": (f"not numbers of labels: {truth} has {labels:,}, counted from 0", ""),
        "unnamed": ("names of labels, which --truth does not have", "score with data=NAME"),
    }
    problems = [
        Problem(f"{path}:{min(lines.values())}", f"{_several(lines)}: {reasons[kind][0]}", reasons[kind][1])
        for kind, lines in wrong.items()
        if lines
    ]
    if problems:
        raise DataError(*problems)
    return found


def _label_id(
    number: int | None, name: str | None, of_name: dict[str, list[int]] | None, labels: int
) -> tuple[int, str]:
    """The index of a label; or what is wrong with it, which is otherwise empty."""
    if of_name is not None and name is not None:
        ids = of_name.get(name, [])
        if len(ids) == 1 or (number is not None and number in ids):
            return ids[0] if len(ids) == 1 else int(number or 0), ""
        return -1, "ambiguous" if ids else "unknown"
    if number is None:
        return -1, "unnamed"
    return number, "" if 0 <= number < labels else "range"


def _several(names: dict[str, int]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(_shown, list(names)[:SHOWN])) + more


def _shown(name: str) -> str:
    return repr(name[:LONGEST]) + ("…" if len(name) > LONGEST else "")
