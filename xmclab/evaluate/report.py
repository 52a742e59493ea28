"""The table that ends a run."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@5", "R@10", "R@100")

Scores = Mapping[str, Mapping[str, float]]  # row name -> metric name -> percent


def print_table(console: Console, title: str, searches: Scores, baselines: Scores) -> None:
    """One row per search of the model and per baseline; the best of each column stands out."""
    rows = {**baselines, **searches}
    columns = [name for name in COLUMNS if any(name in row for row in rows.values())]
    best = {column: max(row.get(column, 0.0) for row in rows.values()) for column in columns}
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("search", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        cells = [f"{row[c]:.2f}" if c in row else "" for c in columns]
        marked = [f"[bold]{cell}[/]" if row.get(c) == best[c] else cell for c, cell in zip(columns, cells, strict=True)]
        table.add_row(name, *marked, end_section=name == list(baselines)[-1] if baselines else False)
    console.print(table)
