"""`xmclab predict` and `xmclab eval`: predictions of a trained model, and their metrics."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Device, Folder, Json, Plugin, Trust, data_keys, note, print_json, registry_with
from xmclab.cli.labels import AddLabels, add_labels, read_labels
from xmclab.errors import ConfigError, Problem
from xmclab.system.trust import trusting_remote_code

if TYPE_CHECKING:
    from xmclab.api import TextFields
    from xmclab.host.registry import Registry
    from xmclab.serve.predictor import Predictor
    from xmclab.serve.texts import TextFile
    from xmclab.system.progress import Bar

STDIN = Path("-")
MEASURED = ("evaluate.depth=", "evaluate.k=", "evaluate.recall_k=", "evaluate.propensity=")


class Format(StrEnum):
    """Output formats."""

    table = "table"
    jsonl = "jsonl"
    xmc = "xmc"


def predict(
    folder: Folder,
    texts: Annotated[list[str] | None, typer.Option("--text", help="A query; can be repeated.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="Queries: .txt, .csv, .tsv, .jsonl, .parquet; - reads stdin."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Labels per query.", min=1)] = 5,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="de, clf or de+clf; default: all heads.")
    ] = None,
    more: AddLabels = None,
    column: Annotated[
        str | None, typer.Option("--column", metavar="NAME", help="Column (or JSON key) of the text in --input.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="Tables, a JSON object per line, or sparse text (label:score).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format jsonl.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to FILE instead of stdout.")] = None,
    device: Device = "auto",
    plugin: Plugin = None,
    trust: Trust = False,
) -> None:
    """Predict the best labels of a text: xmclab predict runs/my-run --text "plot functions" -k 5"""
    from xmclab.serve.open import text_of
    from xmclab.serve.output import FORMATS

    if bool(texts) == bool(file):
        raise ConfigError(Problem("predict", "give either --text or --input"))
    if as_json and form not in (None, Format.jsonl):
        raise ConfigError(Problem(f"--format {form}", "conflicts with --json"))
    with contextlib.ExitStack() as stack:
        registry = registry_with(plugin)
        queries = stack.enter_context(_queries(file, column, text_of(folder, "query", registry))) if file else None
        rows = _checked(queries) if queries else len(texts or ())
        added = read_labels(more, folder, registry) if more else None

        predictor = _load(folder, registry, device, added, trust)
        search = predictor.pick_search(head)
        if k > len(predictor.labels):
            note(f"-k {k}: there are only {len(predictor.labels)} labels; all are ranked")
            k = len(predictor.labels)

        stream = stack.enter_context(_target(out))
        writer = FORMATS[Format.jsonl if as_json else form or Format.table](stream, predictor.labels, rows)
        bar = stack.enter_context(_bar(rows))
        source = (record.text for record in queries) if queries else iter(texts or ())
        for number, (block, ranking) in enumerate(predictor.answer(source, k, search)):
            if number == 0:
                writer.start()
            writer.write(block, ranking)
            bar.advance(len(block))
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


@contextlib.contextmanager
def _queries(path: Path, column: str | None, fields: TextFields) -> Iterator[TextFile]:
    """The queries of a file or of stdin, which is buffered because it is read twice."""
    from xmclab.serve.texts import TextFile

    with tempfile.TemporaryDirectory() as folder:
        if path == STDIN:
            path = Path(folder) / "stdin.txt"
            with path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield TextFile(path, column, fields=fields)


@contextlib.contextmanager
def _target(out: Path | None) -> Iterator[IO[str]]:
    """Where results go."""
    if out is None:
        yield sys.stdout
        return
    from xmclab.system.files import new_file

    with new_file(out, f"--out {out}") as stream:
        yield stream


def _bar(rows: int) -> Bar:
    """A progress bar on stderr, if that is a terminal."""
    from xmclab.system.console import Console
    from xmclab.system.progress import Bar

    console = Console(file=sys.stderr)
    return Bar(console if console.is_terminal and rows > 1 else None, "queries", rows)
