"""One training step, top to bottom: encode once, score, reduce, backward, replay.

encode    queries and unique labels, in chunks; both heads share that pass
scores    s_QP = <q, z> of each head
objective L = lambda L_de + (1 - lambda) L_clf, each over both directions
back      to the encoder's outputs, then through the encoder chunk by chunk
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from xmclab.api import Encoder, Side, Tokens
from xmclab.model.model import Model
from xmclab.objectives.objective import Objective
from xmclab.objectives.truth import Truth
from xmclab.training.streaming import AllLabels, LabelBlocks, StreamedRows

SeedFor = Callable[[str, int], int]  # (purpose, chunk) -> seed of this step
Autocast = Callable[[], contextlib.AbstractContextManager[object]]
Part = Callable[[str], contextlib.AbstractContextManager[None]]  # times a named part of the work
_NOTHING = contextlib.nullcontext()


def unprofiled(name: str) -> contextlib.AbstractContextManager[None]:
    """A part that is not timed."""
    return _NOTHING


@dataclass(frozen=True)
class DeviceBatch:
    """A batch as tensors on the device of the run."""

    query_chunks: list[Tokens]
    label_chunks: list[Tokens]  # empty when no head reads label texts
    labels_P: Tensor
    truth: Truth
    label_weight_P: Tensor | None
    blocks: LabelBlocks | None = None  # the truth in blocks of labels, when a head streams over all of them


@dataclass(frozen=True)
class HeadTerm:
    """A head's part of the total: its objective, its share, and whether it streams over blocks of all labels."""

    objective: Objective
    share: float
    streams: bool = False


class ChunkedEncoding:
    """Encodes texts in chunks, with exact gradients in the memory of one chunk (gradient caching, Gao et al. 2021).

    The first pass keeps only the graph of the last chunk; `backward` goes through it, then encodes every other chunk
    again, with the same dropout. `keep_last=False`: keep no graph, replay all chunks.
    """

    def __init__(
        self,
        encoder: Encoder,
        chunks: list[Tokens],
        side: Side,
        seed_for: SeedFor,
        autocast: Autocast,
        keep_last: bool = True,
    ) -> None:
        self.encoder, self.chunks, self.side, self.seed_for, self.autocast = encoder, chunks, side, seed_for, autocast
        last = len(chunks) - 1
        with torch.no_grad():
            outputs = [self._encode(chunk) for chunk in range(last)]
        keep = keep_last or last == 0
        with torch.set_grad_enabled(keep):
            outputs.append(self._encode(last))
        self._kept = outputs[last] if keep else None
        self.sizes = [len(x) for x in outputs]
        x_BD = torch.cat(outputs) if last else outputs[0]
        self.x_BD = x_BD.detach().requires_grad_()  # autograd stops here, until `backward`

    def _encode(self, chunk: int) -> Tensor:
        torch.manual_seed(self.seed_for(self.side, chunk))
        with self.autocast():
            x_BD: Tensor = self.encoder(self.chunks[chunk], self.side)
        return x_BD

    def backward(self) -> None:
        """Backpropagate the gradient of the vectors through the encoder."""
        if self.x_BD.grad is None:
            return
        for chunk, grad_BD in reversed(list(enumerate(self.x_BD.grad.split(self.sizes)))):
            x_BD = self._encode(chunk) if self._kept is None else self._kept
            self._kept = None
            if x_BD.requires_grad:
                x_BD.backward(grad_BD)


def forward_backward(
    model: Model,
    batch: DeviceBatch,
    terms: Mapping[str, HeadTerm],
    seed_for: SeedFor,
    autocast: Autocast = contextlib.nullcontext,
    rows: StreamedRows | None = None,
    part: Part = unprofiled,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch; leaves its gradients in the parameters.

    Tables of streaming heads get no gradient: `rows` makes their updates.

    Returns:
        The total loss, and the value of every term and direction as `head/term/direction`; all detached scalars.
    """
    labels = None  # the side that is encoded last keeps the graph of its last chunk
    keep_last = not batch.label_chunks
    with part("encode forward"):
        queries = ChunkedEncoding(model.encoder, batch.query_chunks, "query", seed_for, autocast, keep_last)
        if batch.label_chunks:
            labels = ChunkedEncoding(model.encoder, batch.label_chunks, "label", seed_for, autocast)
    with part("scores and losses"):
        x_PD = labels.x_BD if labels else None
        total, values = _to_the_vectors(model, batch, queries.x_BD, x_PD, terms, seed_for, autocast, rows)
    with part("encode backward"):
        if labels:
            labels.backward()
        queries.backward()
    return total, values


def _to_the_vectors(
    model: Model,
    batch: DeviceBatch,
    x_QD: Tensor,
    x_PD: Tensor | None,
    terms: Mapping[str, HeadTerm],
    seed_for: SeedFor,
    autocast: Autocast,
    rows: StreamedRows | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss; leaves its gradient in the encoder's vectors and the parameters of the heads."""
    torch.manual_seed(seed_for("heads", 0))
    total = torch.zeros((), device=batch.labels_P.device)
    values: dict[str, Tensor] = {}
    roots: list[tuple[Tensor, Tensor]] = []  # where backward starts, with the gradients there
    for name, term in terms.items():
        head = model.head(name)
        if term.streams:
            assert rows is not None
            step, q_QD = stream(name, model, batch, x_QD, term, seed_for, autocast)
            rows.backward(step)
            total = total + term.share * torch.stack([part.weighted for part in step.parts]).sum()
            values |= {f"{name}/{part.term}/{part.direction}": part.value for part in step.parts}
            roots.append((q_QD, step.dq_QD.to(q_QD.dtype)))
            continue
        with autocast():
            q_QD = head.queries(x_QD)
            z_PD = head.labels(x_PD, batch.labels_P)
            value = term.objective.evaluate_vectors(q_QD, z_PD, batch.truth, batch.label_weight_P, head.score_bound)
        total = total + term.share * value.total
        values |= {f"{name}/{part.term}/{part.direction}": part.value for part in value.parts}
    if total.requires_grad:
        roots.append((total, torch.ones_like(total)))
    torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
    return total.detach(), values


def stream(
    name: str, model: Model, batch: DeviceBatch, x_QD: Tensor, term: HeadTerm, seed_for: SeedFor, autocast: Autocast
) -> tuple[AllLabels, Tensor]:
    """The step of a head over blocks of all labels, and its query vectors."""
    head = model.head(name)
    assert batch.blocks is not None
    with autocast():
        q_QD = head.queries(x_QD)
    seed_of_block = partial(seed_for, f"rows {name}")
    return AllLabels(head, term.objective, term.share, q_QD, batch.blocks, batch.label_weight_P, seed_of_block), q_QD
