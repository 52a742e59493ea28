"""`xmclab data`: inspect a data set before training on it, and convert it."""

from __future__ import annotations

import contextlib
import enum
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from xmclab.cli.common import Json, note, print_json
from xmclab.system import messages

if TYPE_CHECKING:
    from xmclab.api import Dataset, Reader
    from xmclab.host import Config
    from xmclab_datatools.write import Contents

# Commands import what they need when they run, so that --help does not wait for torch.
app = typer.Typer(
    help="Check, describe, convert and split data sets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Source = Annotated[str, typer.Argument(metavar="DATA", help="A folder, a table, or the name of a known set.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="As for `run`: reader.text=title+content, reader.labels=tags."),
]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write, new or empty.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]


@app.command()
def check(source: Source, overrides: Overrides = None, as_json: Json = False) -> None:
    """Validate everything and report all problems: xmclab data check my.csv"""
    from xmclab.errors import DataError
    from xmclab_datatools import show
    from xmclab_datatools.stats import remarks, statistics

    config = _config(source, overrides)
    found: dict[str, Any] = {"data": source, "reader": "", "ok": False, "problems": [], "warnings": [], "notes": []}
    try:
        with messages.kept("xmclab.data") as records:
            found["reader"], data = _open(config)
        stats = statistics(data)
        found |= {"ok": True, "sizes": _sizes(stats), "same_text": _same_text(stats)}
        found["warnings"] = [*_messages(records, logging.WARNING), *remarks(stats)]
        found["notes"] = _messages(records, logging.INFO)
    except DataError as error:
        found["problems"] = [vars(problem) for problem in error.problems]
        if as_json:
            print_json(found)
        raise
    print_json(found) if as_json else show.print_check(found)


@app.command()
def stats(
    source: Source,
    overrides: Overrides = None,
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Plot the label frequency curve.")] = None,
) -> None:
    """Describe a data set (sizes, frequencies, words): xmclab data stats debian"""
    from xmclab.system.files import storage_errors
    from xmclab_datatools import show
    from xmclab_datatools import stats as numbers

    data = _open(_config(source, overrides))[1]
    found = numbers.statistics(data)
    if plot is not None:
        with storage_errors(str(plot)):
            numbers.plot(data, plot)
        note(f"{plot}: label frequency curve")
    print_json(found) if as_json else show.print_statistics(found)


class Layout(enum.StrEnum):
    """Layouts that `convert` writes, named after their readers."""

    lf_json = enum.auto()
    raw_text = enum.auto()
    dexml = enum.auto()
    pecos = enum.auto()
    table = enum.auto()


@app.command()
def convert(
    source: Source,
    out: Out,
    overrides: Overrides = None,
    to: Annotated[Layout, typer.Option(help="Layout to write.")] = Layout.lf_json,
    as_json: Json = False,
) -> None:
    """Write a data set in another layout: xmclab data convert my.csv my-set --to lf_json"""
    from xmclab.data import with_reader
    from xmclab.system.files import new_folder
    from xmclab_datatools.write import HOLD_CONTENTS, NO_CONTENTS, WRITERS

    config = with_reader(_config(source, overrides))
    reader: Reader = config.make("reader")
    titles = reader.text_of("query") == reader.text_of("label") == "title"
    if not titles and to not in HOLD_CONTENTS:
        data, contents = _open(config)[1], NO_CONTENTS
    else:
        data, contents = _open_with_contents(config)
    with new_folder(out) as folder:
        WRITERS[to](folder, data, contents)
    _print_written(out, _split_sizes(data), as_json)


def _share(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"must be above 0 and below 1, not {value:g}.")
    return value


@app.command()
def split(
    source: Source,
    out: Out,
    overrides: Overrides = None,
    test_share: Annotated[
        float, typer.Option(callback=_share, help="Fraction of queries in the test set, above 0 and below 1.")
    ] = 0.2,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Resplit all queries into training and test, with filter files: xmclab data split my.csv my-set --seed 1"""
    from xmclab.data import with_reader
    from xmclab.system.files import new_folder
    from xmclab_datatools.resplit import resplit
    from xmclab_datatools.write import write_lf_json

    data, contents = resplit(*_open_with_contents(with_reader(_config(source, overrides))), test_share, seed)
    with new_folder(out) as folder:
        write_lf_json(folder, data, contents)
    _print_written(out, _split_sizes(data), as_json)


def _config(source: str, overrides: list[str] | None) -> Config:
    """The data config, from the keys that `run` takes."""
    from xmclab.host import default_registry, resolve

    return resolve(["baseline=none", *(overrides or []), f"data={source}"], default_registry())


def _open(config: Config) -> tuple[str, Dataset]:
    """(name of the reader, data set); anything a reader prints goes to stderr."""
    from xmclab.data import open_data, with_reader
    from xmclab.system.console import Console
    from xmclab.system.progress import working

    reading = working(Console(file=sys.stderr), f"reading {config.settings.data.source}")
    with contextlib.redirect_stdout(sys.stderr), reading:
        config = with_reader(config)
        return config.choice("reader") or "", open_data(config)


def _open_with_contents(config: Config) -> tuple[Dataset, Contents]:
    """The data set with titles as texts, and the other text fields; the reader is already known."""
    from xmclab_datatools.write import with_contents

    for own in ("query_text", "label_text"):
        config = config.with_option("reader", own, None)

    def read(text: Literal["title", "title+content"]) -> Dataset:
        # Do not repeat the same warnings.
        with contextlib.nullcontext() if text == "title" else messages.kept("xmclab.data"):
            return _open(config.with_option("reader", "text", text))[1]

    return with_contents(read)


def _split_sizes(data: Dataset) -> dict[str, int]:
    return {"training_queries": len(data.train), "test_queries": len(data.test), "labels": data.num_labels}


def _print_written(out: Path, sizes: dict[str, int], as_json: bool) -> None:
    from xmclab_datatools import show

    print_json({"out": str(out), "sizes": sizes}) if as_json else show.print_written(out, sizes)


def _sizes(stats: dict[str, Any]) -> dict[str, int]:
    return {
        "training_queries": stats["train"]["queries"],
        "test_queries": stats["test"]["queries"],
        "labels": stats["labels"]["number"],
        "pairs": stats["train"]["pairs"] + stats["test"]["pairs"],
        "filter_pairs": stats["train"]["filter_pairs"] + stats["test"]["filter_pairs"],
    }


def _same_text(stats: dict[str, Any]) -> dict[str, int]:
    """Queries that have the text of a label: all; those that list it as true; those that keep it without listing it.

    And pairs of both that are left out.
    """
    keys = {"queries": "texts_of_labels"}
    keys |= {"listed": "own_labels_listed", "left_out": "own_labels_left_out", "kept": "own_labels_unlisted"}
    return {name: stats["train"][key] + stats["test"][key] for name, key in keys.items()}


def _messages(records: list[logging.LogRecord], level: int) -> list[str]:
    return [record.getMessage() for record in records if record.levelno == level]
