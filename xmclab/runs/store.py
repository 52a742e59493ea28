"""A run folder: written by a run, read to use its model.

manifest.json     format, and the size and sha256 of the files that are read again; checked before they are
config.yaml       the resolved config; `recipe=RUN/config.yaml` runs it again
environment.json  versions, seed, data fingerprint, device, precision
metrics.jsonl     a line per step and evaluation (the `jsonl` tracker)
indexes.json      which index `auto` chose, for mining and for each search of the evaluation
result.json       the document that `xmclab run --json` prints
model.safetensors the weights (unless keep_model=false);  encoder/ vocabulary or tokenizer files
search/           what the search learned from the training queries, if it did
labels.jsonl      names and texts of the labels, in the order of their ids
points.npz        what each test query contributes to the metrics, for significance tests
failure/          only if the run diverged: where and on what
checkpoints/      only until the run has ended: see `checkpoints.py`
stages/phi/       the run folder of an earlier stage, if the recipe has stages
data/             the data as tables, if it came from memory
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from xmclab import __version__
from xmclab.api import Dataset, Encoder, Search
from xmclab.errors import DataError, Problem, StorageError
from xmclab.host.config import Config
from xmclab.host.recipes import MADE_WITH, MADE_WITH_CLASSES
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.model.device import is_deterministic
from xmclab.model.model import Model
from xmclab.system.files import new_file, sha256_of, storage_errors
from xmclab.system.limits import BeyondLimit, check
from xmclab.system.manifests import Files, described, read_manifest, verify
from xmclab.system.memory import out_of_memory
from xmclab.system.reading import read_json, read_json_lines
from xmclab.system.tensors import write_tensors

logger = logging.getLogger(__name__)

MANIFEST, FORMAT, CHANGED = "manifest.json", 1, "restore the file, or train the run again"
RECORDS, ENVIRONMENT = "metrics.jsonl", "environment.json"
NUMERICS = "numerics"  # in the environment, and in the manifest of an export
CONFIG, WEIGHTS, RESULT, ENCODER = "config.yaml", "model.safetensors", "result.json", "encoder"
LABELS, POINTS, INDEXES, SEARCH = "labels.jsonl", "points.npz", "indexes.json", "search"
FAILURE, STAGES, DATA = "failure", "stages", "data"
EXPORT, EXPORT_FORMAT, EXPORT_WEIGHTS, EXPORT_AGAIN = "index.json", 1, "weights.safetensors", "export the run again"
CARD = "README.md"  # of an export; listed, but not checked
FORMATS = (SafetensorError, OverflowError)  # what reading a malformed file raises besides
SEARCH_INDEX = "training queries"  # in INDEXES: the index of the search itself


@dataclass(frozen=True)
class Labels:
    """What a label id means."""

    names: Sequence[str]  # [L]
    texts: Sequence[str]  # [L]

    def __len__(self) -> int:
        return len(self.names)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a readable JSON document."""
    with _new(path) as stream:
        stream.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _new(path: Path) -> contextlib.AbstractContextManager[IO[str]]:
    return new_file(path, str(path))


def seal(folder: Path, recipe: str = "") -> None:
    """Describe the files that are read again in manifest.json, so that damage is found.

    Args:
        recipe: its name, of which config.yaml knows nothing; by default the one that is known.
    """
    with storage_errors(str(folder)):
        files = [folder / name for name in (CONFIG, WEIGHTS, LABELS)]
        files += [path for name in (ENCODER, SEARCH) for path in (folder / name).rglob("*")]
        _write_manifest(folder, recipe or recipe_of(folder), described(folder, files))


def _reopen(folder: Path, kept: Container[str]) -> None:
    """Take all but these files and folders off the manifest, as others are about to be written again.

    A process that is killed in between leaves files that the manifest would otherwise refuse.
    """
    files = _manifest(folder).get("files", {})
    left = {name: entry for name, entry in files.items() if Path(name).parts[0] in kept}
    if left != files:
        _write_manifest(folder, recipe_of(folder), left)


def _write_manifest(folder: Path, recipe: str, files: Files) -> None:
    write_json(folder / MANIFEST, {"format": FORMAT, "xmclab": __version__, "recipe": recipe, "files": files})


def recipe_of(folder: Path) -> str:
    """The name of the recipe that a run started from, if it is known; it may have begun with an earlier stage."""
    folders = (folder, *sorted((folder / STAGES).glob("*")))
    return next((str(name) for each in folders if (name := _manifest(each).get("recipe"))), "")


def _manifest(folder: Path) -> dict[str, Any]:
    """manifest.json; empty for a run of an earlier version, which has none."""
    file = folder / MANIFEST
    return read_manifest(file, FORMAT, CHANGED) if file.is_file() else {}


def verify_run(folder: Path) -> None:
    """Refuse a run folder with files that changed since they were written.

    Raises:
        StorageError: names the first one.
    """
    files = _manifest(folder).get("files", {})
    for name in files:
        verify(folder, name, files, MANIFEST, CHANGED)


def environment(config: Config, data: Dataset, model: Model) -> dict[str, Any]:
    """Everything needed to reproduce the run."""
    device, settings = model.device, config.settings
    packages = ("torch", "numpy", "scipy", "transformers", "faiss-cpu", "faiss-gpu")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "xmclab": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "seed": settings.seed,
        NUMERICS: {
            **model.precision.report(),
            "deterministic": is_deterministic(device, settings.deterministic),
            "encoder": model.encoder_report(),
        },
        "data": {"name": data.name, "sha256": data.fingerprint},
    }


def numerics_of(folder: Path) -> dict[str, Any]:
    """What a run said of its precision, see `Precision.report`; empty for older runs."""
    if not (folder / ENVIRONMENT).is_file():
        return {}
    with damage_reported(folder / ENVIRONMENT):
        return dict(read_json(folder / ENVIRONMENT).get(NUMERICS, {}))


@contextlib.contextmanager
def data_kept(folder: Path, config: Config, tables: Path) -> Iterator[Config]:
    """Copy tables into a run folder, unless they are there; the config that reads them there.

    They are removed again if the run does not begin.

    Raises:
        DataError: the run of the folder has other tables.
    """
    kept = folder.resolve() / DATA / tables.name
    with storage_errors(str(kept), folder):
        if not (folder / DATA).is_dir():
            shutil.copytree(tables, kept)
        elif {f.name: sha256_of(f) for f in tables.iterdir()} != {f.name: sha256_of(f) for f in kept.glob("*")}:
            hint = "leave them out to continue, or train in a new folder"
            raise DataError(Problem(str(folder), "the rows are not those that the run began with", hint))
    try:
        yield _with_source(config, str(kept))
    finally:
        if not (folder / CONFIG).is_file():
            shutil.rmtree(folder / DATA, ignore_errors=True)


def _with_source(config: Config, source: str) -> Config:
    data = dataclasses.replace(config.settings.data, source=source)
    earlier = {name: _with_source(stage, source) for name, stage in config.earlier.items()}
    return dataclasses.replace(config, settings=dataclasses.replace(config.settings, data=data), earlier=earlier)


def save_config(folder: Path, config: Config) -> None:
    """Write the config as a recipe; its first line names plugin files and classes, which a recipe cannot load."""
    with _new(folder / CONFIG) as stream:
        stream.write(_config_text(config))


def _config_text(config: Config) -> str:
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    files, given = config.registry.files, config.registry.given
    notes = [f"{MADE_WITH}{' plugin='.join(files)}"] if files else []
    notes += [MADE_WITH_CLASSES + ", ".join(f"{part} ({cls})" for part, cls in given.items())] if given else []
    return f"# {'; '.join(notes)}\n{text}" if notes else text


def update_config(folder: Path, config: Config) -> None:
    """Write the config of a run that is resumed with another one, as `resume.allow` lets it."""
    with storage_errors(str(folder)):
        before = (folder / CONFIG).read_text(encoding="utf-8")
        if before != _config_text(config):
            _reopen(folder, (LABELS, ENCODER))
            save_config(folder, config)
            seal(folder)


def command(words: str, folder: Path, config: Config) -> str:
    """A command for the run of a folder, with the plugin files that it needs; a call, if it needs classes."""
    if given := config.registry.given:
        classes = ", ".join(cls.rpartition(".")[2] for cls in given.values())
        return f"xmclab.{words.rpartition('--')[2]}({str(folder)!r}, parts=[{classes}])"
    plugins = [f"plugin={file}" for file in config.registry.files]
    return f"xmclab {words} {shlex.join([str(folder), *plugins])}"


def whole(folder: Path) -> Path:
    """The folder of the whole run to which the folder of a stage belongs; any other folder itself."""
    return folder.parent.parent if folder.parent.name == STAGES else folder


def save_start(folder: Path, config: Config, data: Dataset, model: Model) -> None:
    """Write what a run needs to be resumed; the manifest comes last."""
    _reopen(folder, ())
    with storage_errors(str(folder / ENCODER), folder):
        (folder / ENCODER).mkdir(exist_ok=True)
        model.encoder.save_assets(folder / ENCODER)
    save_labels(folder, Labels(data.label_names, data.label_texts))
    write_json(folder / ENVIRONMENT, environment(config, data, model))
    save_config(folder, config)
    seal(folder, config.recipe)


def records(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The records of a run, as far as its tracker could write them."""
    if (folder / RECORDS).is_file():
        with damage_reported(folder / RECORDS):
            yield from read_json_lines(folder / RECORDS, complete=True)


def rewind(folder: Path, size: int) -> None:
    """Cut the records off after this many bytes, and drop what an earlier process found out at its end."""
    _reopen(folder, (CONFIG, LABELS, ENCODER))
    file = folder / RECORDS
    with storage_errors(str(folder), folder):
        shutil.rmtree(folder / FAILURE, ignore_errors=True)
        found = file.stat().st_size if file.is_file() else 0
        if found < size:
            logger.warning("%s: %s of %s bytes are left; the records of earlier steps are lost", file, found, size)
            size = file.read_bytes().rfind(b"\n") + 1 if found else 0
        if found > size:
            os.truncate(file, size)


def save_model(folder: Path, model: Model) -> None:
    """Write the weights; tables are settled first."""
    model.settle()
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with storage_errors(str(folder / WEIGHTS), folder, sum(tensor.nbytes for tensor in state.values())):
        write_tensors(folder / WEIGHTS, state)


def remove_model(folder: Path) -> None:
    """Delete the weights of a run, which goes on being described by its other files."""
    with storage_errors(str(folder)):
        (folder / WEIGHTS).unlink(missing_ok=True)
        shutil.rmtree(folder / SEARCH, ignore_errors=True)
        seal(folder)


def save_search(folder: Path, search: Search) -> None:
    """Write what a search learned from the training queries."""
    if search.reads_training_queries:
        with storage_errors(str(folder / SEARCH), folder):
            (folder / SEARCH).mkdir(exist_ok=True)
            search.save(folder / SEARCH)


def load_search(folder: Path, search: Search, device: torch.device) -> None:
    """Read it again."""
    if search.reads_training_queries and not (folder / SEARCH).is_dir():
        raise without(folder, SEARCH)
    with damage_reported(folder / SEARCH):
        search.load(folder / SEARCH, device)


def save_points(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the contributions of the test queries."""
    with storage_errors(str(folder / POINTS), folder):
        np.savez_compressed(folder / POINTS, allow_pickle=False, **arrays)


def save_indexes(folder: Path, chosen: Mapping[str, Mapping[str, Any]]) -> None:
    """Add reports of indexes, by `mining`, the heads searched or `training queries`; empty ones chose nothing."""
    if chosen := {use: report for use, report in chosen.items() if report}:
        write_json(folder / INDEXES, {**load_indexes(folder), **chosen})


def load_indexes(folder: Path) -> dict[str, dict[str, Any]]:
    """The latest report of every index that chose something in a run; see `Index.report`."""
    file = folder / INDEXES
    if not file.is_file():
        return {}
    with damage_reported(file):
        reports: dict[str, Any] = read_json(file)
        return {
            use: {**report, "name": str(report["name"]), "options": dict(report["options"])}
            for use, report in reports.items()
        }


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak memory of this process in bytes (if the system reports it), and of its tensors on a GPU."""
    peak = {}
    with contextlib.suppress(ImportError):  # Windows has no such module
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peak | ({"device_peak": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {})


def save_labels(folder: Path, labels: Labels) -> None:
    """Write the labels, a JSON object per line."""
    with _new(folder / LABELS) as file:
        for name, text in zip(labels.names, labels.texts, strict=True):
            file.write(json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n")


def load_labels(folder: Path) -> Labels:
    """The labels of a run folder, or of an export."""
    file = folder / LABELS
    if not file.is_file():
        raise StorageError(Problem(str(folder), f"has no {LABELS}", "the folder is not complete"))
    names, texts = [], []
    with damage_reported(file):
        for number, record in enumerate(read_json_lines(file), start=1):
            if not (isinstance(record["name"], str) and isinstance(record["text"], str)):
                raise ValueError(f"line {number}: 'name' and 'text' are not texts")
            names.append(record["name"])
            texts.append(record["text"])
    return Labels(names, texts)


def encoder_of_export(folder: Path) -> Path:
    """Where an export has what `Encoder.load_assets` reads: a transformer is in the folder itself."""
    return folder / ENCODER if (folder / ENCODER).is_dir() else folder


def load_model(folder: Path, registry: Registry, *overrides: str) -> tuple[Config, Model]:
    """The config (with overrides such as `device=cpu` applied) and the trained model of a run folder.

    The run need not have been evaluated. Files that changed since they were written are refused.
    """
    for name in (CONFIG, WEIGHTS, LABELS):
        if not (folder / name).is_file():
            raise without(folder, name)
    verify_run(folder)
    config = resolve([f"recipe={folder / CONFIG}", *overrides], registry)
    num_labels = _num_labels(folder)
    with damage_reported(folder):
        state = load_file(folder / WEIGHTS)
        encoder = config.make("encoder")
        encoder.load_assets(folder / ENCODER)
        _check_labels(num_labels, state, partial(_model, config, encoder))
        model = _model(config, encoder, num_labels)
        model.load_state_dict(state)
    return config, model


def _num_labels(folder: Path) -> Any:
    """How many labels a model has; a run that was not evaluated has not written it down."""
    if not (folder / RESULT).is_file():
        return len(load_labels(folder))
    with damage_reported(folder / RESULT):
        return read_json(folder / RESULT)["data"]["labels"]


def without(folder: Path, name: str) -> StorageError:
    """The refusal of a run folder that lacks a file."""
    if not (folder / CONFIG).is_file():
        return StorageError(Problem(str(folder), "not a run folder", f"it has no {CONFIG}"))
    ended, words = (folder / RESULT).is_file(), shlex.join(["xmclab", "run", "--resume", str(folder)])
    hint = "" if ended else f"; finish it with: {words}"
    return StorageError(Problem(str(folder), "not the folder of a finished run", f"it has no {name}{hint}"))


def _model(config: Config, encoder: Encoder, num_labels: int) -> Model:
    return Model(encoder, {name: config.make(f"head.{name}") for name in config.heads}, num_labels)


def _check_labels(num_labels: Any, state: Mapping[str, Tensor], model: Callable[[int], Model]) -> None:
    """Refuse a number of labels other than that of the stored weights, before memory is taken for it."""
    if type(num_labels) is not int or num_labels < 1:
        raise ValueError(f"{RESULT} says {num_labels!r} labels")
    check("labels", num_labels, f"{RESULT} says")
    with torch.device("meta"):
        expected = model(num_labels).state_dict()
    for name, shape in ((name, x.shape) for name, x in state.items() if name.startswith("heads.") and name in expected):
        if shape != expected[name].shape and shape[1:] == expected[name].shape[1:]:
            raise ValueError(f"{RESULT} says {num_labels:,} labels, but {name} has {shape[0]:,} rows")


@contextlib.contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turn read errors inside the block into a `StorageError` about this file or folder."""
    try:
        yield
    except BeyondLimit as error:
        raise StorageError(error.at(str(path))) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, *FORMATS) as error:
        if out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StorageError(Problem(str(path), f"damaged: {reason}")) from error
