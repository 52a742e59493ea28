"""`xmclab export`: a trained model in a folder that can be shipped."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from xmclab.cli.common import Device, Json, Plugin, Trust, note, print_json, registry_with
from xmclab.cli.labels import AddLabels, add_labels, read_labels
from xmclab.errors import ConfigError, Problem
from xmclab.system.terminal import printable
from xmclab.system.trust import trusting_remote_code


class IndexType(StrEnum):
    """Index structures of faiss."""

    flat = "flat"
    hnsw = "hnsw"
    ivf = "ivf"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write, new or empty.")],
    index: Annotated[
        IndexType | None, typer.Option("--index", help="Structure of the faiss index; default: the run's, else flat.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="SEARCH",
            help="Search of the index and the SentenceTransformer: de, clf or de+clf.",
        ),
    ] = None,
    more: AddLabels = None,
    as_json: Json = False,
    device: Device = "auto",
    plugin: Plugin = None,
    trust: Trust = False,
) -> None:
    """Write everything needed to answer queries to a folder: xmclab export runs/my-run --to my-model"""
    registry = registry_with(plugin)
    with contextlib.redirect_stdout(sys.stderr), trusting_remote_code(trust):
        from xmclab.serve.export import MANIFEST, write_export
        from xmclab.serve.open import open_predictor
        from xmclab.serve.sentence_transformer import loads_with_xmclab

        if (run / MANIFEST).is_file():
            raise ConfigError(Problem(str(run), "is already an export", "copy the folder"))
        added = read_labels(more, run, registry) if more else None
        predictor = open_predictor(run, registry, device)
        if added:
            add_labels(predictor, added)
        manifest = write_export(predictor, run, to, index, search)
        needs_xmclab = loads_with_xmclab(to)
    if needs_xmclab:
        note("to load the folder, sentence-transformers needs xmclab installed and trust_remote_code=True")
    if as_json:
        print_json(manifest)
        return
    size = sum(file["bytes"] for file in manifest["files"].values())
    what = f"{manifest['labels']} labels, search {manifest['search']}, {len(manifest['files'])} files, {size:,} bytes"
    print(f"{printable(str(to))}: {what}")
