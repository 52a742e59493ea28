"""Modules of a SentenceTransformer for what the library has none for; a folder with them needs xmclab to be loaded.

They are found by their import path in modules.json, so that the folder holds no code. They use only what the library
asks of any module, and do not import it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from xmclab.api import Encoder, Head
from xmclab.host.config import Config
from xmclab.host.options import make_part, options_of
from xmclab.host.registry import default_registry
from xmclab.model.model import Model
from xmclab.runs.store import ENCODER, EXPORT_WEIGHTS, damage_reported
from xmclab.system.reading import read_json
from xmclab.system.tensors import write_tensors

PART, CONFIG, WEIGHTS = "part.json", "config.json", "model.safetensors"
VECTOR = "sentence_embedding"  # where the library keeps the vectors of texts

Features = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part that is made again wherever its plugin is installed."""

    kind: str
    name: str
    options: Mapping[str, Any]  # as JSON values

    @classmethod
    def of(cls, config: Config, slot: str) -> Part:
        """What a config has in a slot."""
        chosen = config.parts[slot]
        assert chosen is not None, "a model has all its parts"
        options = {name: option.dump(chosen.options[name]) for name, option in options_of(chosen.cls).items()}
        return cls(slot.partition(".")[0], chosen.name, options)

    def make(self) -> Any:
        """A new instance.

        Raises:
            ConfigError: no installed plugin supplies it.
        """
        return make_part(default_registry().get(self.kind, self.name), self.options, self.kind)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}

    @classmethod
    def read(cls, kind: str, document: Any) -> Part:
        return cls(kind, str(document["name"]), dict(document["options"]))


class TextEncoder(nn.Module):
    """The first module: an encoder of xmclab, such as the bag of words; texts to the vectors that heads take.

    Optimizers of other libraries do not train its tables, whose gradients are lists of rows.
    """

    save_in_root = True
    modalities = ("text",)

    def __init__(self, part: Part, encoder: Encoder) -> None:
        super().__init__()
        self.part, self.encoder = part, encoder

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> Features:
        """What `forward` takes, on the host."""
        return dict(self.encoder.collate(self.encoder.tokenise([f"{prompt or ''}{text}" for text in inputs])))

    def tokenize(self, texts: Sequence[str], **_: Any) -> Features:
        """The same, as sentence-transformers 5 calls it."""
        return self.preprocess(texts)

    def forward(self, features: Features, **_: Any) -> Features:
        features[VECTOR] = self.encoder(features, "query").float()
        return features

    def get_embedding_dimension(self) -> int:
        return self.encoder.width

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        folder = Path(output_path)
        (folder / ENCODER).mkdir(exist_ok=True)
        self.encoder.save_assets(folder / ENCODER)
        write_part(folder, self.part)
        write_tensors(folder / EXPORT_WEIGHTS, {f"encoder.{name}": x for name, x in _host(self.encoder).items()})

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **where: Any) -> Self:
        """Read it from the folder of a model, or from the hub."""
        folder = _local(model_name_or_path, subfolder, where)
        with damage_reported(folder / ENCODER):
            part = Part.read("encoder", read_json(folder / ENCODER / PART))
            encoder = part.make()
            encoder.load_assets(folder / ENCODER)
        with damage_reported(folder / EXPORT_WEIGHTS):
            weights = load_file(folder / EXPORT_WEIGHTS)
            prefix = "encoder."
            state = {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}
            encoder.load_state_dict(state)
        return cls(part, encoder.eval())


def write_part(folder: Path, part: Part) -> None:
    """What `TextEncoder` needs to know besides what `Encoder.save_assets` and the weights say."""
    _write(folder / ENCODER / PART, part.to_dict())


class QueryVectors(nn.Module):
    """The last module: encoded texts to the query vectors of a search, those of its heads side by side.

    Formula:  q = (q_1, 1, q_2, 1, ...), the 1 only for heads whose label vectors end in a bias
    """

    def __init__(self, parts: Mapping[str, Part], heads: Mapping[str, Head], width: int, biased: Iterable[str]) -> None:
        """
        Args:
            heads: by name, in the order of the search; built.
            width: that of the encoder.
            biased: those whose label vectors end in a bias.
        """
        super().__init__()
        self.parts, self.heads = dict(parts), nn.ModuleDict(dict(heads))
        self.width, self.biased = width, tuple(biased)
        with torch.no_grad():
            self.dimension = int(self.vectors(torch.zeros(1, width)).shape[1])

    def vectors(self, x_BD: Tensor) -> Tensor:
        """q_BD of encoded texts."""
        found: list[Tensor] = []
        for name, head in self.heads.items():
            assert isinstance(head, Head)
            found.append(head.search_queries(x_BD))
            if name in self.biased:
                found.append(x_BD.new_ones(len(x_BD), 1))
        return torch.cat(found, dim=1)

    def forward(self, features: Features, **_: Any) -> Features:
        features[VECTOR] = self.vectors(features[VECTOR])
        return features

    def get_embedding_dimension(self) -> int:
        return self.dimension

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        heads = {name: part.to_dict() for name, part in self.parts.items()}
        _write(Path(output_path) / CONFIG, {"heads": heads, "width": self.width, "biased": list(self.biased)})
        write_tensors(Path(output_path) / WEIGHTS, _host(self.heads))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **where: Any) -> Self:
        """Read it from the folder of a model, or from the hub."""
        folder = _local(model_name_or_path, subfolder, where)
        with damage_reported(folder):
            document = read_json(folder / CONFIG)
            parts = {name: Part.read("head", part) for name, part in document["heads"].items()}
            width, biased = int(document["width"]), list(document["biased"])
            module = cls(parts, built(parts, width), width, biased)
            module.heads.load_state_dict(load_file(folder / WEIGHTS))
        return module.eval()


def query_vectors(config: Config, model: Model, search: Sequence[str], biased: Iterable[str]) -> QueryVectors:
    """The module of some heads of a model; it has their weights, apart from those of labels."""
    parts = {name: Part.of(config, f"head.{name}") for name in search}
    heads = built(parts, model.encoder.width)
    for name, head in heads.items():
        small, state = head.state_dict(), model.head(name).state_dict()
        head.load_state_dict({key: state[key] for key in small if state[key].shape == small[key].shape}, strict=False)
    return QueryVectors(parts, heads, model.encoder.width, biased).eval()


def built(parts: Mapping[str, Part], width: int) -> dict[str, Head]:
    """New heads for an encoder of this width, and for as few labels as possible."""
    heads: dict[str, Head] = {name: part.make() for name, part in parts.items()}
    for head in heads.values():
        head.build(width, num_labels=1)
        head.eval()
    return heads


def foreign(config: Config, slots: Iterable[str]) -> str:
    """A part in these slots that no installed plugin supplies, so that nobody else could load it; else empty."""
    for slot in slots:
        chosen = config.parts[slot]
        assert chosen is not None, "a model has all its parts"
        origin = config.registry.origin(slot.partition(".")[0], chosen.name)
        if origin.is_file or origin.is_class:
            return f"{slot}={chosen.name}"
    return ""


def _host(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}


def _local(name_or_path: str, subfolder: str, where: Mapping[str, Any]) -> Path:
    """The folder of a module; that of a model of the hub is downloaded first."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path) / subfolder
    from sentence_transformers.util import load_dir_path

    known = ("token", "cache_folder", "revision", "local_files_only")
    find: Callable[..., Any] = load_dir_path
    return Path(str(find(name_or_path, subfolder, **{key: where[key] for key in known if key in where})))


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
