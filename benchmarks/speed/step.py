"""Goal 9: a whole training step, compared with its encoder alone, a plain training script and sentence-transformers."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from harness import Row, interleaved

from xmclab.api import Dataset, Split
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.profile import Profile
from xmclab.training.trainer import Trainer

QUERIES, POOL, PADDED = 1098, 3000, 32
WORDS = [f"w{i}" for i in range(3000)]


def titles(count: int, rng: np.random.Generator) -> list[str]:
    """Texts of 4 to 10 words."""
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 11))) for _ in range(count)]


def dataset(queries: int = 20_000, labels: int = 20_000) -> Dataset:
    """Random titles with three labels each; only the sizes matter."""
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


def make_trainer(folder: Path, data: Dataset, width: int, queries: int, pool: int) -> Trainer:
    overrides = ["recipe=unidec_paper", f"encoder.model={folder}", "sampler=random", f"sampler.batch_size={queries}"]
    overrides += ["miner=random", f"pool.cap={pool}", f"head.de.dim={width}", f"head.clf.dim={width}", "epochs=1"]
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


class SentenceTransformers:
    """One of its ranking losses in its usual loop: each query with a positive and two more columns of labels.

    It encodes the same number of texts, but has one head, one direction, and only a query's own positives.
    """

    def __init__(self, folder: Path, texts: Sequence[str], labels: Sequence[str], cached: bool) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses

        self.model = SentenceTransformer(str(folder)).train()
        self.model.max_seq_length = PADDED
        if cached:
            self.loss = losses.CachedMultipleNegativesRankingLoss(self.model, mini_batch_size=256)
        else:
            self.loss = losses.MultipleNegativesRankingLoss(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        rows = min(len(texts), len(labels) // 3)
        self.columns = [list(texts[:rows]), *(list(labels[i * rows : (i + 1) * rows]) for i in range(3))]

    def step(self) -> None:
        features = [self.model.preprocess(column) for column in self.columns]
        self.optimizer.zero_grad()
        self.loss(features, None).backward()
        self.optimizer.step()


class Step:
    """Our step on one batch, and the alternatives' steps on the same texts."""

    def __init__(self, data: Dataset, layers: int, width: int, queries: int = QUERIES, pool: int = POOL) -> None:
        self.data, self.width = data, width
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        save_bert(self.folder, layers, width)
        self.trainer = make_trainer(self.folder, data, width, queries, pool)
        rows = self.trainer.plan(0)[0]
        self.prepared = self.trainer.prepare(0, rows)
        sizes = f"{len(self.prepared.batch.rows_Q)} queries × {len(self.prepared.batch.labels_P)} labels"
        self.shape = f"{layers}×{width} encoder, {sizes}, dim {width}"

    def ours(self) -> None:
        self.trainer.step(0, self.prepared)

    def peers(self) -> dict[str, Callable[[], None]]:
        truth = self.prepared.truth
        row_ids, label_ids = (
            torch.from_numpy(self.prepared.batch.rows_Q),
            torch.from_numpy(self.prepared.batch.labels_P),
        )
        plain, positives = PlainScript(self.folder, self.data, self.width), truth.matrix(torch.float32)
        steps: dict[str, Callable[[], None]] = {"plain script": lambda: plain.step(row_ids, label_ids, positives)}
        if importlib.util.find_spec("sentence_transformers"):
            texts = [self.data.train.texts[row] for row in self.prepared.batch.rows_Q]
            labels = [self.data.label_texts[label] for label in self.prepared.batch.labels_P]
            for name, cached in (("MultipleNegativesRanking", False), ("CachedMultipleNegativesRanking", True)):
                steps[f"sentence-transformers {name}"] = SentenceTransformers(self.folder, texts, labels, cached).step
        return steps


def bare_products(step: Step) -> Callable[[], None]:
    """The unavoidable products of the heads: linear layers and scores, forward and backward."""
    x_QD, x_PD = (
        torch.randn(len(step.prepared.batch.rows_Q), step.width),
        torch.randn(len(step.prepared.labels_P), step.width),
    )
    w_DD = torch.randn(step.width, step.width)

    def run() -> None:
        for x_BD in (x_QD, x_PD, x_QD):  # the dual encoder's two sides, the classifier's queries
            y_BD = x_BD @ w_DD.T
            y_BD @ w_DD, y_BD.T @ x_BD
        for _ in range(2):
            s_QP = x_QD @ x_PD.T
            s_QP @ x_PD, s_QP.T @ x_QD

    return run


def overhead(step: Step, bound: float, repeats: int) -> Row:
    """What the parts beyond the encoder add to a step, measured in the same steps."""
    step.ours()
    profile = Profile(step.trainer.device)
    step.trainer.part = profile.part
    for _ in range(repeats):
        with profile.part("step"):
            step.ours()
    step.trainer.part = contextlib.nullcontext
    whole = profile.seconds["step"] / repeats
    encoder = (profile.seconds["encode forward"] + profile.seconds["encode backward"]) / repeats
    what = f"overhead beyond the encoder: {step.shape}"
    bare = interleaved({"bare": bare_products(step)}, 5)["bare"]
    beside = f"its encoder {encoder:.2f} s; bare products of the heads {bare:.3f} s ({100 * bare / encoder:.2g} %)"
    return Row(9, what, f"{whole:.2f} s a step", beside, whole / encoder - 1, bound)


def beside_peers(step: Step, least: float, repeats: int) -> list[Row]:
    seconds = interleaved({"ours": step.ours, **step.peers()}, repeats)
    ours = seconds.pop("ours")
    what = f"whole step: {step.shape}"
    rows = []
    for name, peer in seconds.items():
        bound = least if name == "plain script" else 1.0
        note = "" if len(seconds) > 1 else "; sentence-transformers is not installed"
        rows.append(Row(9, what, f"{ours:.2f} s a step", f"{name} {peer:.2f} s{note}", peer / ours, bound, ">="))
    return rows


def measure() -> list[Row]:
    data = dataset()
    small, large = Step(data, 2, 128), Step(data, 6, 384)
    rows = [overhead(small, 0.05, 5), overhead(large, 0.01, 2), *beside_peers(small, 4.5, 5)]
    # Padded, with autograd's graph, the large encoder needs 30 GB for such a batch, so use a quarter of it.
    return rows + beside_peers(Step(data, 6, 384, QUERIES // 4, POOL // 4), 3.0, 1)
