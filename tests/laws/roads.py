"""The errors of every road of low precision against float64, as JSON; a process of its own, see test_precision.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, BertConfig

import xmclab
from xmclab.api import Encoder, Ragged, Side, Tokens
from xmclab.model.device import Precision
from xmclab.model.dropout import key_dropouts
from xmclab.model.encoders import packed
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.model import Model
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.products import inner_products
from xmclab.objectives.truth import Truth
from xmclab.training.batches import Chunk
from xmclab.training.encoding import ChunkedEncoding
from xmclab.training.streaming import all_labels

CPU = torch.device("cpu")
HALF = Precision(CPU, torch.bfloat16)
SCALE = 18.0  # 1 / temperature
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


class Casts(TorchDispatchMode):
    """Counts matrices that are rounded to bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16:
            self.shapes.append(tuple(out.shape))
        return out


class Packed(Encoder):
    """A small transformer on packed tokens."""

    lr = 1e-4
    width = SHAPE["hidden_size"]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = AutoModel.from_config(BertConfig(vocab_size=50, max_position_embeddings=100, **SHAPE))
        packed.attach(self.network)

    def collate(self, tokens: Ragged) -> Tokens:
        return packed.pack(tokens)

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        return packed.encode(self.network, tokens, "mean")

    def fit(self, texts: Any) -> None: ...

    def tokenise(self, texts: Any) -> Ragged:
        raise NotImplementedError

    def save_assets(self, folder: Any) -> None: ...

    def load_assets(self, folder: Any) -> None: ...


def texts() -> Ragged:
    lengths = [3, 70, 9, 2, 31, 9]
    return Ragged(np.random.default_rng(0).integers(1, 50, sum(lengths)).astype(np.int32), np.cumsum([0, *lengths]))


def far(found: Tensor, exact: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((found.double() - exact.double()).abs().max() / exact.double().abs().max())


def encoding() -> Iterator[tuple[str, Any]]:
    heads = {"de": DualEncoder(dim=16), "clf": Classifier(dim=16)}
    model = Model(Packed(), heads, num_labels=20)
    model.precision = HALF
    with Casts() as casts:
        found = model.query_vectors(texts(), 2)
    weights = [shape for shape in casts.shapes if shape == (64, 32)]  # of the layers that widen
    yield "casts of a weight in three chunks", len(weights) / SHAPE["num_hidden_layers"]
    yield "vectors are float32", all(v.dtype == torch.float32 for v in found.values())
    whole = model.encode_all(texts(), "query", 2, CPU)
    model.precision = Precision(CPU)
    plain = model.query_vectors(texts(), 2)
    model.encoder.double(), model.heads.double()
    exact = model.query_vectors(texts(), 2)
    yield "query vectors", max(far(found[name], exact[name]) for name in exact)
    yield "query vectors in float32", max(far(plain[name], exact[name]) for name in exact)
    yield "encoded texts", far(whole, model.encode_all(texts(), "query", 2, CPU))


def gradients(kept: bool) -> tuple[list[Tensor], int]:
    encoder = Packed()
    key_dropouts(encoder)
    chunks = [Chunk(encoder.collate(texts().take(np.arange(n, n + 2))), n) for n in (0, 2, 4)]
    with Casts() as casts, HALF.casts_kept() if kept else torch.enable_grad():
        side = ChunkedEncoding(encoder, chunks, "query", HALF)
        (side.x_BD * torch.linspace(-1, 1, encoder.width)).square().sum().backward()
        side.backward()
    found = [p.grad for name, p in encoder.named_parameters() if p.grad is not None and "pooler" not in name]
    return found, sum(shape == (64, 32) for shape in casts.shapes) // SHAPE["num_hidden_layers"]


def one_context() -> Iterator[tuple[str, Any]]:
    once, casts = gradients(kept=True)
    each, more = gradients(kept=False)
    yield "gradients of one context", len(once) == len(each) and all(map(torch.equal, once, each))
    yield "casts of a weight in one context", casts
    yield "casts of a weight in a context of every chunk", more


def unit(rows: int, width: int = 64) -> Tensor:
    return F.normalize(torch.randn(rows, width, dtype=torch.float64), dim=-1)


def scores() -> Iterator[tuple[str, Any]]:
    torch.manual_seed(0)
    q, z = unit(60), unit(500)
    z[:60] = F.normalize(z[:60] + 2 * q, dim=-1)  # scores of positives are large, where bfloat16 is coarse
    rounded = q.bfloat16().double() @ z.bfloat16().double().T
    with HALF.autocast():
        found = inner_products(q.float(), z.float())
        coarse = (q.float() @ z.float().T).float()
    yield "scores", SCALE * float((found - q @ z.T).abs().max())
    yield "scores of the same operands", SCALE * float((found - rounded).abs().max())
    yield "scores rounded to bfloat16", SCALE * float((coarse - q @ z.T).abs().max())
    truth = Truth.of_matrix(torch.eye(60, 500))
    for words in ("ds+bce", "smooth_softmax"):  # a closed form, and autograd
        objective = xmclab.objective(words, temperature=1 / SCALE, symmetric=True)
        values = []
        for dtype in (torch.float64, torch.float32):
            given = [x.detach().clone().to(dtype).requires_grad_() for x in (q, z)]
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
                total = evaluate_vectors(objective, *given, truth).total
            total.backward()
            values.append((total.detach(), *(x.grad for x in given)))
        exact, low = values
        yield f"{words}: dtype", str(low[0].dtype)
        yield f"{words}: value", far(low[0], exact[0])
        yield f"{words}: gradients", max(map(far, low[1:], exact[1:]))


def streamed(words: str, low: torch.dtype | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    head = Classifier(dim=64, row_dropout=0.0)
    head.build(64, 500)
    head = head.to(dtype)
    q = unit(60).to(torch.bfloat16 if low else dtype)  # as a projection leaves them
    objective = xmclab.objective(words, "pal_n" if "ds" in words else "ova_n", 1 / SCALE)
    updates: list[Tensor] = []
    engine, found = all_labels(head, objective, q, Truth.of_matrix(torch.eye(60, 500)), None, hash, 150, low=low)
    found.update = lambda block, g_BD: updates.append(g_BD.clone())
    engine.backward()
    return engine.evaluation.total, found.dq_QD, torch.cat(updates)


def tables() -> Iterator[tuple[str, Any]]:
    for words in ("ds", "bce"):
        exact = streamed(words, None, torch.float64)
        low = streamed(words, torch.bfloat16, torch.float32)
        yield f"streamed {words}: dtypes", sorted({str(x.dtype) for x in low})
        yield f"streamed {words}: value", far(low[0], exact[0])
        yield f"streamed {words}: gradients", max(map(far, low[1:], exact[1:]))


def attention() -> Iterator[tuple[str, Any]]:
    lengths = [2, 2, 9, 70]
    groups = ((2, 2), (1, 9), (1, 70))
    torch.manual_seed(0)
    exact = [torch.randn(sum(lengths), 4, 16, dtype=torch.float64) for _ in range(3)]
    parts = zip(*(x.split(lengths) for x in exact), strict=True)
    dense = torch.cat([F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in p)).transpose(0, 1) for p in parts])
    for dtype in (torch.float32, torch.bfloat16):
        found = packed.grouped_attention(*(x.to(dtype) for x in exact), groups, 0.0, None, window=100)
        yield f"attention in {str(dtype).removeprefix('torch.')}", far(found, dense)


if __name__ == "__main__":
    measured: list[Callable[[], Iterator[tuple[str, Any]]]] = [encoding, one_context, scores, tables, attention]
    errors = dict(item for measure in measured for item in measure())

    print(json.dumps(errors))
