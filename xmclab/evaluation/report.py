"""Tables of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from xmclab.evaluation.scoring import GroupScores
from xmclab.evaluation.scoring import Scores as FullScores
from xmclab.system.console import plain
from xmclab.system.terminal import printable

UNBOUNDED = 10_000  # columns
Scores = Mapping[str, Mapping[str, float]]  # row name -> metric name -> percent


def columns_of(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The metrics to show: P and PSP at every cut-off, nDCG at the deepest, then R."""
    names = dict.fromkeys(name for row in rows for name in row)
    of_kind = {kind: [name for name in names if name.startswith(f"{kind}@")] for kind in ("P", "PSP", "nDCG", "R")}
    return [*of_kind["P"], *of_kind["PSP"], *of_kind["nDCG"][-1:], *of_kind["R"]]


def print_table(
    console: Console,
    title: str,
    searches: Scores,
    baselines: Scores,
    subtitle: str = "",
    reported: Scores | None = None,
) -> None:
    """One row per search of the model and per baseline, the best of each column highlighted; then what was reported."""
    title = "\n".join(filter(None, (title, subtitle)))
    columns = columns_of([*baselines.values(), *searches.values()])
    reported = reported or {}
    tables = [_table(title, columns, searches, baselines, reported)]
    unbounded = console.options.update(max_width=UNBOUNDED)
    if (
        console.measure(tables[0], options=unbounded).maximum > console.width
    ):  # then the propensity-scored ones follow on their own
        scored = [name for name in columns if name.startswith("PS")]
        rest = [name for name in columns if name not in scored]
        tables = [_table(name, some, searches, baselines, reported) for name, some in ((title, rest), ("", scored))]
    for table in tables:
        console.print(table)


def _table(title: str, columns: Sequence[str], searches: Scores, baselines: Scores, reported: Scores) -> Table:
    rows = {**baselines, **searches}
    best = {column: max(row.get(column, 0.0) for row in rows.values()) for column in columns}
    heading = "\n".join(map(plain, title.splitlines())) or None
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("search", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        cells = [f"{row[c]:.2f}" if c in row else "" for c in columns]
        marked = [f"[bold]{cell}[/]" if row.get(c) == best[c] else cell for c, cell in zip(columns, cells, strict=True)]
        last = bool(baselines) and name == list(baselines)[-1]
        table.add_row(plain(name), *marked, end_section=last or name == list(rows)[-1])
    for name, row in reported.items():
        table.add_row(plain(name), *(f"{row[c]:.2f}" if c in row else "" for c in columns), style="dim")
    return table


def print_scores(console: Console, title: str, scores: FullScores) -> None:
    """The metrics with their intervals, then what the labels of each group contribute to them."""
    columns = columns_of([scores.metrics])
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
