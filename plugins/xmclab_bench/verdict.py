"""What a comparison found, in words: a pure function of its document.

In every column, search and metric, the row with the highest mean is tested against the others (Holm's correction over
those tests): rows that do not differ from it are tied with it. The tied rows are then tested against each other and
against the rest (Holm's correction over those), since a tie with the highest row says nothing about other pairs.

With tuned rows, a significant lead on the test queries is not enough: the row must also lead in the trials, or it may
only have had better luck in its search. It does if the bands of the tuning curves are apart after some number of
trials, and never the other way round; or, where both rows tried the same settings, if it was ahead in so many of those
that a fair coin would hardly do it (sign test). Variation between seeds is unknown with a single seed, so nothing is
called better then.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scipy.stats import binomtest

from xmclab_bench.statistics import Difference, holm

FEW_STEPS = 10  # of a run: as many do not train a model
SIGNIFICANT = 0.05
MOST_NAMED = 4  # differences listed one by one; more become one range

Status = Literal["better", "luck", "reversed", "tied"]
ENDINGS: Mapping[Status, str] = {
    "better": "",
    "luck": " on the test queries, but not clearly in {} trials: it may only have been luckier in its search",
    "reversed": " on the test queries, but behind in the bands of {} trials",
    "tied": "",
}


def judged(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its verdicts, and with bold numbers that agree with them."""
    every = [
        _verdict(document, column, search, metric)
        for column in dict.fromkeys(row["column"] for row in document["rows"])
        for search in dict.fromkeys(row["search"] for row in document["rows"])
        for metric in document["metrics"]
    ]
    found = [each.document for each in every]
    best = {(each["best"], each["column"], each["search"], each["metric"]) for each in found}
    rows = [
        {
            **row,
            "metrics": {
                metric: {**value, "best": (row["name"], row["column"], row["search"], metric) in best}
                for metric, value in row["metrics"].items()
            },
        }
        for row in document["rows"]
    ]
    return {**document, "rows": rows, "verdicts": found, "verdict": _headline(document, every)}


@dataclass(frozen=True)
class _Verdict:
    """The verdict on one place."""

    document: Mapping[str, Any]
    rows: frozenset[str]  # that were compared
    better: frozenset[tuple[str, str]]  # a row, and one that it is better than
    compared: str  # how the rows compare, in words; the sentences of the document add reservations


def _headline(document: Mapping[str, Any], verdicts: Sequence[_Verdict]) -> dict[str, Any]:
    """Of the first metric, in the search that most rows have; the last of those. A last line has other searches."""
    metric = next(iter(document["metrics"]), "")
    having = Counter(row["search"] for row in document["rows"] if metric in row["metrics"])
    search = max(reversed(having), key=having.__getitem__, default="")
    of_metric = [each for each in verdicts if each.document["metric"] == metric]
    shown = {each.document["column"]: each for each in of_metric if each.document["search"] == search}
    sentences = [sentence for each in shown.values() for sentence in each.document["sentences"]]
    differing = [each for each in of_metric if _differs(each, shown[each.document["column"]])]
    if differing:
        more = len(differing) - MOST_NAMED
        further = [f"{more} more verdict{'s' if more > 1 else ''} differ{'' if more > 1 else 's'}."] if more > 0 else []
        told = (each.compared for each in differing[:MOST_NAMED])
        sentences.append(" ".join(["Other searches differ.", *told, *further]))
    return {"search": search, "metric": metric, "sentences": sentences or ["There are no results to compare yet."]}


def _differs(verdict: _Verdict, shown: _Verdict) -> bool:
    """Whether other rows are better than others, of those that both verdicts compare."""
    rows = verdict.rows & shown.rows
    ours, theirs = ({pair for pair in each.better if rows.issuperset(pair)} for each in (verdict, shown))
    return ours != theirs


@dataclass(frozen=True)
class _Place:
    """The rows of a column and search in one metric."""

    rows: Mapping[str, Mapping[str, Any]]  # by name, the highest mean first
    differences: Mapping[tuple[str, str], Difference]  # both ways round
    bands: Mapping[str, Mapping[int, tuple[float, float]]]  # of tuned rows, by the number of trials
    scores: Mapping[str, Mapping[str, float]]  # of tuned rows, by the settings of a trial
    trials: int
    outside: Mapping[tuple[str, str], Difference]  # of a row and the predictions of another program

    def significant(self, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """The pairs that differ, the higher row first; Holm's correction is over the given pairs."""
        tested = [pair for pair in pairs if pair in self.differences]
        corrected = holm([self.differences[pair].p for pair in tested])
        apart = [pair for pair, p in zip(tested, corrected, strict=True) if p < SIGNIFICANT]
        return {(a, b) if self.differences[a, b].value > 0 else (b, a) for a, b in apart}

    def confirmed(self, a: str, b: str) -> Status:
        """What tuning makes of a significant lead."""
        if a not in self.bands or b not in self.bands:
            return "better"
        ours, theirs = self.bands[a], self.bands[b]
        shared = ours.keys() & theirs.keys()
        if any(theirs[n][0] > ours[n][1] for n in shared):
            return "reversed"
        if any(ours[n][0] > theirs[n][1] for n in shared):
            return "better"
        return "better" if _mostly_ahead(self.scores[a], self.scores[b]) else "luck"

    def span(self, pairs: Sequence[tuple[str, str]]) -> str:
        """From the lowest to the highest end of the intervals."""
        low = min(self.differences[pair].low for pair in pairs)
        high = max(self.differences[pair].high for pair in pairs)
        digits = 1 if min(abs(low), abs(high)) >= 0.1 else 2
        return f"{low:z.{digits}f} to {high:z.{digits}f}"


def _mostly_ahead(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Whether a row was ahead in most trials of the same settings: a sign test, without ties."""
    apart = [ours[settings] - theirs[settings] for settings in ours.keys() & theirs.keys()]
    ahead, behind = sum(value > 0 for value in apart), sum(value < 0 for value in apart)
    return ahead > behind and bool(binomtest(ahead, ahead + behind).pvalue < SIGNIFICANT)


def _verdict(document: Mapping[str, Any], column: str, search: str, metric: str) -> _Verdict:
    """The verdict on one place: its highest row, the best row if there is one, and the sentences."""
    place = _place(document, column, search, metric)
    tested = [name for name in place.rows if any(name in pair for pair in place.differences)]
    leader, best = next(iter(tested or place.rows), None), None
    rows: frozenset[str] = frozenset()
    better: frozenset[tuple[str, str]] = frozenset()
    single = [name for name, row in place.rows.items() if row["sd"] is None]
    if leader is None:
        told = []
    elif len(place.rows) == 1:
        told = [f"{_told(leader)} is the only row"]
    elif single:
        seeds = "one seed" if len(single) == len(place.rows) else f"one seed of {in_words(single)}"
        told = [f"{_highest(place, leader)}, but with {seeds} nothing can be called better"]
    elif not tested:
        told = [f"{_highest(place, leader)}, but the rows were not tested against each other"]
    else:
        rows = frozenset(tested)
        best, better, told = _compared(place, tested)
    compared = len(told)
    if told:
        where = f"{document['columns'] or 'column'}={column}, " if column else ""
        others = () if single or leader is None else _beside(place, leader)
        reservations = _reservations(document, place, tested, column)
        told = [f"{where}{metric} of {search}: {told[0]}", *told[1:], *others, *reservations]
    sentences = [f"{text}." for text in told]
    found = {
        "column": column,
        "search": search,
        "metric": metric,
        "leader": leader,
        "best": best,
        "sentences": sentences,
    }
    return _Verdict(found, rows, better, " ".join(sentences[:compared]))


def _place(document: Mapping[str, Any], column: str, search: str, metric: str) -> _Place:
    rows = {
        row["name"]: row["metrics"][metric]
        for row in document["rows"]
        if (row["column"], row["search"]) == (column, search) and metric in row["metrics"]
    }
    differences: dict[tuple[str, str], Difference] = {}
    outside: dict[tuple[str, str], Difference] = {}
    for test in document["tests"]:
        if (test["column"], test["search"], test["metric"]) == (column, search, metric):
            a, b, value, low, high, p = (test[key] for key in ("a", "b", "value", "low", "high", "p"))
            found = differences if b in rows else outside
            found[a, b] = Difference(value, low, high, p)
            found[b, a] = Difference(-value, -high, -low, p)
    tuning = document.get("tuning") or {"trials": 0, "rows": []}
    bands = {
        row["name"]: {
            point["n"]: (
                -math.inf if point["low"] is None else point["low"],
                math.inf if point["high"] is None else point["high"],
            )
            for point in row["curve"]
        }
        for row in tuning["rows"]
        if row["column"] == column
    }
    scores = {
        row["name"]: {
            settings: score
            for settings, score in zip(map(json.dumps, row.get("draws", ())), row["scores"], strict=False)
            if score is not None
        }
        for row in tuning["rows"]
        if row["column"] == column
    }
    ordered = dict(sorted(rows.items(), key=lambda item: -item[1]["mean"]))
    return _Place(ordered, differences, bands, scores, tuning["trials"], outside)


def _compared(place: _Place, tested: Sequence[str]) -> tuple[str | None, frozenset[tuple[str, str]], list[str]]:
    """The best row, if one is better than every other; pairs of a better row and another; and all that in words."""
    leader, *others = tested
    ahead = place.significant([(leader, other) for other in others])
    rest = [other for other in others if (leader, other) in ahead]
    group = [leader, *(other for other in others if other not in rest)]
    ahead |= place.significant([*itertools.combinations(group[1:], 2), *itertools.product(group[1:], rest)])
    patterns: dict[tuple[Status, ...], list[str]] = {}
    for other in rest:
        pattern = tuple(place.confirmed(row, other) if (row, other) in ahead else "tied" for row in group)
        patterns.setdefault(pattern, []).append(other)
    better: Status = "better"
    clear = (better,) * len(group)
    told = _tied(place, group, [pair for pair in itertools.permutations(group, 2) if pair in ahead], bool(rest))
    for pattern in sorted(patterns, key=lambda pattern: pattern != clear):
        told.append(_behind(place, group, pattern, patterns[pattern]))
    if len(group) > 1 and clear in patterns:
        told[:2] = [f"{told[0]}; {told[1]}"]
    best = len(group) == 1 and len(patterns.get(clear, ())) == len(place.rows) - 1
    confirmed = frozenset(pair for pair in ahead if place.confirmed(*pair) == better)
    return leader if best else None, confirmed, told


def _highest(place: _Place, leader: str) -> str:
    """The rows with the highest mean, as it is shown."""
    shown = {name: f"{row['mean']:.2f}" for name, row in place.rows.items()}
    best = [name for name in shown if shown[name] == shown[leader]]
    if len(best) == len(shown) > MOST_NAMED:
        return f"all {len(best)} rows are tied at {shown[leader]}"
    return f"{in_words(best)} {'has' if len(best) == 1 else 'tie for'} the highest, {shown[leader]}"


def _tied(place: _Place, group: Sequence[str], ahead: Sequence[tuple[str, str]], others: bool) -> list[str]:
    """The rows that cannot be told apart from the first of them; pairs of them may still differ."""
    leader, *tied = group
    if not tied:
        return []
    if ahead:
        differ = _names([f"{_told(a)} is ahead of {_told(b)}" for a, b in ahead])
        return [f"{in_words(tied)} cannot be told apart from {_told(leader)}, though {differ}"]
    if others:
        return [f"{in_words(group)} cannot be told apart"]
    span = place.span([(leader, other) for other in tied])
    minus = f"{_told(leader)} minus {_told(tied[0]) if len(tied) == 1 else 'the others'}"
    return [f"{in_words(group)} cannot be told apart: {minus} is {span} points (95 % interval)"]


def _behind(place: _Place, group: Sequence[str], pattern: Sequence[Status], behind: Sequence[str]) -> str:
    """How the tied rows stand to rows that the first of them is ahead of."""
    clauses = []
    for status, ending in ENDINGS.items():
        rows = [row for row, other in zip(group, pattern, strict=True) if other == status]
        if rows and status == "tied":
            them = _told(behind[0]) if len(behind) == 1 else "them"
            which = in_words(rows) if len(rows) <= MOST_NAMED else f"the other {len(rows)}"
            clauses.append(f"{which} cannot be told apart from {them}")
        elif rows:
            each = "each is" if 1 < len(rows) == len(group) else f"{in_words(rows)} {'is' if len(rows) == 1 else 'are'}"
            others = len(place.rows) - len(group)
            whole = f"{'every other row' if len(group) == 1 else f'the other {others} rows'}"
            named = _by(place, rows, behind, whole if len(behind) == others else in_words(behind))
            clauses.append(
                f"{each} {'better than' if status == 'better' else 'ahead of'} {named}{ending.format(place.trials)}"
            )
    return "; ".join(clauses)


def _by(place: _Place, rows: Sequence[str], behind: Sequence[str], all_of_them: str) -> str:
    """The rows behind, and by how much."""
    if len(behind) == 1:
        return f"{_told(behind[0])}, by {place.span([(row, behind[0]) for row in rows])} points (95 % interval)"
    if len(behind) > MOST_NAMED:
        return f"{all_of_them}, by {place.span(list(itertools.product(rows, behind)))} points (95 % intervals)"
    spans = [f"{_told(other)} by {place.span([(row, other) for row in rows])}" for other in behind]
    return f"{_names(spans)} points (95 % intervals)"


def _beside(place: _Place, leader: str) -> Iterator[str]:
    """How the predictions of other programs stand to the highest row."""
    pairs = [pair for pair in place.outside if pair[0] == leader]
    for pair, p in zip(pairs, holm([place.outside[pair].p for pair in pairs]), strict=True):
        value, name = place.outside[pair].value, _told(pair[1])
        if p >= SIGNIFICANT:
            yield f"The predictions {name} cannot be told apart from {_told(leader)}"
        else:
            found = place.outside[pair if value > 0 else pair[::-1]]
            where = "behind" if value > 0 else "ahead of"
            span = f"{found.low:z.1f} to {found.high:z.1f} points (95 % interval)"
            yield f"The predictions {name} are {where} {_told(leader)}, by {span}"


def _reservations(document: Mapping[str, Any], place: _Place, tested: Sequence[str], column: str) -> Iterator[str]:
    """Rows that the verdict leaves out, or that were not treated like the others."""
    groups = [group for group in document["groups"] if group["column"] == column]
    states = {group["name"]: group["state"] for group in groups}
    if unfinished := [name for name, state in states.items() if state != "finished"]:
        yield f"Not finished: {in_words(unfinished)}"
    if tested and (untested := [name for name in place.rows if name not in (*tested, *unfinished)]):
        yield f"Not tested: {in_words(untested)}"
    if place.bands and (untuned := [name for name in place.rows if name not in place.bands]):
        yield f"Not tuned: {in_words(untuned)}"
    ended = [group for group in groups if group["state"] == "finished"]
    short = {group["name"]: group["steps"] for group in ended if 0 < group.get("steps", 0) < FEW_STEPS}
    if short:
        which = "All rows" if len(short) == len(groups) else in_words(list(short))
        most = max(short.values())
        yield f"{which} trained for at most {most} steps, too few to tell: lower sampler.batch_size or raise epochs"
    cells = Counter(left["name"] for left in document["left_out"] if left["column"] == column)
    if cells:
        counts = [f"{_told(name)} ({count} cell{'s' if count > 1 else ''})" for name, count in cells.items()]
        yield f"Missing: {_names(counts)}"


def in_words(names: Sequence[str]) -> str:
    """The names of rows, as a sentence has them."""
    return _names([_told(name) for name in names])


def _names(names: Sequence[str]) -> str:
    """`A, B and C`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _told(name: str) -> str:
    """The name of a row, in quotes if it could be taken for several."""
    return f'"{name}"' if {",", ";"} & set(name) or " and " in name else name
