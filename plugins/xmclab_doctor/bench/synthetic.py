"""Texts of any length, a random DistilBERT of any size that reads them, and trainers of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from xmclab.api import Dataset, Split
from xmclab.host import default_registry, resolve
from xmclab_doctor.bench.roof import Transformer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENDS = 2  # tokens that the tokenizer adds to a text
LABELS_OF_A_QUERY = 5
SHORTEST = 4  # tokens of a title
Lengths = tuple[int, int]  # (mean, most) tokens of a text; all alike if they are equal


@dataclass(frozen=True)
class Network:
    """The size of a DistilBERT."""

    layers: int = 6
    width: int = 768
    heads: int = 12
    words: int = 30_522
    longest: int = 512

    def save(self, folder: Path) -> None:
        """Write it with random weights, and a tokenizer to which `w7` is a word."""
        import torch
        from transformers import BertTokenizerFast, DistilBertConfig, DistilBertModel
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        folder.mkdir(parents=True)
        vocabulary = folder / "vocab.txt"
        vocabulary.write_text("\n".join([*SPECIAL, *(f"w{n}" for n in range(self.words - len(SPECIAL)))]))
        BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
        size = {"dim": self.width, "hidden_dim": 4 * self.width, "n_layers": self.layers, "n_heads": self.heads}
        torch.manual_seed(0)
        config = DistilBertConfig(vocab_size=self.words, max_position_embeddings=self.longest, **size)
        DistilBertModel(config).save_pretrained(folder)

    def cost(self, weights: int) -> Transformer:
        return Transformer(self.layers, self.width, weights)


def texts(number: int, lengths: Lengths, words: int, rng: np.random.Generator) -> list[str]:
    """Random texts of about `mean` tokens each, special ones included, and none longer than `most`."""
    mean, most = lengths
    spread = rng.gamma(4.0, (mean - SHORTEST) / 4.0, number) if most > mean else np.zeros(number)
    tokens = np.clip(np.rint(SHORTEST + spread), SHORTEST, most).astype(int) if most > mean else np.full(number, mean)
    ids = iter(rng.integers(words - len(SPECIAL), size=int(tokens.sum())).tolist())
    return [" ".join(f"w{next(ids)}" for _ in range(length - ENDS)) for length in tokens.tolist()]


def data(
    queries: int, labels: int, of_queries: Lengths, of_labels: Lengths | None, words: int, seed: int = 0
) -> Dataset:
    """A set in memory: a few random labels for every query.

    Args:
        of_labels: None: nothing reads the texts of labels, which are alike then.
    """
    rng = np.random.default_rng(seed)
    label_texts = ["w0"] * labels if of_labels is None else texts(labels, of_labels, words, rng)
    train = _split(texts(queries, of_queries, words, rng), labels, rng)
    test = _split(train.texts[:2], labels, rng)
    return Dataset("synthetic", train, test, label_texts, [str(n) for n in range(labels)], "synthetic")


def _split(queries: Sequence[str], labels: int, rng: np.random.Generator) -> Split:
    number, each = len(queries), min(LABELS_OF_A_QUERY, labels)
    firsts = rng.integers(labels, size=(number, 1))
    columns: NDArray[np.int64] = np.sort((firsts + np.arange(each) * max(labels // each, 1)) % labels, axis=1)
    offsets = np.arange(number + 1) * each
    ones = np.ones(number * each, np.float32)
    targets = sp.csr_array((ones, columns.ravel(), offsets), shape=(number, labels))
    nothing = sp.csr_array((ones[:0], columns.ravel()[:0], 0 * offsets), shape=(number, labels))
    return Split(queries, [str(n) for n in range(number)], targets, nothing)


def trainer(folder: Path, made: Dataset, device: str, *overrides: str) -> Any:
    """A trainer of the network in a folder: both heads, short pools of random negatives, unless overridden."""
    from xmclab.training.trainer import Trainer

    usual = [
        "recipe=none",
        "encoder=hf",
        f"encoder.model={folder}",
        "sampler=random",
        "miner=random",
        "pool.beta=3",
        "pool.eta=3",
        "loss.de=ds",
        "loss.clf=ds+bce",
        "optim.warmup=0",
        "optim.schedule=constant",
        "baseline=none",
        "data.cache=off",
        f"device={device}",
    ]
    return Trainer(resolve([*usual, *overrides], default_registry()), made)


def batches(trainer: Any, number: int, first: int = 0) -> Iterator[Any]:
    """Prepared batches of a trainer, over as many epochs as that takes."""
    plans: list[NDArray[np.int64]] = []
    epoch = 0
    while len(plans) < first + number:
        plans += trainer.plan(epoch)
        epoch += 1
    yield from trainer.batches(plans[first : first + number], first)


class Training:
    """Steps as a run takes them: where the host would have to wait for one, it first begins the next."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._running: Any = None

    def step(self, number: int, prepared: Any) -> None:
        launched = self.trainer.launch(number, prepared)
        self.finish()
        self._running = launched
        if not self.trainer.late:
            self.finish()

    def finish(self) -> None:
        """Wait for the latest step."""
        if self._running is not None:
            self.trainer.finish(self._running)
            self._running = None
