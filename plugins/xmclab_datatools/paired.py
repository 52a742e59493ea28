"""Predictions side by side: the paired test of `xmclab bench`, and what it says in words."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from xmclab.api import Ranking
from xmclab.errors import PluginError, Problem
from xmclab.evaluation.report import columns_of
from xmclab.evaluation.scoring import Evaluator
from xmclab.system.console import Console, plain

SIGNIFICANT = 0.05


def tested(rankings: Mapping[str, Ranking], evaluator: Evaluator, seed: int) -> list[dict[str, Any]]:
    """The difference of every two rankings in every metric that all have: `value`, 95 % interval `low` to `high`, `p`.

    With more than two, `p` is corrected over all pairs (Holm).

    Raises:
        PluginError: the plugin with the test is missing.
    """
    try:
        statistics = importlib.import_module("xmclab_bench.statistics")
    except ImportError as error:
        reason = f"cannot be imported: {error}"
        raise PluginError(Problem("xmclab_bench", reason, "it comes with xmclab: install the whole of it")) from error
    known = [evaluator.metrics(ranking) for ranking in rankings.values()]
    metrics = [name for name in known[0] if all(name in some for some in known)]
    if not metrics:
        return []
    points = {
        name: [statistics.Points(tuple(metrics), *evaluator.points(ranking, metrics))]
        for name, ranking in rankings.items()
    }
    found = list(statistics.differences(points, seed=seed))
    for metric in metrics:
        pairs = [each for each in found if each["metric"] == metric]
        for each, p in zip(pairs, statistics.holm([each["p"] for each in pairs]), strict=True):
            each["p"] = p
    return found


def verdict(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who is ahead in the first metric, by how much, and how sure that is: a sentence for each pair."""
    return [_sentence(each) for each in tests if each["metric"] == tests[0]["metric"]]


def _sentence(test: Mapping[str, Any]) -> str:
    a, b, value = test["a"], test["b"], test["value"]
    ends = test["low"], test["high"]
    if test["p"] >= SIGNIFICANT:
        sure = f"{_span(ends)}, p = {test['p']:.2g}"
        return f"{test['metric']}: {a} and {b} cannot be told apart: {a} minus {b} is {value:z.2f} points ({sure})."
    if value < 0:
        a, b, value, ends = b, a, -value, (-ends[1], -ends[0])
    return f"{test['metric']}: {a} is ahead of {b} by {value:.2f} points ({_span(ends)}, p = {test['p']:.2g})."


def _span(ends: tuple[float, float]) -> str:
    return f"95 % interval {ends[0]:z.2f} to {ends[1]:z.2f}"


def print_tests(console: Console, tests: Sequence[Mapping[str, Any]]) -> None:
    """The sentences, then the differences in all metrics that are usually shown."""
    for sentence in verdict(tests):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    shown = columns_of([{each["metric"]: 0.0 for each in tests}])
    pairs = list(dict.fromkeys((each["a"], each["b"]) for each in tests))
    by_place = {(each["a"], each["b"], each["metric"]): each for each in tests}
    for a, b in pairs:
        table = Table(
            title=plain(f"{a} minus {b}, in points"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=0,
            pad_edge=False,
        )
        table.add_column("")
        for metric in shown:
            table.add_column(metric, justify="right", no_wrap=True)
        rows = {"difference": "value", "95 % from": "low", "95 % to": "high", "p": "p"}
        for name, key in rows.items():
            digits = ".4f" if key == "p" else "+z.2f"
            table.add_row(name, *(format(by_place[a, b, metric][key], digits) for metric in shown))
        console.print(table)
