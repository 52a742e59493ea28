"""An export: everything needed to answer queries, in one folder.

README.md             model card: data, metrics, how to use it, config
index.json            what is in the folder, with sizes and sha256
config.yaml           the resolved config;  labels.jsonl  names and texts of the labels
vectors/de.npy        label vectors of each head as searched, float32 [L, D]; a bias comes last
search/               what the search learned from the training queries, if it did
index.faiss           the index of one search, over the vectors of its heads side by side, if faiss was installed
weights.safetensors   weights of the model that no other file has
encoder/              vocabulary or tokenizer files; a transformers encoder is in the folder itself, with its weights
modules.json          and the folders it names: a SentenceTransformer whose vectors are the queries of that index

Added labels follow those of the model: they have texts, and vectors of the dual encoder alone.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from xmclab import __version__
from xmclab.api import Index, Search
from xmclab.errors import ConfigError, PluginError, Problem, StorageError, did_you_mean
from xmclab.host.config import Config
from xmclab.host.options import make_part
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.model.device import precision_of_run
from xmclab.model.model import Model
from xmclab.plan.indexes.checks import refuse_non_finite
from xmclab.runs import store
from xmclab.runs.store import Labels, damage_reported
from xmclab.serve.card import write_card
from xmclab.serve.predictor import Predictor
from xmclab.serve.sentence_transformer import MODULES, needs_xmclab, obstacle, write_sentence_transformer
from xmclab.system.files import new_folder
from xmclab.system.manifests import Files, described, read_manifest, verify
from xmclab.system.reading import load_arrays, read_json
from xmclab.system.tensors import write_tensors

log = logging.getLogger("xmclab.serve")

MANIFEST, WEIGHTS, FORMAT, AGAIN = store.EXPORT, store.EXPORT_WEIGHTS, store.EXPORT_FORMAT, store.EXPORT_AGAIN
VECTORS, INDEX = "vectors", "index.faiss"
FIELDS = {
    "labels": int,
    "heads": list,
    "sentence_transformer": str | None,
    "index": dict | None,
    "files": dict,
    store.NUMERICS: dict,
}
TRANSFORMER = "encoder.network."  # prefix of the weights that a transformer in the folder itself has already
TEXTS = "de"  # the head that knows added labels


def write_export(
    predictor: Predictor, run: Path, to: Path, index_type: str | None, search: str | None = None
) -> dict[str, Any]:
    """Write the model of a run; returns the content of index.json.

    Args:
        predictor: the model of the folder `run`; labels that were added to it are exported too.
        to: a new folder, complete or absent.
        index_type: type of the faiss index; None: that of the run, or flat.
        search: what the index and the SentenceTransformer are for; None: see `pick_search`.
    """
    if not (run / store.RESULT).is_file():
        raise store.without(run, store.RESULT)
    model, config = predictor.model, predictor.config
    search = pick_search(predictor, search)
    heads = search.split("+")
    biased = [name for name in model.head_names if _is_biased(predictor, name)]
    missing = obstacle(config, model, heads, biased)
    if missing:
        log.warning("no SentenceTransformer written: %s is from a file or class that others do not have", missing)
    in_root = model.encoder.transformer() is not None and not missing
    with new_folder(to, f"--to {to}") as folder:
        shutil.copy(run / store.CONFIG, folder / store.CONFIG)
        store.save_labels(folder, predictor.labels)
        if not in_root:
            (folder / store.ENCODER).mkdir()
            model.encoder.save_assets(folder / store.ENCODER)
        if not missing:
            write_sentence_transformer(folder, config, model, heads, [name for name in heads if name in biased])
        write_tensors(folder / WEIGHTS, _own_weights(config, model, without=TRANSFORMER if in_root else None))
        if (run / store.SEARCH).is_dir():
            shutil.copytree(run / store.SEARCH, folder / store.SEARCH)
        (folder / VECTORS).mkdir()
        for name in model.head_names:
            z_LD = _vectors(predictor, name).float().cpu().numpy()
            np.save(folder / VECTORS / f"{name}.npy", z_LD, allow_pickle=False)
        with damage_reported(run / store.RESULT):
            result = read_json(run / store.RESULT)
            trained = {key: result[key] for key in ("recipe", "data", "seed", "metrics")}
        manifest = {
            "format": FORMAT,
            "xmclab": __version__,
            "labels": len(predictor.labels),
            "added": len(predictor.labels) - predictor.space.num_labels,
            "heads": list(model.head_names),
            "search": search,
            "sentence_transformer": None if missing else search,
            "index": _write_index(predictor, search, folder / INDEX, index_type),
            "trained": trained,
            store.NUMERICS: store.numerics_of(run),
        }
        trusted = not missing and needs_xmclab(model, heads, [name for name in heads if name in biased])
        write_card(folder, to.resolve().name, run, manifest, predictor.labels, needs_xmclab=trusted)
        manifest["files"] = described(folder)
        store.write_json(folder / MANIFEST, manifest)
    return manifest


def pick_search(predictor: Predictor, name: str | None) -> str:
    """The search of this name, if an index can hold it.

    By default all heads together; the first one, if a SentenceTransformer can do that one without xmclab, but not all
    of them; or the dual encoder, if labels were added.

    Raises:
        ConfigError: there is no such search, or its scores are not inner products with vectors of the labels.
    """
    model, heads = predictor.model, predictor.model.head_names
    added = predictor.space.added_AD is not None
    biased = [head for head in heads if _is_biased(predictor, head)]
    if name is None:
        plain = heads[:1]
        alone = needs_xmclab(model, heads, biased) and not needs_xmclab(model, plain, set(plain) & set(biased))
        return TEXTS if added else "+".join(plain if alone else heads)
    where, possible = f"--search {name}", [each for each in predictor.searches if set(each.split("+")) <= set(heads)]
    if name not in predictor.searches:
        raise ConfigError(Problem(where, "the model has no such search", did_you_mean(name, predictor.searches)))
    if name not in possible:
        [other, *_] = set(name.split("+")) - set(heads)
        reason = f"{other!r} is not an inner product with label vectors, so an index cannot hold it"
        hint = f"use {' or '.join(possible)}; `xmclab predict --head {name}` works with any export"
        raise ConfigError(Problem(where, reason, hint))
    if added and name != TEXTS:
        reason = "added labels have no classifier, so an index cannot hold their scores"
        hint = f"use --search {TEXTS}; `xmclab predict --head {name}` works with any export" if name != "clf" else ""
        raise ConfigError(Problem(where, reason, hint or f"use --search {TEXTS}"))
    return name


def _is_biased(predictor: Predictor, head: str) -> bool:
    """Whether the label vectors of a head end in a bias."""
    return predictor.space.vectors(head).shape[1] > _query_width(predictor, head)


def _vectors(predictor: Predictor, head: str) -> Tensor:
    """z_LD of all labels that a head knows."""
    z_LD, added_AD = predictor.space.vectors(head), predictor.space.added_AD
    refuse_non_finite(z_LD, "label")
    return z_LD if added_AD is None or head != TEXTS else torch.cat([z_LD, added_AD])


def _own_weights(config: Config, model: Model, without: str | None) -> dict[str, Tensor]:
    """The weights whose size does not depend on the number of labels: label vectors are files of their own."""
    small = _without_labels(config, model.encoder).state_dict()
    return {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if tensor.shape == small[name].shape and not (without and name.startswith(without))
    }


def _without_labels(config: Config, encoder: Any) -> Model:
    """The model with the fewest possible labels."""
    return Model(encoder, {name: config.make(f"head.{name}") for name in config.heads}, num_labels=1)


def _write_index(predictor: Predictor, search: str, path: Path, index_type: str | None) -> dict[str, Any] | None:
    """Build and write the index of a search; returns its entry in index.json, None without faiss."""
    try:
        name, index = predictor.new_index(search)
        if index_type is not None or not index.can_write:
            options = {"type": index_type} if index_type else {}
            name, index = "faiss", predictor.config.registry.get("index", "faiss")(**options)
    except PluginError:
        if index_type is not None:
            raise
        log.warning("faiss is not installed: no index written, searches of the export will compare all labels")
        return None
    added = predictor.space.added_AD is not None
    index.build(_vectors(predictor, search) if added else predictor.space.together(search))
    index.write(path)
    return {"file": path.name, "search": search, "name": name, "options": dataclasses.asdict(index)}


def load_export(folder: Path, registry: Registry, device: torch.device, overrides: tuple[str, ...]) -> Predictor:
    """The model of an export; every file is checked against its sha256 before it is read."""
    manifest = _read_manifest(folder)
    files = manifest["files"]
    later = {INDEX, store.CARD} if manifest["index"] else {store.CARD}  # the card is for people, who may edit it
    for name in files:
        if name not in later and not name.startswith((f"{VECTORS}/", f"{store.SEARCH}/")):
            _verify(folder, name, files)

    config = resolve([f"recipe={folder / store.CONFIG}", *overrides, "index=exact"], registry)
    encoder = config.make("encoder")
    with damage_reported(folder):
        encoder.load_assets(store.encoder_of_export(folder))
        model = _without_labels(config, encoder)
        unknown = model.load_state_dict(load_file(folder / WEIGHTS), strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"{WEIGHTS} has weights unknown to the model: {', '.join(unknown[:3])}")
    model.to(device).precision = precision_of_run(device, manifest[store.NUMERICS])
    stored = _Stored(folder, manifest, registry, device)
    predictor = Predictor(
        config, model, stored.trained, stored.trained_vectors, stored.read_index, load_search=stored.load_search
    )
    stored.predictor = predictor
    _check_manifest(folder, manifest, predictor, len(stored.labels))
    if stored.added:
        predictor.labels, predictor.space.added_AD = stored.labels, stored.vectors(TEXTS)[len(stored.trained) :]
    return predictor


class _Stored:
    """The labels of an export, and what is read only when it is needed."""

    predictor: Predictor

    def __init__(self, folder: Path, manifest: dict[str, Any], registry: Registry, device: torch.device) -> None:
        self.folder, self.registry, self.device = folder, registry, device
        self.files, self.entry = manifest["files"], manifest["index"]
        self.labels = store.load_labels(folder)
        self.added = manifest.get("added", 0)  # by their texts, behind the others
        if not isinstance(self.added, int) or not 0 <= self.added < max(len(self.labels), 1):
            raise _damaged(folder, f"{self.added!r} added labels of {len(self.labels)}")
        first = len(self.labels) - self.added
        self.trained = Labels(self.labels.names[:first], self.labels.texts[:first])

    def vectors(self, head: str) -> Tensor:
        """z_LD of all labels that a head knows."""
        name = f"{VECTORS}/{head}.npy"
        _verify(self.folder, name, self.files)
        with damage_reported(self.folder / name):
            z_LD = torch.from_numpy(load_arrays(self.folder / name))
            known = self.labels if head == TEXTS else self.trained
            _check_vectors(z_LD, len(known), _query_width(self.predictor, head))
        return z_LD.to(self.device)

    def trained_vectors(self, head: str) -> Tensor:
        """z_LD of the labels of the model."""
        return self.vectors(head)[: len(self.trained)]

    def read_index(self, search: str) -> Index | None:
        """The index of a search, if it is there and whole; with added labels, it is for other programs."""
        folder, entry = self.folder, self.entry
        if not entry or entry["search"] != search or self.added:
            return None
        try:
            with damage_reported(folder / MANIFEST):
                cls, options = self.registry.get("index", str(entry["name"])), dict(entry["options"])
            index: Index = make_part(cls, options, "index.options")
            _verify(folder, INDEX, self.files)
        except PluginError:
            return None  # without faiss, all labels are compared
        except (ConfigError, StorageError) as error:
            log.warning("%s; comparing all label vectors instead", error)
            return None
        with damage_reported(folder / INDEX):
            index.read(folder / INDEX)
        found, expected = index.shape, (len(self.labels), self.predictor.space.together(search).shape[1])
        if found not in (None, expected):
            reason = f"damaged: has {found[0]} vectors of width {found[1]}, not {expected[0]} of width {expected[1]}"
            raise StorageError(Problem(str(folder / INDEX), reason, AGAIN))
        return index

    def load_search(self, search: Search) -> None:
        """Let a search read what it learned from the training queries."""
        for name in self.files:
            if name.startswith(f"{store.SEARCH}/"):
                _verify(self.folder, name, self.files)
        store.load_search(self.folder, search, self.device)


def _check_vectors(z_LD: Tensor, labels: int, width: int) -> None:
    """Refuse label vectors that the queries of the model cannot be compared with."""
    if z_LD.dtype != torch.float32 or z_LD.ndim != 2:
        raise ValueError(f"an array {list(z_LD.shape)} of {str(z_LD.dtype).removeprefix('torch.')}, not float32 [L, D]")
    if len(z_LD) != labels:
        raise ValueError(f"has {len(z_LD)} vectors, but there are {labels} labels")
    if z_LD.shape[1] not in (width, width + 1):  # one more is the bias
        raise ValueError(f"has vectors of width {z_LD.shape[1]}, but those of queries have {width}")


def _query_width(predictor: Predictor, head: str) -> int:
    """The width of the vectors that a head searches with."""
    tokens = predictor.model.encoder.tokenise(["a"])
    return int(predictor.model.query_vectors(tokens, 1, [head])[head].shape[1])


def _read_manifest(folder: Path) -> dict[str, Any]:
    """index.json, with all its fields."""
    manifest = {store.NUMERICS: {}, **read_manifest(folder / MANIFEST, FORMAT, AGAIN)}  # older ones have none
    for field, kinds in FIELDS.items():
        if not isinstance(manifest.get(field, ...), kinds):
            raise _damaged(folder, f"{field!r} is missing or invalid")
    return manifest


def _check_manifest(folder: Path, manifest: dict[str, Any], predictor: Predictor, labels: int) -> None:
    """Compare index.json with what the other files hold."""
    heads, stored = list(predictor.model.head_names), manifest["index"]
    for name in (store.CONFIG, store.LABELS, WEIGHTS, *(f"{VECTORS}/{head}.npy" for head in heads)):
        if name not in manifest["files"]:
            raise _damaged(folder, f"{name} is not listed")
    search = manifest.get("search", "+".join(heads))  # earlier versions had an index of all heads
    real: dict[str, Any] = {"labels": labels, "heads": heads}
    if "search" in manifest:
        real["sentence_transformer"] = search if MODULES in manifest["files"] else None
    found = {field: manifest[field] for field in real}
    if stored:
        real["search of the index"], found["search of the index"] = search, stored.get("search")
    for field, value in real.items():
        if found[field] != value:
            raise _damaged(folder, f"{field}: {found[field]!r}, but the other files say {value!r}")


def _damaged(folder: Path, what: str) -> StorageError:
    return StorageError(Problem(str(folder / MANIFEST), f"damaged: {what}", AGAIN))


def _verify(folder: Path, name: str, files: Files) -> None:
    """Refuse a file that changed since it was written."""
    verify(folder, name, files, MANIFEST, AGAIN)
