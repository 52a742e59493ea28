"""A folder that the sentence-transformers library loads, written without it.

config.json, model.safetensors, tokenizer files    the transformers encoder, which loads by itself as well
modules.json                                       the modules below, in order
1_Pooling  2_Dense  3_Normalize                    pooling, the head's projection, unit length
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from xmclab.api import Head
from xmclab.model.encoders.hf import HuggingFace
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.model import Model

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "none": "torch.nn.modules.linear.Identity"}


def query_head(model: Model) -> str | None:
    """The head whose query vectors such a folder can give; None if it cannot express the model."""
    name = model.head_names[0]
    known = type(model.encoder) is HuggingFace and type(model.head(name)) in (DualEncoder, Classifier)
    return name if known else None


def write_sentence_transformer(folder: Path, model: Model) -> None:
    """Write the encoder (its query tower, if it has two) and the projection of `query_head`."""
    encoder = model.encoder
    assert isinstance(encoder, HuggingFace)
    name = query_head(model)
    assert name is not None
    encoder.tokenizer.save_pretrained(folder)
    encoder.network.save_pretrained(folder)
    linear, activation = _projection(model.head(name))

    paths = ["", *(f"{place}_{module}" for place, module in enumerate(MODULES[1:], start=1))]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{module}"}
        for place, (path, module) in enumerate(zip(paths, MODULES, strict=True))
    ]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    pooling = {"word_embedding_dimension": encoder.width}
    _write(
        folder / paths[1] / "config.json",
        pooling
        | {f"pooling_mode_{kind}": encoder.pooling == kind.partition("_")[0] for kind in ("mean_tokens", "cls_token")},
    )
    dense = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": True}
    _write(folder / paths[2] / "config.json", dense | {"activation_function": ACTIVATIONS[activation]})
    weights = {f"linear.{key}": value.detach().cpu().contiguous() for key, value in linear.state_dict().items()}
    save_file(weights, folder / paths[2] / "model.safetensors")


def _projection(head: Head) -> tuple[nn.Linear, str]:
    """(linear map, activation behind it) of a built-in head."""
    if isinstance(head, DualEncoder):
        linear, activation = head.g1[0], head.activation
    else:
        assert isinstance(head, Classifier)
        linear, activation = head.g2[0], "none"
    assert isinstance(linear, nn.Linear)
    return linear, activation


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
