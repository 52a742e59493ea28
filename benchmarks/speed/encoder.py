"""Encoding short titles: packed tokens compared with the padded network and with its bare matrix products."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import Row, interleaved
from torch import Tensor, nn

from xmclab.api import Ragged
from xmclab.model.encoders import packed
from xmclab.model.encoders.hf import MINILM, MINILM_PACKAGE, locate

WORDS, PIECES, PADDED = 7, 1.3, 32  # words per title, pieces per word, usual padded length


def make_network() -> tuple[Any, str]:
    """MiniLM if its package is installed, else a BERT of the same shape with random weights; and its name."""
    from transformers import AutoModel, BertConfig, BertModel

    if importlib.util.find_spec(MINILM_PACKAGE):
        return AutoModel.from_pretrained(locate(MINILM)), "MiniLM"
    shape = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return BertModel(shape), "BERT 6×384 with random weights"


def make_titles(count: int, vocabulary: int = 30522) -> Ragged:
    """Random token ids: titles of `WORDS` words and two special tokens; a word has 1 + Poisson pieces."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(2 + WORDS + rng.poisson((PIECES - 1) * WORDS, count), PADDED)
    ids = rng.integers(1000, vocabulary, lengths.sum()).astype(np.int32)
    return Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]))


def padded_mean(network: Any, tokens: Ragged, width: int) -> Callable[[], Tensor]:
    """Mean pooling over the plain network, with all texts padded to one width."""
    lengths = torch.from_numpy(np.diff(tokens.offsets))
    mask = torch.arange(width) < lengths.unsqueeze(1)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    ids[mask] = torch.from_numpy(tokens.ids).long()
    weight = mask.unsqueeze(-1).float()

    def run() -> Tensor:
        hidden: Tensor = network(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return (hidden * weight).sum(dim=1) / weight.sum(dim=1)

    return run


def packed_mean(network: Any, tokens: Ragged) -> Callable[[], Tensor]:
    inputs = packed.pack(tokens)
    packed.attach(network)
    return lambda: packed.encode(network, inputs, "mean")


def products(network: Any, tokens: int, backward: bool) -> Callable[[], None]:
    """Only the matrix products of the linear layers and of their two gradients."""
    weights = [m.weight.detach() for m in network.encoder.modules() if isinstance(m, nn.Linear)]
    inputs = {width: torch.randn(tokens, width) for width in {weight.shape[1] for weight in weights}}
    outputs = {width: torch.randn(tokens, width) for width in {weight.shape[0] for weight in weights}}

    def run() -> None:
        for weight in weights:
            x, y = inputs[weight.shape[1]], outputs[weight.shape[0]]
            x @ weight.T
            if backward:
                y @ weight
                y.T @ x

    return run


def forward(run: Callable[[], Any]) -> Callable[[], Any]:
    return torch.no_grad()(run)


def forward_backward(network: Any, run: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        network.zero_grad()
        run().square().sum().backward()

    return step


def measure(titles: int = 512, repeats: int = 5) -> list[Row]:
    torch.manual_seed(0)
    network, name = make_network()
    tokens = make_titles(titles)
    lengths = np.diff(tokens.offsets)
    ours, peer = packed_mean(network, tokens), padded_mean(network, tokens, PADDED)
    longest = padded_mean(network, tokens, int(lengths.max()))
    what = f"{titles} titles of {WORDS} words ({lengths.mean():.1f} tokens), {name}"

    rows = []
    for mode in ("forward", "forward and backward with dropout"):
        train = mode != "forward"
        network.train(train)

        def wrap(run: Callable[[], Tensor], train: bool = train) -> Callable[[], Any]:
            return forward_backward(network, run) if train else forward(run)

        limit = products(network, len(tokens.ids), backward=train)
        alternatives = {"ours": wrap(ours), "padded": wrap(peer), "longest": wrap(longest), "products": forward(limit)}
        t = interleaved(alternatives, repeats)
        measured = f"{t['ours'] * 1e3:.0f} ms"
        for key, label, bound in (
            ("padded", f"padded to {PADDED}", 2.5),
            ("longest", f"padded to the longest of the chunk ({lengths.max()})", 1.0),
        ):
            beside = f"{label}: {t[key] * 1e3:.0f} ms"
            rows.append(Row(8, f"{mode}: {what}", measured, beside, t[key] / t["ours"], bound, ">="))
        beside = f"bare matrix products: {t['products'] * 1e3:.0f} ms"
        rows.append(Row(8, f"{mode}: {what}", measured, beside, t["ours"] / t["products"], 1.4))
    network.eval()
    with torch.no_grad():
        difference = float((ours() - peer()).abs().max())
    rows.append(Row(8, f"values: {what}", f"{difference:.1e}", "padded network", difference, 1e-5))
    return rows
