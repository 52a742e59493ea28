"""Texts of a step as vectors, and the way back: whole, in chunks, or known already."""

from __future__ import annotations

import torch
from torch import Tensor

from xmclab.api import Encoder, Side
from xmclab.model.device import Precision
from xmclab.model.dropout import keyed
from xmclab.training.batches import Chunk, Prepared


class Encoding:
    """Vectors that are known already; nothing is behind them."""

    def __init__(self, x_BD: Tensor) -> None:
        self.x_BD = x_BD

    def backward(self) -> None:
        """Backpropagate the gradient of the vectors through the encoder."""


def graphs_kept(encoder: Encoder, prepared: Prepared, room: float | None, half: bool) -> tuple[int, int]:
    """How many chunks of queries and of labels keep their graphs: those that are encoded last come first.

    At least one of the side that is encoded last, and a side that is a single chunk. Each one more saves encoding its
    texts again, and costs memory until the backward pass.

    Args:
        room: bytes for all of them; None: as few as possible.
    """
    queries, labels = prepared.queries, prepared.labels
    held, kept = 0.0, {"query": int(not labels or len(queries) == 1), "label": 1}
    backwards: list[tuple[Side, int]] = [("label", n + 1) for n in range(len(labels))]
    backwards += [("query", n + 1) for n in range(len(queries))]
    for side, number in backwards if room else []:
        graph = encoder.graph_bytes((labels if side == "label" else queries)[-number].length, half)
        held += graph
        if not graph or held > (room or 0):
            break
        kept[side] = max(kept[side], number)
    return kept["query"], kept["label"]


class ChunkedEncoding(Encoding):
    """Encodes texts in chunks, with exact gradients in the memory of one chunk (gradient caching, Gao et al. 2021).

    The first pass keeps the graphs of the last chunks alone; `backward` goes through them, then encodes every other
    chunk again, with the same dropout.

    Args:
        keep: chunks whose graphs are kept.
    """

    def __init__(self, encoder: Encoder, chunks: list[Chunk], side: Side, precision: Precision, keep: int = 1) -> None:
        self.encoder, self.chunks, self.side, self.precision = encoder, chunks, side, precision
        first = max(len(chunks) - keep, 0)
        with torch.no_grad():
            outputs = [self._encode(chunk) for chunk in chunks[:first]]
        if keep and self.precision.half:
            torch.clear_autocast_cache()  # older versions of torch keep casts of weights without their gradient
        self._kept = [self._encode(chunk) for chunk in chunks[first:]]
        outputs += self._kept
        self.sizes = [len(x) for x in outputs]
        x_BD = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        super().__init__(x_BD.detach().requires_grad_())  # autograd stops here, until `backward`

    def _encode(self, chunk: Chunk) -> Tensor:
        torch.manual_seed(chunk.seed)
        with self.precision.autocast(), keyed(chunk.key_B):
            x_BD: Tensor = self.encoder(chunk.tokens, self.side)
        return x_BD

    def backward(self) -> None:
        if self.x_BD.grad is None:
            return
        for chunk, grad_BD in zip(reversed(self.chunks), reversed(self.x_BD.grad.split(self.sizes)), strict=True):
            x_BD = self._kept.pop() if self._kept else self._encode(chunk)
            if x_BD.requires_grad:
                x_BD.backward(grad_BD)
