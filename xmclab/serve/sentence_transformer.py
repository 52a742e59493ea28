"""A folder that the sentence-transformers library loads, written without it: texts to the query vectors of a search.

modules.json                                       the modules below, in order
config.json, model.safetensors, tokenizer files    the transformers encoder, which loads by itself as well
1_Pooling                                          its pooling; another encoder is a `TextEncoder` instead of both
2_Dense  3_Normalize                               the head's projection, unit length (if searched so)
2_QueryVectors                                     instead of these two, what the library has no modules for
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xmclab.api import Transformer
from xmclab.host.config import Config
from xmclab.model.model import Model
from xmclab.serve.modules import Part, QueryVectors, TextEncoder, foreign, query_vectors, write_part
from xmclab.system.reading import read_json
from xmclab.system.tensors import write_tensors

MODULES = "modules.json"
THEIRS = "sentence_transformers.models"
ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "none": "torch.nn.modules.linear.Identity"}


@dataclass(frozen=True)
class Layer:
    """Query vectors as a linear map and an activation, at unit length or not: what modules of the library can do."""

    weight_OI: Tensor
    bias_O: Tensor
    activation: str
    unit: bool


def layer_of(model: Model, heads: Sequence[str], biased: Collection[str]) -> Layer | None:
    """The query vectors of some heads, side by side, as one layer; None if they are more than that.

    Args:
        biased: heads whose label vectors end in a bias, so that a 1 follows their query vectors.
    """
    weights, biases, activations = [], [], set()
    for name in heads:
        projection = model.head(name).query_projection()
        if projection is None:
            return None
        linear, activation = projection
        weight_OI, bias_O = (x.detach().float().cpu() for x in (linear.weight, linear.bias))
        if name in biased:
            weight_OI, bias_O = torch.cat([weight_OI, weight_OI.new_zeros(1, weight_OI.shape[1])]), _with_one(bias_O)
        weights.append(weight_OI)
        biases.append(bias_O)
        activations.add(activation)
    unit = any(model.head(name).searched_at_unit_length for name in heads)
    if len(activations) > 1 or (unit and len(heads) > 1) or (biased and (unit or activations != {"none"})):
        return None
    return Layer(torch.cat(weights), torch.cat(biases), activations.pop(), unit)


def _with_one(bias_O: Tensor) -> Tensor:
    return torch.cat([bias_O, bias_O.new_ones(1)])


def needs_xmclab(model: Model, heads: Sequence[str], biased: Collection[str]) -> bool:
    """Whether such a folder has modules of xmclab, for which it must be installed and trusted."""
    return model.encoder.transformer() is None or layer_of(model, heads, biased) is None


def loads_with_xmclab(folder: Path) -> bool:
    """Whether a folder that was just written has such modules."""
    if not (folder / MODULES).is_file():
        return False
    return any(not module["type"].startswith(THEIRS) for module in read_json(folder / MODULES))


def obstacle(config: Config, model: Model, heads: Sequence[str], biased: Collection[str]) -> str:
    """A part that keeps the model out of such a folder, as it is in no installed plugin; empty: there is none."""
    slots = [] if model.encoder.transformer() else ["encoder"]
    slots += [f"head.{name}" for name in heads] if layer_of(model, heads, biased) is None else []
    return foreign(config, slots)


def write_sentence_transformer(
    folder: Path, config: Config, model: Model, heads: Sequence[str], biased: Collection[str]
) -> None:
    """Write the modules; the caller writes the assets and weights of an encoder other than a transformer."""
    encoder, layer = model.encoder.transformer(), layer_of(model, heads, biased)
    types = _encoder(folder, config, model, encoder)
    paths = ["", "1_Pooling"][: len(types)]
    if layer:
        paths.append(path := f"{len(paths)}_Dense")
        types.append(f"{THEIRS}.Dense")
        _write_dense(folder / path, layer)
        if layer.unit:
            paths.append(f"{len(paths)}_Normalize")
            types.append(f"{THEIRS}.Normalize")
            (folder / paths[-1]).mkdir()
    else:
        paths.append(path := f"{len(paths)}_{QueryVectors.__name__}")
        types.append(_path(QueryVectors))
        (folder / path).mkdir()
        query_vectors(config, model, heads, biased).save(str(folder / path))
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": kind}
        for place, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    _write(folder / MODULES, modules)
    unit = len(heads) == 1 and not biased and model.head(heads[0]).searched_at_unit_length
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine" if unit else "dot"})


def _encoder(folder: Path, config: Config, model: Model, encoder: Transformer | None) -> list[str]:
    """Write the modules up to the vectors of the encoder (its query tower, if it has two); returns their types."""
    if encoder is None:
        write_part(folder, Part.of(config, "encoder"))
        return [_path(TextEncoder)]
    encoder.tokenizer.save_pretrained(folder)
    encoder.network.save_pretrained(folder)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    (folder / "1_Pooling").mkdir()
    kinds = {f"pooling_mode_{kind}": encoder.pooling == kind.partition("_")[0] for kind in ("mean_tokens", "cls_token")}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": model.encoder.width, **kinds})
    return [f"{THEIRS}.Transformer", f"{THEIRS}.Pooling"]


def _write_dense(folder: Path, layer: Layer) -> None:
    folder.mkdir()
    out_features, in_features = layer.weight_OI.shape
    shape = {"in_features": in_features, "out_features": out_features, "bias": True}
    _write(folder / "config.json", {**shape, "activation_function": ACTIVATIONS[layer.activation]})
    weights = {"linear.weight": layer.weight_OI.contiguous(), "linear.bias": layer.bias_O.contiguous()}
    write_tensors(folder / "model.safetensors", weights)


def _path(module: type) -> str:
    return f"{module.__module__}.{module.__qualname__}"


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
