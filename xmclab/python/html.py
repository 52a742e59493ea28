"""Results in a notebook: a table and a curve, in plain HTML and SVG."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape

from xmclab.evaluation.report import columns_of
from xmclab.system.terminal import printable

WIDTH, HEIGHT = 320, 80  # pixels of a curve
POINTS = 320  # of a curve; more cannot be seen
CELL = 'style="text-align:right;padding:0 0.6em"'


def table_as_html(
    title: str, rows: Mapping[str, Mapping[str, float]], best: Collection[tuple[str, str]] | None = None
) -> str:
    """A row of metrics per name, with some of them in bold.

    Args:
        best: the names and columns of those; by default the highest of each column.
    """
    columns = columns_of(rows.values())
    if best is None:
        highest = {column: max(row.get(column, 0.0) for row in rows.values()) for column in columns}
        best = {
            (name, column) for name, row in rows.items() for column in columns if row.get(column) == highest[column]
        }
    head = "".join(f"<th {CELL}>{_text(column)}</th>" for column in columns)
    body = ""
    for name, row in rows.items():
        shown = {column: f"{row[column]:.2f}" if column in row else "" for column in columns}
        bold = {column: f"<b>{shown[column]}</b>" for column in columns if (name, column) in best}
        cells = "".join(f"<td {CELL}>{bold.get(column, shown[column])}</td>" for column in columns)
        body += f'<tr><th style="text-align:left">{_text(name)}</th>{cells}</tr>'
    return (
        f"<table><caption>{_text(title)}</caption><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def curves_as_html(steps: Sequence[int], loss: Sequence[float]) -> str:
    """The loss over the steps; nothing if there are too few."""
    if len(steps) < 2:
        return ""
    stride = -(-len(loss) // POINTS)
    means = [sum(some) / len(some) for some in (loss[at : at + stride] for at in range(0, len(loss), stride))]
    low, high = min(means), max(means)
    across, up = WIDTH / max(len(means) - 1, 1), HEIGHT / ((high - low) or 1.0)
    points = " ".join(f"{at * across:.1f},{HEIGHT - (value - low) * up:.1f}" for at, value in enumerate(means))
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}"'
    caption = f"loss {means[0]:.4g} to {means[-1]:.4g}, {len(steps)} steps"
    return f'<div><svg {size} role="img" aria-label="{caption}">{line}</svg><div>{caption}</div></div>'


def paragraphs(texts: Sequence[str]) -> str:
    """A paragraph per text."""
    return "".join(f"<p>{_text(text)}</p>" for text in texts)


def _text(text: str) -> str:
    return escape(printable(text))
