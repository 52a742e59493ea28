"""Gradient caching: time compared with a single pass, memory as the pool grows, and fetching tokens."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoder import make_titles
from harness import Row, interleaved, peak_growth

from xmclab.api import Ragged, Tokens
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.model.device import FULL
from xmclab.model.encoders import packed
from xmclab.model.encoders.hf import MINILM, MINILM_PACKAGE, HuggingFace
from xmclab.training.batches import Chunk
from xmclab.training.encoding import ChunkedEncoding

VOCABULARY, CHUNK, POOL = 8192, 256, 1024
FETCHES = 20  # in a row: a single one is too short to time


class SmallBert(torch.nn.Module):
    """A BERT of 2 layers and width 128, encoding packed tokens as the `hf` encoder does."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.network: Any = BertModel(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=512,
            )
        )
        packed.attach(self.network)

    def forward(self, tokens: Tokens, side: str = "query") -> torch.Tensor:
        return packed.encode(self.network, tokens, "mean")


def step(encoder: Any, titles: Ragged, chunk: int) -> Callable[[], None]:
    """Encode the titles in chunks, take a loss over all pairs, and backpropagate."""
    rows = np.arange(len(titles))
    parts = [packed.pack(titles.take(rows[start : start + chunk])) for start in range(0, len(rows), chunk)]
    chunks = [Chunk(part, seed) for seed, part in enumerate(parts)]

    def run() -> None:
        encoder.zero_grad()
        encoding = ChunkedEncoding(encoder, chunks, "label", FULL)
        torch.nn.functional.normalize(encoding.x_BD).sum(dim=0).square().sum().backward()
        encoding.backward()

    return run


def pool_of(times: int) -> Callable[[], None]:
    """For `peak_growth`: a step over `times` pools, after a tiny one that loads the libraries."""
    torch.manual_seed(0)
    encoder = SmallBert()
    step(encoder, make_titles(8, VOCABULARY), CHUNK)()
    return step(encoder, make_titles(times * POOL, VOCABULARY), CHUNK)


def make_tokenizer_encoder(texts: list[str]) -> HuggingFace:
    """An `hf` encoder with MiniLM's tokenizer, or else one built from the words and characters of the texts."""
    if importlib.util.find_spec(MINILM_PACKAGE):
        encoder = HuggingFace(model=MINILM)
        encoder.fit(texts)
        return encoder
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [word for word, _ in Counter(" ".join(texts).lower().split()).most_common(VOCABULARY // 2)]
    characters = sorted({character for text in texts for character in text.lower() if character.isprintable()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *characters, *(f"##{c}" for c in characters)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(dict.fromkeys(pieces)), encoding="utf-8")
        BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        BertModel(BertConfig(vocab_size=len(pieces), **shape)).save_pretrained(folder)
        encoder = HuggingFace(model=folder)
        encoder.fit(texts)
    return encoder


def fetching(repeats: int) -> list[Row]:
    data = open_dataset("debian", "title", default_registry())
    texts = list(data.train.texts)
    encoder = make_tokenizer_encoder(texts)
    tokens = encoder.tokenise(texts)
    rows = np.random.default_rng(0).choice(len(texts), 1098, replace=False)
    chosen = [texts[row] for row in rows]

    def repeated(fetch: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(FETCHES):
                fetch()

        return run

    t = interleaved(
        {
            "fetched": repeated(lambda: tokens.take(rows)),
            "fetched and packed": repeated(lambda: encoder.collate(tokens.take(rows))),
            "tokenise": lambda: encoder.tokenise(chosen),
        },
        repeats,
    )
    what = f"tokens of 1098 titles out of {len(texts)} ({encoder.tokenizer.__class__.__name__})"
    peer = f"tokenised: {t['tokenise'] * 1e3:.0f} ms"
    done = ("fetched", "fetched and packed")
    return [
        Row(11, what, f"{name} in {t[name] / FETCHES * 1e3:.2f} ms", peer, t["tokenise"] / t[name] * FETCHES, 200, ">=")
        for name in done
    ]


def measure(repeats: int = 7) -> list[Row]:
    torch.manual_seed(0)
    encoder, titles = SmallBert(), make_titles(POOL, VOCABULARY)
    t = interleaved({"cached": step(encoder, titles, CHUNK), "whole": step(encoder, titles, POOL)}, repeats)
    what = f"{POOL} titles of 7 words, BERT 2×128 with dropout, chunks of {CHUNK}"
    rows = [
        Row(
            11,
            f"gradient caching: {what}",
            f"{t['cached'] * 1e3:.0f} ms",
            f"one pass: {t['whole'] * 1e3:.0f} ms",
            t["cached"] / t["whole"],
            1.4,
        )
    ]
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)  # freed blocks are returned at once, so the peak is memory in use
    once, four = peak_growth("caching", "pool_of", 1), peak_growth("caching", "pool_of", 4)
    sizes = f"{four / 2**20:.0f} MiB", f"the pool once: {once / 2**20:.0f} MiB"
    rows.append(Row(11, f"gradient caching, peak memory: 4 × {what}", *sizes, four / once, 1.15))
    return [*rows, *fetching(repeats)]
