"""`xmclab predict` and `xmclab eval`: predictions of a trained model, and their metrics."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Device, Folder, Json, Plugin, Trust, data_keys, note, print_json, registry_with
from xmclab.cli.labels import AddLabels, add_labels, read_labels
from xmclab.errors import ConfigError, Problem
from xmclab.system.trust import trusting_remote_code

if TYPE_CHECKING:
    from xmclab.host.registry import Registry
    from xmclab.serve.output import Shape, Writer
    from xmclab.serve.predictor import Predictor
    from xmclab.serve.texts import TextFile
    from xmclab.system.progress import Bar

MEASURED = ("evaluate.depth=", "evaluate.k=", "evaluate.recall_k=", "evaluate.propensity=")


class Format(StrEnum):
    """Output formats."""

    table = "table"
    jsonl = "jsonl"
    json = "json"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"
    xmc = "xmc"


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TEXT]...|FILE", help="Queries, or a file: .txt, .csv, .tsv, .jsonl, .json, .parquet, also .gz."
    ),
]
Texts = Annotated[list[str] | None, typer.Option("--text", help="A query, even if it looks like a file.")]
Input = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="Queries from a file; - reads lines from stdin.")
]


def predict(
    folder: Folder,
    words: Words = None,
    texts: Texts = None,
    file: Input = None,
    k: Annotated[int, typer.Option("-k", help="Labels per query, at most.", min=1)] = 5,
    threshold: Annotated[
        float | None, typer.Option("--threshold", metavar="SCORE", help="Leave out labels with a lower score.")
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="de, clf, de+clf or another search of the run.")
    ] = None,
    more: AddLabels = None,
    column: Annotated[
        str | None, typer.Option("--column", metavar="NAME", help="Column (or JSON key) of the text in the file.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: what --out ends in; without it, tables for people.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format jsonl.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE: a suffix as above, or with --format.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    device: Device = "auto",
    plugin: Plugin = None,
    trust: Trust = False,
) -> None:
    """Predict the best labels of texts: xmclab predict runs/my-run "plot functions" -k 5"""
    from xmclab.cli.queries import given, read_queries
    from xmclab.serve.bulk import Asked, write_answers
    from xmclab.serve.open import text_of
    from xmclab.serve.output import Shape
    from xmclab.serve.texts import TextRecord

    texts, file = given(words or [], texts or [], file)
    written = _format(out, form, as_json)
    with contextlib.ExitStack() as stack:
        registry = registry_with(plugin)
        fields = text_of(folder, "query", registry)
        queries = stack.enter_context(read_queries(file, column, fields)) if file else None
        rows = _checked(queries) if queries else len(texts)
        added = read_labels(more, folder, registry) if more else None

        predictor = _load(folder, registry, device, added, trust)
        asked = Asked.of(predictor, k, head, threshold)
        if asked.k < k:
            note(f"-k {k}: there are only {asked.k} labels; all are ranked")
        shape = Shape(predictor.labels, rows, bool(queries and queries.has_ids))
        writer = stack.enter_context(_writer(out, written, shape, overwrite))
        bar = stack.enter_context(_bar(rows, answers_shown=out is None and sys.stdout.isatty()))
        without = write_answers(predictor, queries or map(TextRecord, texts), asked, writer, bar.advance)
    if without and threshold is not None:
        note(f"--threshold {threshold:g}: {without} of {rows} texts have no label with such a score")
    if predictor.without_word:
        note(f"{predictor.without_word} of {rows} texts have no vocabulary words; their predictions are arbitrary")


def evaluate(
    folder: Folder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="How the data is read, and what is measured: evaluate.k=1,3,5,10."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--data", metavar="NAME_OR_FOLDER", help="Data to evaluate on; default: the run's own."),
    ] = None,
    as_json: Json = False,
    device: Device = "auto",
    plugin: Plugin = None,
    trust: Trust = False,
) -> None:
    """Evaluate a trained model on the test queries of a data set: xmclab eval runs/my-run"""
    registry = registry_with(plugin)
    with contextlib.redirect_stdout(sys.stderr), trusting_remote_code(trust):
        from xmclab.serve.evaluation import evaluate_folder

        result = evaluate_folder(folder, source, registry, device, note, data_keys(overrides, MEASURED))
    if as_json:
        print_json(result.document)
        return
    from xmclab.evaluation.report import print_table
    from xmclab.system.console import Console

    print_table(Console(), result.title, result.metrics, {}, str(result.propensity))


def _checked(file: TextFile) -> int:
    """The number of texts of a valid file, with notes about them."""
    rows = file.check()
    for text in file.notes:
        note(text)
    return rows


def _load(folder: Path, registry: Registry, device: str, added: TextFile | None, trust: bool) -> Predictor:
    """The model of a folder, with labels added."""
    quiet = contextlib.redirect_stdout(sys.stderr)  # parts may print; stdout is for results only
    with quiet, trusting_remote_code(trust):
        from xmclab.serve.open import open_predictor

        predictor = open_predictor(folder, registry, device)
        if added:
            add_labels(predictor, added)
    return predictor


def _format(out: Path | None, form: Format | None, as_json: bool) -> str:
    """The format to write."""
    from xmclab.serve.output import FORMATS, format_of

    if as_json and form not in (None, Format.jsonl):
        raise ConfigError(Problem(f"--format {form}", "conflicts with --json"))
    if as_json or form:
        written = Format.jsonl if as_json else str(form)
        if out is None and FORMATS[written].binary:
            raise ConfigError(Problem(f"--format {written}", "is not text", "name a file with --out"))
        return written
    return format_of(out) if out else Format.table


@contextlib.contextmanager
def _writer(out: Path | None, form: str, shape: Shape, overwrite: bool) -> Iterator[Writer]:
    """Where results go."""
    from xmclab.serve.output import FORMATS, new_answers

    if out is None:
        yield FORMATS[form](sys.stdout, shape)
        return
    with new_answers(out, form, shape, overwrite) as writer:
        yield writer


def _bar(rows: int, answers_shown: bool) -> Bar:
    """A progress bar on stderr, if that is a terminal; none among answers that are shown on one."""
    from xmclab.system.console import Console
    from xmclab.system.progress import Bar

    console = Console(file=sys.stderr)
    wanted = console.is_terminal and rows > 1 and not answers_shown
    return Bar(console if wanted else None, "queries", rows)
