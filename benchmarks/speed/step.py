"""Goal 9: a whole training step, beside its encoder alone and beside a plain training script."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from harness import Row, interleaved

from xmclab.api import Dataset, Split
from xmclab.config import resolve
from xmclab.plugins import default_registry
from xmclab.train.trainer import Trainer

QUERIES, POOL, PADDED = 1098, 3000, 32
WORDS = [f"w{i}" for i in range(3000)]


def titles(count: int, rng: np.random.Generator) -> list[str]:
    """Texts of 4 to 10 words."""
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 11))) for _ in range(count)]


def dataset(queries: int = 20_000, labels: int = 20_000) -> Dataset:
    """Random titles with three labels each: only sizes matter here."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(queries), 3)
    pairs = sp.csr_array(
        (np.ones(len(rows), np.float32), (rows, rng.integers(0, labels, len(rows)))), (queries, labels)
    )
    pairs.data[:] = 1
    split = Split(titles(queries, rng), [""] * queries, pairs, sp.csr_array((queries, labels), dtype=np.float32))
    return Dataset("random", split, split, titles(labels, rng), [""] * labels, "")


def save_bert(folder: Path, layers: int, width: int) -> None:
    """A BERT with random weights and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS) + 5,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)


def make_trainer(folder: Path, data: Dataset, width: int) -> Trainer:
    overrides = ["recipe=unidec_paper", f"encoder.model={folder}", "sampler=random", f"sampler.batch_size={QUERIES}"]
    overrides += ["miner=random", f"pool.cap={POOL}", f"head.de.dim={width}", f"head.clf.dim={width}", "epochs=1"]
    return Trainer(resolve(overrides, default_registry()), data)


class PlainScript:
    """What a user writes: texts padded to a fixed length, masks, autograd, one dense optimizer. Tokenised ahead."""

    def __init__(self, folder: Path, data: Dataset, width: int) -> None:
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        options: dict[str, Any] = {"padding": "max_length", "truncation": True, "max_length": PADDED}
        self.query_tokens = tokenizer(list(data.train.texts), return_tensors="pt", **options)
        self.label_tokens = tokenizer(list(data.label_texts), return_tensors="pt", **options)
        self.encoder = AutoModel.from_pretrained(folder).train()
        self.g1, self.g2 = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.psi = torch.nn.Embedding(data.num_labels, width)
        modules = torch.nn.ModuleList([self.encoder, self.g1, self.g2, self.psi])
        self.optimizer = torch.optim.Adam(modules.parameters(), lr=1e-4)

    def encode(self, tokens: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        mask = tokens["attention_mask"][rows]
        hidden = self.encoder(input_ids=tokens["input_ids"][rows], attention_mask=mask).last_hidden_state
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    @staticmethod
    def loss(scores: torch.Tensor, positives: torch.Tensor) -> torch.Tensor:
        negatives = scores.masked_fill(positives > 0, -torch.inf).logsumexp(1, keepdim=True)
        terms = torch.logaddexp(scores, negatives) - scores
        count = positives.sum(1)
        return ((terms * positives).sum(1) / count.clamp(min=1)).sum() / (count > 0).sum()

    def step(self, rows: torch.Tensor, labels: torch.Tensor, positives: torch.Tensor) -> None:
        x, z = self.encode(self.query_tokens, rows), self.encode(self.label_tokens, labels)
        de = F.normalize(torch.tanh(self.g1(x)), dim=1) @ F.normalize(torch.tanh(self.g1(z)), dim=1).T * 18
        clf = self.g2(x) @ self.psi(labels).T * 18
        both = [0.5 * (self.loss(s, positives) + self.loss(s.T, positives.T)) for s in (de, clf)]
        total = 0.5 * both[0] + 0.5 * (both[1] + F.binary_cross_entropy_with_logits(clf, positives))
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()


def measure_one(data: Dataset, layers: int, width: int, least: float, overhead: float, repeats: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_bert(folder, layers, width)
        ours, plain = make_trainer(folder, data, width), PlainScript(folder, data, width)
    rows = ours.sampler.plan(ours.rows_N, 0, None, ours.keys)[0]
    batch, query_chunks, label_chunks = ours.prepare(0, rows)
    tensors = ours.on_device(batch, query_chunks, label_chunks)
    row_ids, label_ids = torch.from_numpy(batch.rows_Q), torch.from_numpy(batch.labels_P)
    positives = tensors.truth.matrix(torch.float32)

    def encoder_alone() -> None:
        for chunks, side in ((query_chunks, "query"), (label_chunks, "label")):
            for chunk in chunks:
                ours.model.encoder(chunk, side).sum().backward()
        ours.model.zero_grad()

    def whole_step() -> None:
        ours.train_step(0, batch, ours.on_device(batch, query_chunks, label_chunks))

    ours.model.train()
    seconds = interleaved({"encoder": encoder_alone, "ours": whole_step}, repeats)
    started = time.perf_counter()
    plain.step(row_ids, label_ids, positives)
    seconds["plain"] = time.perf_counter() - started
    shape = f"{layers}×{width} encoder, {len(batch.rows_Q)} queries × {len(batch.labels_P)} labels, dim {width}"
    share = seconds["ours"] / seconds["encoder"] - 1
    ratio = seconds["plain"] / seconds["ours"]
    step = f"{seconds['ours']:.2f} s a step"
    return [
        Row(
            9,
            f"overhead beyond the encoder: {shape}",
            step,
            f"encoder alone {seconds['encoder']:.2f} s",
            share,
            overhead,
        ),
        Row(
            9, f"whole step: {shape}", step, f"plain script {seconds['plain']:.2f} s ({ratio:.1f}×)", ratio, least, ">="
        ),
    ]


def measure() -> list[Row]:
    data = dataset()
    small = measure_one(data, 2, 128, least=4.5, overhead=0.05, repeats=5)
    return small + measure_one(data, 6, 384, least=3.0, overhead=0.01, repeats=2)
