"""Texts of a step as vectors, and the way back: whole, in chunks, or known already."""

from __future__ import annotations

import torch
from torch import Tensor

from xmclab.api import Encoder, Side
from xmclab.model.device import Precision
from xmclab.model.dropout import keyed
from xmclab.training.batches import Chunk


class Encoding:
    """Vectors that are known already; nothing is behind them."""

    def __init__(self, x_BD: Tensor) -> None:
        self.x_BD = x_BD

    def backward(self) -> None:
        """Backpropagate the gradient of the vectors through the encoder."""


class ChunkedEncoding(Encoding):
    """Encodes texts in chunks, with exact gradients in the memory of one chunk (gradient caching, Gao et al. 2021).

    The first pass keeps only the graph of the last chunk; `backward` goes through it, then encodes every other chunk
    again, with the same dropout. `keep_last=False`: keep no graph, replay all chunks.
    """

    def __init__(
        self, encoder: Encoder, chunks: list[Chunk], side: Side, precision: Precision, keep_last: bool = True
    ) -> None:
        self.encoder, self.chunks, self.side, self.precision = encoder, chunks, side, precision
        *others, last = chunks
        with torch.no_grad():
            outputs = [self._encode(chunk) for chunk in others]
        keep = keep_last or not others
        if keep and self.precision.half:
            torch.clear_autocast_cache()  # older versions of torch keep casts of weights without their gradient
        with torch.set_grad_enabled(keep):
            outputs.append(self._encode(last))
        self._kept = outputs[-1] if keep else None
        self.sizes = [len(x) for x in outputs]
        x_BD = torch.cat(outputs) if others else outputs[0]
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
            x_BD = self._encode(chunk) if self._kept is None else self._kept
            self._kept = None
            if x_BD.requires_grad:
                x_BD.backward(grad_BD)
