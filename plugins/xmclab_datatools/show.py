"""What `xmclab data` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from xmclab.data.propensity import HEAD_ABOVE, TAIL_UP_TO
from xmclab.system.console import Console, plain
from xmclab.system.terminal import printable


def print_check(found: dict[str, Any]) -> None:
    """Print a line for a valid data set, then its notes and warnings."""
    print(printable(f"{found['data']}: OK, read as {found['reader']}: {_sizes(found['sizes'])}"))
    for kind in ("note", "warning"):
        for line in found[f"{kind}s"]:
            print(printable(f"{kind}: {line}"))


def print_written(out: Path, sizes: dict[str, int]) -> None:
    """Print a line for a data set that was written."""
    print(printable(f"{out}: {_sizes(sizes)}"))


def _sizes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in sizes.items())


def print_statistics(stats: dict[str, Any]) -> None:
    """Print three tables: queries, labels, and both by label frequency."""
    console = Console(highlight=False)
    train, test, labels = stats["train"], stats["test"], stats["labels"]

    queries = _table(stats["name"], "", "train", "test")
    for key, value in test.items():
        queries.add_row(key.replace("_", " "), _text(train[key]) if key in train else "", _text(value))
    console.print(queries)

    about_labels = _table("", "labels", "")
    for key, value in labels.items():
        about_labels.add_row(key.replace("_", " "), _text(value))
    console.print(about_labels)

    bands = _table("", "training queries", "labels", "train pairs", "test pairs")
    limits = {"head": f"> {HEAD_ABOVE}", "torso": f"{TAIL_UP_TO + 1}-{HEAD_ABOVE}", "tail": f"0-{TAIL_UP_TO}"}
    totals = {"labels": labels["number"], "train_pairs": train["pairs"], "test_pairs": test["pairs"]}
    for name, band in stats["bands"].items():
        bands.add_row(f"{name} ({limits[name]})", *(_share(band[key], total) for key, total in totals.items()))
    console.print(bands)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=plain(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _text(value: Any) -> str:
    """A number, or the mean and the maximum."""
    if isinstance(value, dict):
        return f"{value['mean']:.2f} (max {value['max']:,})"
    if value is None:
        return "none"
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / max(whole, 1):.1f} %)"
