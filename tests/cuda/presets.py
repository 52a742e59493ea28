"""Steps of real size on the fake device: what they ask of it, and what it holds; a line of JSON for each.

python tests/cuda/presets.py [preset ...], in a process with the shim, as the tests and benchmarks/gpu start it
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp
import torch
from device import DEVICE, pretended
from meter import Meter
from worker import network

from xmclab.api import Dataset, Encoder, Ragged, Split
from xmclab.data.tokens import Tokeniser
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.encoders import hf
from xmclab.runs import sizes
from xmclab.runs.step_memory import parts_on_card
from xmclab.training.trainer import Trainer

STEPS = 2  # the second has the states of the optimizers
BATCHES = 4
LABELS_PER_QUERY = 5
DISTILBERT = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
SMALL_BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
PAPER = ("recipe=unidec_paper", "sampler=random", "miner=random", "pool.cap=3000")
TITLES = (*PAPER, "sampler.batch_size=1098", "head.de.dim=256", "head.clf.dim=256")
AMAZON = (*PAPER, "sampler.batch_size=576", "encoder.max_length=128")
EVERY = ("recipe=elmo", "transform=none", "sampler.batch_size=1024")


@dataclass(frozen=True)
class Preset:
    """A step of real size."""

    family: str
    network: dict[str, int]
    labels: int
    query_tokens: int  # mean per text
    label_tokens: int
    overrides: tuple[str, ...]


PRESETS = {
    "MiniLM titles": Preset("bert", MINILM, 1_305_265, 13, 13, TITLES),
    "titles 1.3M": Preset("distilbert", DISTILBERT, 1_305_265, 13, 13, TITLES),
    "titles 1.3M, chunk 512": Preset("distilbert", DISTILBERT, 1_305_265, 13, 13, (*TITLES, "encode.chunk=512")),
    "amazon 131K": Preset("distilbert", DISTILBERT, 131_073, 128, 13, AMAZON),
    "amazon 131K, chunk 256": Preset("distilbert", DISTILBERT, 131_073, 128, 13, (*AMAZON, "encode.chunk=256")),
    "all labels 131K": Preset("distilbert", DISTILBERT, 131_073, 13, 13, EVERY),
    "all labels 1.3M": Preset("distilbert", DISTILBERT, 1_305_265, 13, 13, EVERY),
    "small titles": Preset("bert", SMALL_BERT, 20_000, 13, 13, TITLES),
    "small all labels": Preset("bert", SMALL_BERT, 20_000, 13, 13, (*EVERY, "optim.clip=1")),
}


class Texts(Sequence[str]):
    """So many texts that nobody reads."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, at: Any) -> Any:
        return "" if isinstance(at, int) else Texts(len(range(*at.indices(self.number))))


class Tokens(Tokeniser):
    """Token ids at random, of texts of about the given length."""

    def __init__(self, settings: Any, preset: Preset) -> None:
        super().__init__(settings)
        self.preset = preset

    def fit(self, encoder: Encoder, *texts: Sequence[str]) -> None:
        encoder.fit([])

    def tokens(self, encoder: Encoder, texts: Sequence[str], what: str) -> Ragged:
        mean = self.preset.label_tokens if what == "labels" else self.preset.query_tokens
        rng, most = np.random.default_rng(len(texts)), encoder.max_length
        lengths = np.full(len(texts), most) if mean >= most else rng.integers(mean - 8, mean + 9, len(texts))
        offsets = np.concatenate([[0], lengths.cumsum()])
        return Ragged(rng.integers(5, 30, offsets[-1], dtype=np.int32), offsets)


def dataset(queries: int, labels: int) -> Dataset:
    rng = np.random.default_rng(0)
    columns = rng.integers(labels, size=queries * LABELS_PER_QUERY)
    rows = np.repeat(np.arange(queries), LABELS_PER_QUERY)
    targets_NL = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(queries, labels))
    targets_NL.sum_duplicates()
    targets_NL.data[:] = 1
    nothing = sp.csr_array((queries, labels), dtype=np.float32)
    train = Split(Texts(queries), Texts(queries), targets_NL, nothing)
    none = sp.csr_array((0, labels), dtype=np.float32)
    return Dataset("made", train, Split([], [], none, none), Texts(labels), Texts(labels), "")


@contextmanager
def networks(preset: Preset) -> Iterator[None]:
    """Networks of the preset's size, whose weights are on the device from the start."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(network("bert", Path(folder)))

    def load(*_: object) -> tuple[Any, Any]:
        config = AutoConfig.for_model(preset.family, vocab_size=30522, **preset.network)
        with torch.device(DEVICE):
            return tokenizer, AutoModel.from_config(config)

    with mock.patch.object(hf, "load", load):
        yield


def trainer_of(preset: Preset) -> Trainer:
    """A trainer whose tables are on the device from the start."""
    overrides = (*preset.overrides, "data=tiny", "device=cuda", "encoder.model=made", "epochs=10")
    config = resolve(overrides, default_registry())

    def model(trainer: Trainer, assets: Path | None) -> Any:
        with torch.device(DEVICE):
            return plain(trainer, assets)

    plain = Trainer._model
    with mock.patch.object(Trainer, "_model", model):
        queries = BATCHES * config.make("sampler").batch_size
        return Trainer(config, dataset(queries, preset.labels), Tokens(config.settings.data, preset))


def measured(preset: Preset) -> dict[str, Any]:
    """What the last of a few steps asks of the device, and the most that is held in one."""
    meter = Meter()
    with ExitStack() as stack:
        stack.enter_context(networks(preset))
        stack.enter_context(pretended(meter))
        trainer = trainer_of(preset)
        rows = trainer.plan(0)[0]
        for step in range(STEPS):
            meter.forget()
            prepared = trainer.prepare(step, rows)
            copied, pinned = meter.pageable.copy(), meter.pinned_copies.copy()
            for counter in (meter.waited, meter.pageable, meter.pinned_copies, meter.launched, meter.operations):
                counter.clear()
            trainer.step(step, prepared)
        parts = [p for p in parts_on_card(trainer) if p.place == "device" and p.phase in ("always", "training")]
    tokens = [sum(len(chunk.tokens["ids_T"]) for chunk in side) for side in (prepared.queries, prepared.labels)]
    return {
        "queries": len(rows),
        "pool": len(prepared.labels_P),
        "tokens": tokens,
        "launches": dict(meter.launched.most_common()),
        "operations": dict(meter.operations.most_common()),
        "waits": dict(meter.waited),
        "copies": dict(meter.pageable),
        "prepared_copies": dict(copied),
        "pinned_copies": dict(pinned + meter.pinned_copies),
        "held": meter.held,
        "peak": meter.peak,
        "at_peak": dict(Counter(meter.at_peak).most_common(12)),
        "parts": {part.name: part.bytes for part in parts},
        "predicted": sizes.peak(parts, "device"),
    }


def main(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    for name in names or PRESETS:
        print(json.dumps({"preset": name, **measured(PRESETS[name])}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
