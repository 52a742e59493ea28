"""Tables of metrics."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from xmclab.evaluation.scoring import GroupScores
from xmclab.evaluation.scoring import Scores as FullScores
from xmclab.system.console import plain
from xmclab.system.terminal import printable

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@5", "R@10", "R@100")

Scores = Mapping[str, Mapping[str, float]]  # row name -> metric name -> percent


def print_table(
    console: Console, title: str, searches: Scores, baselines: Scores, reported: Scores | None = None
) -> None:
    """One row per search of the model and per baseline, the best of each column highlighted; then what was reported."""
    rows = {**baselines, **searches}
    columns = [name for name in COLUMNS if any(name in row for row in rows.values())]
    best = {column: max(row.get(column, 0.0) for row in rows.values()) for column in columns}
    table = Table(title=plain(title), title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("search", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        cells = [f"{row[c]:.2f}" if c in row else "" for c in columns]
        marked = [f"[bold]{cell}[/]" if row.get(c) == best[c] else cell for c, cell in zip(columns, cells, strict=True)]
        last = bool(baselines) and name == list(baselines)[-1]
        table.add_row(plain(name), *marked, end_section=last or name == list(rows)[-1])
    for name, row in (reported or {}).items():
        table.add_row(plain(name), *(f"{row[c]:.2f}" if c in row else "" for c in columns), style="dim")
    console.print(table)


def print_scores(console: Console, title: str, scores: FullScores) -> None:
    """The metrics with their intervals, then what the labels of each group contribute to them."""
    columns = [name for name in COLUMNS if name in scores.metrics]
    console.print(printable(title), highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("labels", no_wrap=True)
    for column in ("number", *columns):
        table.add_column(column, justify="right", no_wrap=True)

    def cells(values: Mapping[str, float]) -> list[str]:
        return [f"{values[column]:.2f}" for column in columns]

    table.add_row("all", f"{scores.labels}", *cells(scores.metrics), style="bold", end_section=not scores.intervals)
    for end, name in enumerate(("95 % from", "95 % to") if scores.intervals else ()):
        values = {column: interval[end] for column, interval in scores.intervals.items()}
        table.add_row(name, "", *cells(values), style="dim", end_section=end == 1)
    groups: Mapping[str, GroupScores]
    for groups in (scores.bands, scores.deciles):
        for name, group in groups.items():
            table.add_row(plain(name), f"{group.labels}", *cells(group.metrics), end_section=name == list(groups)[-1])
    console.print(table)
