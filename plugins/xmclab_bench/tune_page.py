"""The page of a study: what was tried, what mattered, and what more trials would bring."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from xmclab import __version__
from xmclab_bench.curves import tuning_curve
from xmclab_bench.study import GIVEN, REASON, STARTUP, drawn_by, ended

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from xmclab_bench.tune import Tuned

COLOUR, OTHER = "#0072b2", "#d55e00"
ENOUGH = 4  # complete trials, before importances mean anything


def tune_page(tuned: Tuned, run: str) -> str:
    """The page, with its charts inside; nothing is fetched.

    Args:
        run: the folder of the run that was trained with the best settings, empty without one.
    """
    trials, metric = ended(tuned.study), tuned.question.metric
    css = (resources.files("xmclab_bench") / "page" / "page.css").read_text(encoding="utf-8")
    verdict = (
        f"Best of {len(trials)} trials: {metric} {tuned.best.value:.2f} on the validation queries, by trial "
        f"{tuned.best.number}."
    )
    asked = " ".join(text for text in tuned.question.base if not text.startswith("validate."))
    sections = [
        (
            "The best settings",
            f"<pre class=wrapped>{escape(tuned.command)}</pre>" + (f"<p>Trained: {escape(run)}</p>" if run else ""),
        ),
        ("History", _svg(lambda axes: _history(axes, trials, metric))),
        ("What mattered", _important(tuned, trials)),
        ("What more trials bring", _more(trials, metric)),
        ("All trials", _table(tuned, trials)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections if text)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(tuned.question.name)}</title>'
        f'<meta name="generator" content="xmclab {__version__}"><style>{css}</style></head><body>'
        f"<header><h1>{escape(verdict)}</h1><p>{escape(asked)}</p></header><main>{body}</main>"
        f"<footer>Made by xmclab {__version__}. The scores are of validation queries; the best of many is a little "
        "too good for other queries.</footer></body></html>\n"
    )


def _svg(draw: Any) -> str:
    """A chart as SVG, for a page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    draw(figure.add_subplot())
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()[stream.getvalue().index("<svg") :]


def _history(axes: Axes, trials: Sequence[FrozenTrial], metric: str) -> None:
    complete = {trial.number: trial.value or 0.0 for trial in trials if trial.state == TrialState.COMPLETE}
    axes.plot(list(complete), list(complete.values()), "o", color=COLOUR, label="trial")
    axes.step(list(complete), list(accumulate(complete.values(), max)), where="post", color=OTHER, label="best so far")
    pruned = {trial.number: trial.intermediate_values for trial in trials if trial.state == TrialState.PRUNED}
    last = {number: list(values.values())[-1] for number, values in pruned.items() if values}
    if last:
        axes.plot(list(last), list(last.values()), "x", color="#7f7f7f", label="pruned, its last epoch")
    axes.set_xlabel("trial")
    axes.set_ylabel(metric)
    axes.legend()


def importances(tuned: Tuned) -> Mapping[str, float]:
    """How much each option decided whether a trial was a good one, adding up to 1; empty with too few trials."""
    complete = [trial for trial in ended(tuned.study) if trial.state == TrialState.COMPLETE]
    if len(complete) < ENOUGH:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that all trials are alike, which their equal shares show
        return get_param_importances(tuned.study, evaluator=PedAnovaImportanceEvaluator())


def _important(tuned: Tuned, trials: Sequence[FrozenTrial]) -> str:
    found = importances(tuned)
    if not found:
        return f"<p>Too few complete trials to tell ({ENOUGH} are needed).</p>"

    def draw(axes: Axes) -> None:
        axes.barh(list(found)[::-1], list(found.values())[::-1], color=COLOUR)
        axes.set_xlabel(f"share in what made a trial good, of {len(trials)} trials: a hint, not a measurement")

    return _svg(draw)


def _more(trials: Sequence[FrozenTrial], metric: str) -> str:
    """The tuning curve of the first trials, which are random and so have an exact band."""
    random = [trial for trial in trials if GIVEN not in trial.user_attrs][: STARTUP - 1]
    scores = [trial.value if trial.state == TrialState.COMPLETE else None for trial in random]
    curve = tuning_curve(scores)
    if len(curve) < 2:
        return ""

    def draw(axes: Axes) -> None:
        n = [point["n"] for point in curve]
        known = [point["median"] for point in curve]
        low = [point["low"] if point["low"] is not None else min(known) for point in curve]
        high = [point["high"] if point["high"] is not None else max(known) for point in curve]
        axes.fill_between(n, low, high, color=COLOUR, alpha=0.15, label="95 % band; open where it reaches the frame")
        axes.plot(n, known, color=COLOUR, label="median best of n random trials")
        axes.set_xlabel("random trials")
        axes.set_ylabel(metric)
        axes.legend()

    return _svg(draw)


def _table(tuned: Tuned, trials: Sequence[FrozenTrial]) -> str:
    axes = tuned.question.axes
    head = "".join(
        f"<th>{escape(name)}</th>" for name in ("trial", tuned.question.metric, *(axis.key for axis in axes))
    )
    rows = []
    for trial in trials:
        drawn = drawn_by(trial, axes)
        outcome = f"{trial.value:.2f}" if trial.value is not None and trial.state == TrialState.COMPLETE else ""
        told = outcome or escape(trial.user_attrs.get(REASON, trial.state.name.lower()))
        cells = [str(trial.number), told, *(escape(drawn.get(axis.key, "")) for axis in axes)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
