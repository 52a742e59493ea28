"""Trains cases for a step on the fake device, in a process with the shim: a line of JSON for each."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from cases import FAMILIES, FAULTY, cases
from device import pretended
from meter import ROOT, Meter

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.trainer import Trainer

QUERIES = 24
WIDTH = 16
STEPS = 2  # of parts: the second one has the states of the optimizers


def network(kind: str, folder: Path) -> Path:
    """The folder of a random network of this family, small, with a tokenizer that knows few words."""
    from transformers import AutoConfig, AutoModel, BertTokenizerFast

    folder = folder / kind
    if not folder.is_dir():
        folder.mkdir()
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
        words += [f"##{word}" for word in words[5:]]
        (folder / "vocab.txt").write_text("\n".join(words))
        BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
        size = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        if kind == "distilbert":
            size = {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
        config = AutoConfig.for_model(kind, vocab_size=len(words), pad_token_id=0, **size)
        AutoModel.from_config(config).save_pretrained(folder)
    return folder


def with_filter(data: Dataset) -> Dataset:
    """The same data with filter pairs: each query and the label of its number, unless that is a positive."""
    shape = data.train.targets_NL.shape
    pairs_NL = sp.csr_array((np.ones(shape[0]), (np.arange(shape[0]), np.arange(shape[0]) % shape[1])), shape=shape)
    filter_NL = (pairs_NL - pairs_NL.multiply(data.train.targets_NL.astype(bool))).tocsr()
    filter_NL.eliminate_zeros()
    return dataclasses.replace(data, train=dataclasses.replace(data.train, filter_NL=filter_NL))


def where(error: BaseException) -> str:
    """The innermost line of the project."""
    found = "elsewhere"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith((f"{ROOT / 'xmclab'}/", f"{ROOT / 'plugins'}/", str(FAULTY))):
            found = f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}"
    return found


class Bench:
    """Makes trainers of cases, and trains them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.registry = folder, default_registry()
        self.data = open_dataset("tiny", "title", self.registry)

    def trained(self, overrides: Sequence[str], steps: int) -> dict[str, Any]:
        """What all stages of a case asked of the device in the last step of each."""
        words = {word for word in overrides if word.isupper()}
        config = resolve([word for word in overrides if word not in words], self.registry)
        data = with_filter(self.data) if "FILTER" in words else self.data
        stages = {**config.earlier, config.stage: config}
        return {name: self._stage(self._small(each), data, words, steps) for name, each in stages.items()}

    def _small(self, config: Config) -> Config:
        """The config with narrow vectors, and a network that is made here."""
        for name in config.heads:
            if config.make(f"head.{name}").dim:
                config = config.with_option(f"head.{name}", "dim", WIDTH)
        if config.choice("encoder") == "bag":
            return config.with_option("encoder", "dim", WIDTH)
        model = config.make("encoder").model
        kind = next((family for family in FAMILIES if family in model), "bert")
        return config.with_option("encoder", "model", str(network(kind, self.folder)))

    def _stage(self, config: Config, data: Dataset, words: set[str], steps: int) -> dict[str, Any]:
        meter = Meter()
        with pretended(meter, (7, 0) if "V100" in words else (8, 0)):
            trainer = Trainer(config, data)
            rows = trainer.rows_N[:QUERIES]
            if "REFRESH" in words:
                trainer.refresh(1)
                rows = trainer.plan(1)[0]
            for step in range(steps):
                meter.forget()
                prepared = trainer.prepare(step, rows)
                copied = meter.pageable.total()
                meter.forget()
                record = trainer.step(step, prepared)
            untouched = untrained(trainer)
        return {
            "loss": record["loss"],
            "launches": meter.launched.total(),
            "waits": dict(meter.waited),
            "copies": dict(meter.pageable),
            "copied": copied,
            "untrained": untouched,
        }


def untrained(trainer: Trainer) -> list[str]:
    """Parameters that should have been updated, and were not."""
    updated = {id(parameter) for parameter, state in trainer.optimizers.states() if state}
    tables = {id(table.weight) for table in trainer.model.tables() if table.optimizer == "sgd"}
    named = trainer.model.named_parameters()
    return [name for name, p in named if p.requires_grad and id(p) not in updated | tables]


def main(folder: Path, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    bench, known = Bench(folder), cases()
    for name in names or known:
        started = time.process_time()
        try:
            result: dict[str, Any] = {"stages": bench.trained(known[name], STEPS if name.startswith("part:") else 1)}
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            result = {"error": f"{type(error).__name__} at {where(error)}: {text}"}
        print(json.dumps({"case": name, "seconds": round(time.process_time() - started, 2), **result}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), sys.argv[1:])
