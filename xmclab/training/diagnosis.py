"""Why a step failed: the first numbers on its way that are not finite and the part that made them; or its sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Head, Ragged
from xmclab.errors import DivergedError, MemoryLimitError, Problem
from xmclab.host.config import Config
from xmclab.model.device import name_of
from xmclab.model.dropout import keyed
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.objective import Objective
from xmclab.system.memory import what_to_lower
from xmclab.training.batches import Prepared

if TYPE_CHECKING:
    from xmclab.training.trainer import Trainer

BLOCK = 1 << 16  # labels whose scores are looked at together


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about a step."""

    culprits: list[str]  # parts with what is wrong, of the first place where anything is
    scores: dict[str, tuple[float, float]]  # head -> the smallest and the largest finite score


def diagnose(trainer: Trainer, step: int, prepared: Prepared) -> Diagnosis:
    """Repeat a step piece by piece, without an update."""
    scores: dict[str, tuple[float, float]] = {}
    culprits = list(_weights(trainer))
    if not culprits:
        encoded = trainer.encoded(prepared)
        x_QD, x_PD = (None if side is None else side.x_BD for side in encoded)
        assert x_QD is not None
        culprits = [
            f"{_named(trainer.config, 'encoder')}: vectors of {side} are not finite"
            for side, x in (("queries", x_QD), ("labels", x_PD))
            if x is not None and not finite(x)
        ]
        for number, name in enumerate([] if culprits else trainer.objectives):
            head = _HeadStep(trainer, step, prepared, number, name, x_QD.detach(), x_PD)
            scores[name] = head.range()
            culprits += head.culprits()
        if not culprits:
            culprits = [f"{_named(trainer.config, 'encoder')}: its gradient is not finite"]
    trainer.optimizers.discard()
    return Diagnosis(culprits, scores)


def finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def _weights(trainer: Trainer) -> Iterator[str]:
    """Weights that were not finite before the step."""
    for name, parameter in trainer.model.named_parameters():
        if not finite(parameter):
            slot = "encoder" if name.startswith("encoder.") else f"head.{name.split('.')[1]}"
            yield f"{_named(trainer.config, slot)}: the weights {name} are not finite"


def _named(config: Config, slot: str) -> str:
    """A part in its slot, and where it comes from."""
    kind, name = slot.partition(".")[0], config.choice(slot)
    return f"{slot}={name} ({config.registry.origin(kind, str(name))})"


@dataclass
class _HeadStep:
    """What a head does in a step."""

    trainer: Trainer
    step: int
    prepared: Prepared
    number: int
    name: str
    x_QD: Tensor
    x_PD: Tensor | None

    def __post_init__(self) -> None:
        trainer, prepared = self.trainer, self.prepared
        self.head: Head = trainer.model.head(self.name)
        self.streams = self.name in trainer.streaming
        torch.manual_seed(prepared.seed + self.number)
        with torch.no_grad(), trainer.precision.autocast():
            with keyed(prepared.key_Q):
                self.q_QD = self.head.queries(self.x_QD)
            with keyed(prepared.key_P):
                self.z_PD = None if self.streams else self.head.labels(self.x_PD, prepared.labels_P)

    def range(self) -> tuple[float, float]:
        """The smallest and the largest score that is finite; of all labels without dropout where they are streamed."""
        low, high = math.inf, -math.inf
        with torch.no_grad():
            for z_BD in self._blocks():
                s_QB = self.q_QD.float() @ z_BD.float().T
                known = s_QB[s_QB.isfinite()]
                if known.numel():
                    low, high = min(low, float(known.min())), max(high, float(known.max()))
        return low, high

    def _blocks(self) -> Iterator[Tensor]:
        if self.z_PD is not None:
            yield self.z_PD
            return
        table: Any = self.head.label_rows
        for start in range(0, len(table.weight), BLOCK):
            yield self.head.of_rows(table.weight[start : start + BLOCK].float() * table.scale)

    def culprits(self) -> list[str]:
        """The head if its vectors are not finite, otherwise its terms whose values or gradients are not."""
        slot = f"head.{self.name}"
        found = [
            f"{_named(self.trainer.config, slot)}: vectors of {side} are not finite"
            for side, x in (("queries", self.q_QD), ("labels", self.z_PD))
            if x is not None and not finite(x)
        ]
        objective = self.trainer.objectives[self.name]
        return found or [text for term in objective.terms if (text := self._term(replace(objective, terms=[term])))]

    def _term(self, objective: Objective) -> str:
        """What is wrong with one term; empty if nothing is."""
        torch.manual_seed(self.prepared.seed + self.number)
        values, gradients = (self._streamed if self.streams else self._pooled)(objective)
        bad = [f"{name.rpartition('/')[2]} is {float(value)}" for name, value in values.items() if not finite(value)]
        wrong = ", ".join(bad) or ("" if all(map(finite, gradients)) else "its gradient is not finite")
        if not wrong:
            return ""
        name = objective.terms[0].name
        origin = self.trainer.config.registry.origin("loss", name)
        low, high = self.range()
        return f"loss.{self.name} term {name} ({origin}): {wrong}, for scores from {low:.4g} to {high:.4g}"

    def _pooled(self, objective: Objective) -> tuple[dict[str, Tensor], list[Tensor]]:
        assert self.z_PD is not None
        q_QD, z_PD = (x.detach().clone().requires_grad_() for x in (self.q_QD, self.z_PD))
        weight_P, truth = self.prepared.label_weight_P, self.prepared.truth
        with self.trainer.precision.autocast():
            found = evaluate_vectors(objective, q_QD, z_PD, truth, weight_P, self.head.score_bound)
        found.total.backward()
        return dict(found.values), [x.grad for x in (q_QD, z_PD) if x.grad is not None]

    def _streamed(self, objective: Objective) -> tuple[dict[str, Tensor], list[Tensor]]:
        seed_for = partial(self.trainer.keys.seed_for, f"rows {self.name}", self.step)
        weight_L, truth = self.prepared.label_weight_P, self.prepared.truth
        known = objective, self.q_QD.detach(), truth, weight_L
        engine, scores = self.trainer.stream(self.head, *known, seed_for)
        engine.backward()
        return dict(engine.evaluation.values), [scores.dq_QD, scores.square]


def diverged(trainer: Trainer, step: int, prepared: Prepared, numbers: Mapping[str, float]) -> DivergedError:
    """A number of a step is not finite: which, and which part made it."""
    batch, diagnosis = prepared.batch, diagnose(trainer, step, prepared)
    bad = ", ".join(name for name, value in numbers.items() if not math.isfinite(value))
    where = f"queries {batch.rows_Q[:5].tolist()}..., {len(batch.labels_P)} labels in the pool"
    hint = "the update was skipped; try a smaller learning rate or a larger temperature, or check the loss"
    problems = [Problem(f"step {step}", culprit) for culprit in diagnosis.culprits]
    error = DivergedError(Problem(f"step {step}", f"{bad} not finite ({where})", hint), *problems)
    error.details = {
        "step": step,
        "culprits": diagnosis.culprits,
        "scores": {name: [repr(end) for end in ends] for name, ends in diagnosis.scores.items()},
        "values": {name: repr(value) for name, value in numbers.items()},
        "rows": batch.rows_Q.tolist(),
        "labels": batch.labels_P.tolist(),
    }
    return error


def exhausted(trainer: Trainer, step: int, prepared: Prepared, chunk: int, reason: str) -> MemoryLimitError:
    """Memory ran out in a step: what it was made of."""
    batch = prepared.batch
    total = _count(trainer.query_tokens, batch.rows_Q)
    total += _count(trainer.label_tokens, batch.labels_P) if prepared.labels else 0
    precision = name_of(trainer.precision.dtype)
    sizes = f"{len(batch.rows_Q):,} queries, {len(batch.labels_P):,} labels in the pool, {total:,} tokens"
    where = f"out of memory in step {step}"
    return MemoryLimitError(Problem(where, f"{reason}; {sizes}, chunk {chunk:,}, {precision}", what_to_lower(["run"])))


def _count(tokens: Ragged, rows: NDArray[np.int64]) -> int:
    """The number of tokens of these texts."""
    return int((tokens.offsets[rows + 1] - tokens.offsets[rows]).sum())
