"""A folder that the sentence-transformers library loads, written without it.

config.json, model.safetensors, tokenizer files    the transformers encoder, which loads by itself as well
modules.json                                       the modules below, in order
1_Pooling  2_Dense  3_Normalize                    pooling, the head's projection, unit length (if searched so)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xmclab.model.model import Model
from xmclab.system.tensors import write_tensors

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
ACTIVATIONS = {"tanh": "torch.nn.modules.activation.Tanh", "none": "torch.nn.modules.linear.Identity"}


def query_head(model: Model) -> str | None:
    """The head whose query vectors such a folder can give; None if it cannot express the model."""
    name = model.head_names[0]
    return name if model.encoder.transformer() and model.head(name).query_projection() else None


def write_sentence_transformer(folder: Path, model: Model) -> None:
    """Write the encoder (its query tower, if it has two) and the projection of `query_head`."""
    encoder, name = model.encoder.transformer(), query_head(model)
    projection = model.head(name).query_projection() if name else None
    assert encoder is not None, "query_head() asks first"
    assert projection is not None, "query_head() asks first"
    encoder.tokenizer.save_pretrained(folder)
    encoder.network.save_pretrained(folder)
    linear, activation = projection

    unit = name is not None and model.head(name).searched_at_unit_length
    names = MODULES if unit else MODULES[:-1]
    paths = ["", *(f"{place}_{module}" for place, module in enumerate(names[1:], start=1))]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{module}"}
        for place, (path, module) in enumerate(zip(paths, names, strict=True))
    ]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine" if unit else "dot"})
    pooling = {"word_embedding_dimension": model.encoder.width}
    _write(
        folder / paths[1] / "config.json",
        pooling
        | {f"pooling_mode_{kind}": encoder.pooling == kind.partition("_")[0] for kind in ("mean_tokens", "cls_token")},
    )
    dense = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": True}
    _write(folder / paths[2] / "config.json", dense | {"activation_function": ACTIVATIONS[activation]})
    weights = {f"linear.{key}": value.detach().cpu().contiguous() for key, value in linear.state_dict().items()}
    write_tensors(folder / paths[2] / "model.safetensors", weights)


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
