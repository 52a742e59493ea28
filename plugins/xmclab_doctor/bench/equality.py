"""Whether a device computes what the CPU does, and every fast path what the plain one does.

A check compares two computations and has a bound. What one of them raises is a failed check: none ends the others.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import xmclab
from xmclab.errors import XmclabError
from xmclab.host import default_registry
from xmclab.objectives import Objective
from xmclab.objectives.autograd import value_by_autograd
from xmclab.objectives.truth import Truth
from xmclab_doctor.bench import synthetic

SINGLE, HALF, DOUBLE = 1e-5, 2e-2, 1e-9  # bounds of relative differences
STEP_BOUND = 1e-2  # of the losses of training
TEMPERATURE = 0.1
REDUCTIONS = {"multiclass": ("psl", "pal", "pal_n", "pol"), "binary": ("psl", "pal", "pal_n", "ova", "ova_n")}
TABLES = ("adamw", "adagrad", "momentum", "sgd")
SMALL = ("head.clf.dim=16", "sampler.batch_size=32", "pool.cap=64", "encoder.max_length=32")
FLOAT32 = "precision=float32"
LARGE_STEP = "head.clf.table_lr=10"  # what changes is then not lost in the rounding of what stays


@dataclass(frozen=True)
class Check:
    """A comparison; `passed` is None if it was not made, with the reason in `detail`."""

    name: str
    error: float | None
    bound: float
    passed: bool | None
    detail: str = ""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def skipped(name: str, reason: str) -> Check:
    return Check(name, None, 0.0, None, reason)


def compared(name: str, bound: float, compare: Callable[[], tuple[float, str]]) -> Check:
    """The check of a comparison that returns (largest difference, where it is)."""
    try:
        error, where = compare()
    except Exception as raised:  # whatever kernels and libraries raise is what the check is for
        lines = str(raised).strip().splitlines()
        return Check(name, None, bound, False, f"{type(raised).__name__}: {lines[0] if lines else ''}")
    passed = error <= bound  # not for NaN
    return Check(name, error, bound, passed, "" if passed else where)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest number that is expected; NaN if a number is not finite."""
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    if found.shape != expected.shape:
        return float("nan")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12)) if expected.numel() else 0.0


class Worst:
    """The largest of many differences, and whose it is; one that is NaN stays."""

    def __init__(self) -> None:
        self.error, self.where = 0.0, ""

    def see(self, error: float, where: str) -> None:
        if not error <= self.error and self.error == self.error:
            self.error, self.where = error, where


# Losses


@dataclass(frozen=True)
class Pool:
    """Vectors, and the pairs among them; each query drew one label, and no label twice, so nothing is random."""

    q_QD: Tensor
    z_PD: Tensor
    y_QP: Tensor
    drawn_QP: Tensor

    @staticmethod
    def make(queries: int = 24, labels: int = 40, width: int = 16) -> Pool:
        draw = torch.Generator().manual_seed(0)
        q_QD, z_PD = (
            torch.nn.functional.normalize(torch.randn(rows, width, generator=draw, dtype=torch.float64))
            for rows in (queries, labels)
        )
        y_QP = (torch.rand(queries, labels, generator=draw) < 0.08).double()
        drawn_QP = torch.zeros(queries, labels, dtype=torch.bool)
        drawn_QP[torch.arange(queries), torch.randperm(labels, generator=draw)[:queries]] = True
        y_QP[drawn_QP] = 1.0
        return Pool(q_QD, z_PD, y_QP, drawn_QP)

    def truth(self, device: torch.device | str, dtype: torch.dtype) -> Truth:
        propensity_P = torch.linspace(1.0, 3.0, self.y_QP.shape[1], dtype=dtype, device=device)
        made = Truth.of_matrix(self.y_QP.to(device, dtype), drawn_QP=self.drawn_QP.to(device))
        return made.with_propensities(propensity_P)


def objectives(names: Sequence[str] = ()) -> Iterator[tuple[str, Objective]]:
    """Every loss that ships, under every reduction that takes it, in both directions."""
    registry = default_registry()
    for name in names or [each for each in registry.names("loss") if "." not in each]:
        kind = registry.get("loss", name).kind
        for reduction in REDUCTIONS[kind]:
            for share, direction in ((1.0, "q2l"), (0.0, "l2q")) if kind == "multiclass" else ((1.0, "cells"),):
                yield (
                    f"{name}, {reduction}, {direction}",
                    xmclab.objective(name, reduction, TEMPERATURE, q2l_share=share),
                )


def plainly(objective: Objective, pool: Pool) -> tuple[Tensor, Tensor]:
    """The value and the gradient of the scores, from the definition of the loss: in float64, on the CPU."""
    s_QP = (pool.q_QD @ pool.z_PD.T).requires_grad_()
    truth = pool.truth("cpu", torch.float64)
    parts = [each.factor * value_by_autograd(each, s_QP, truth, None) for each in objective.directions]
    value = torch.stack(parts).sum()
    return value, torch.autograd.grad(value, s_QP)[0]


def loss_checks(device: torch.device, half: bool, names: Sequence[str] = ()) -> Iterator[Check]:
    """All losses from scores in float32 and float64, and from vectors."""
    pool = Pool.make()
    known = [(name, objective, *plainly(objective, pool)) for name, objective in objectives(names)]

    def from_scores(dtype: torch.dtype) -> tuple[float, str]:
        worst, truth = Worst(), pool.truth(device, dtype)
        for name, objective, value, gradient in known:
            s_QP = (pool.q_QD @ pool.z_PD.T).to(device, dtype).requires_grad_()
            found = objective.evaluate(s_QP, truth).total
            worst.see(difference(found, value), name)
            worst.see(difference(torch.autograd.grad(found, s_QP)[0], gradient), f"{name}, gradient")
        return worst.error, worst.where

    def from_vectors(dtype: torch.dtype) -> tuple[float, str]:
        from xmclab.objectives.engine import evaluate_vectors

        worst, truth = Worst(), pool.truth(device, torch.float32)
        for name, objective, value, gradient in known:
            q_QD, z_PD = (x.to(device, dtype).requires_grad_() for x in (pool.q_QD, pool.z_PD))
            found = evaluate_vectors(objective, q_QD, z_PD, truth).total
            worst.see(difference(found, value), name)
            dq_QD, dz_PD = torch.autograd.grad(found, (q_QD, z_PD))
            worst.see(difference(dq_QD, gradient @ pool.z_PD), f"{name}, gradient of queries")
            worst.see(difference(dz_PD, gradient.T @ pool.q_QD), f"{name}, gradient of labels")
        return worst.error, worst.where

    yield compared("losses in float64", DOUBLE, lambda: from_scores(torch.float64))
    yield compared("losses in float32", SINGLE, lambda: from_scores(torch.float32))
    yield compared("losses of vectors in float32", SINGLE, lambda: from_vectors(torch.float32))
    if half:
        yield compared("losses of vectors in bfloat16", HALF, lambda: from_vectors(torch.bfloat16))
    else:
        yield skipped("losses of vectors in bfloat16", "only on a card that multiplies bfloat16")


# Search


def search_check(device: torch.device, queries: int = 64, labels: int = 5000, k: int = 20) -> Check:
    """The ids that exact search finds, against a product in float64 that is sorted."""

    def compare() -> tuple[float, str]:
        draw = torch.Generator().manual_seed(0)
        z_LD, q_QD = (torch.randn(rows, 32, generator=draw) for rows in (labels, queries))
        index = default_registry().get("index", "exact")()
        index.build(z_LD.to(device))
        ids_QK = index.search(q_QD.to(device), k)[0].cpu()
        s_QL = q_QD.double() @ z_LD.double().T
        best_QK, expected_QK = s_QL.sort(dim=1, descending=True)
        # Scores this close may change places in float32.
        tied_QK = (best_QK[:, :-1] - best_QK[:, 1:])[:, :k] < SINGLE * best_QK.abs().max()
        tied_QK[:, 1:] |= tied_QK[:, :-1].clone()
        wrong_QK = (ids_QK != expected_QK[:, :k]) & ~tied_QK
        rows = wrong_QK.any(dim=1).nonzero().flatten().tolist()
        return float(wrong_QK.float().mean()), f"{len(rows)} of {queries} queries, the first is {rows[:1]}"

    return compared("ids of exact search", 0.0, compare)


# Steps


@contextlib.contextmanager
def kernels(on: bool) -> Iterator[None]:
    """Compiled functions wherever there is one, however small the input; or nowhere."""
    from xmclab.kernels import dispatch

    names = ("WORTH_A_PASS", "WORTH_LOADING")
    before = {name: getattr(dispatch, name) for name in names}
    for name in names:
        setattr(dispatch, name, 0 if on else sys.maxsize)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dispatch, name, value)


class Steps:
    """Steps of a small model, by several roads, from the same weights on the same batches."""

    def __init__(self, folder: Path, device: torch.device, network: synthetic.Network, trained: int = 20) -> None:
        network.save(folder / "network")
        self.folder, self.device, self.trained = folder / "network", device, trained
        self.data = synthetic.data(400, 300, (10, 24), (10, 24), network.words)

    def trainer(self, device: torch.device, *overrides: str) -> Any:
        exact = ["tf32=false"] if FLOAT32 in overrides else []
        return synthetic.trainer(self.folder, self.data, str(device), *SMALL, *exact, *overrides)

    def gradients(self, trainer: Any) -> dict[str, Tensor]:
        """The loss of the first batch, and its gradients."""
        for prepared in synthetic.batches(trainer, 1):
            if prepared.shipment:
                prepared.shipment.receive()
            total, values = trainer.backward(0, prepared)
            named = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
            found = {"loss": total, **values, **{name: grad for name, grad in named.items() if grad is not None}}
            for number, table in enumerate(trainer.model.tables()):
                if gradient := table.gradient():
                    rows_P, g_PD = gradient
                    found[f"table {number}"] = g_PD[rows_P.argsort()]
            found = {name: x.detach().cpu() for name, x in found.items()}
            trainer.optimizers.discard()
        return found

    def same_gradients(
        self, one: Sequence[str], other: Sequence[str], on: torch.device | None = None
    ) -> tuple[float, str]:
        """Of a step by two roads; the first on the device, the second there or elsewhere."""
        here, there = self.trainer(self.device, *one), self.trainer(on or self.device, *other)
        if on is not None:
            drop_nothing(here)
            drop_nothing(there)
        return worst_of(self.gradients(here), self.gradients(there))

    def checks(self, tables: Sequence[str] = TABLES) -> Iterator[Check]:
        """By pairs of roads, in float32."""
        whole = [FLOAT32, "encoder.packing=auto", "encode.chunk=0"]
        cpu = torch.device("cpu")
        yield compared("packed and padded", SINGLE, self._without_dropout)
        yield compared("chunked and whole", SINGLE, lambda: self.same_gradients([FLOAT32, "encode.chunk=7"], whole))
        yield compared("streamed and as a matrix", SINGLE, self._streamed)
        yield compared("with and without kernels", SINGLE, self._kernels)
        yield self.fused("triton")
        if self.device.type == "cpu":
            yield skipped("device and CPU", "the device is the CPU")
        else:
            yield compared("device and CPU", SINGLE, lambda: self.same_gradients(whole, whole, cpu))
        for table in tables:
            yield compared(f"updates of a table, {table}", SINGLE, partial(self._updated, table))
        yield compared(f"losses of {self.trained} steps", STEP_BOUND, self._losses)

    def _without_dropout(self) -> tuple[float, str]:
        """Padding is not packing where attention drops weights: a card leaves that out in some roads."""
        made = [self.trainer(self.device, FLOAT32, f"encoder.packing={packing}") for packing in ("auto", "off")]
        return worst_of(*(self.gradients(drop_nothing(each)) for each in made))

    def _streamed(self) -> tuple[float, str]:
        """A classifier over all labels, in blocks and with a score matrix: gradients, and what a step changes."""
        ways = [
            "reduction=ova",
            "loss.clf=bce",
            "head.de=none",
            FLOAT32,
            "optim.clip=1",
            "head.clf.table=sgd",
            LARGE_STEP,
        ]

        def made(streams: bool) -> Any:
            trainer = self.trainer(self.device, *ways)
            if not trainer.streaming:
                raise RuntimeError("the head does not stream")
            if not streams:
                trainer.streaming.clear()
            return trainer

        found, expected = self.gradients(made(True)), self.gradients(made(False))
        of_encoder = worst_of(found, {name: expected[name] for name in found})
        return max(of_encoder, worst_of(self._moved(made(True)), self._moved(made(False))))

    def fused(self, chosen: str) -> Check:
        """What a step over all labels changes, with fused kernels and without: in half precision on a card."""
        name, on_card = f"kernels={chosen} and torch", self.device.type == "cuda"
        dtype = torch.bfloat16 if on_card else torch.float32
        try:
            why = (
                default_registry().get("kernels", chosen)().declines(torch.empty(0, 0, dtype=dtype, device=self.device))
            )
        except XmclabError as error:
            why = str(error)
        if why:
            return skipped(name, why)

        def compare() -> tuple[float, str]:
            ways = ["reduction=pal_n", "loss.clf=ds+bce", "head.de=none", "head.clf.table=sgd", LARGE_STEP]
            made = [self.trainer(self.device, *ways, f"kernels={each}") for each in (chosen, "none")]
            return worst_of(*map(self._moved, made))

        return compared(name, HALF if on_card else SINGLE, compare)

    def _kernels(self) -> tuple[float, str]:
        """Gradients with compiled passes, and without."""
        with kernels(True):
            found = self.gradients(self.trainer(self.device, FLOAT32))
        with kernels(False):
            return worst_of(found, self.gradients(self.trainer(self.device, FLOAT32)))

    def _updated(self, table: str) -> tuple[float, str]:
        """The classifier's rows after a step on the device, and after one on the CPU by plain functions."""
        chosen = [FLOAT32, f"head.clf.table={table}", LARGE_STEP]
        with kernels(True):
            found = self._moved(drop_nothing(self.trainer(self.device, *chosen)))
        with kernels(False):
            return worst_of(found, self._moved(drop_nothing(self.trainer(torch.device("cpu"), *chosen))))

    def _moved(self, trainer: Any) -> dict[str, Tensor]:
        """What a step changes in the rows of tables."""
        tables = dict(enumerate(trainer.model.tables()))
        before = {n: table.weight.detach().clone() for n, table in tables.items()}
        for prepared in synthetic.batches(trainer, 1):
            trainer.step(0, prepared)
        trainer.model.settle()
        return {f"table {n}": (table.weight.detach() - before[n]).cpu() for n, table in tables.items()}

    def _losses(self) -> tuple[float, str]:
        """Training as it is by default, and as plainly as possible: on the CPU, in float32, padded, in chunks."""
        plain = [FLOAT32, "encode.chunk=16"]
        with kernels(True):
            fast = self._run(self.trainer(self.device))
        with kernels(False):
            slow = self._run(self.trainer(torch.device("cpu"), *plain))
        worst = Worst()
        for step, (found, expected) in enumerate(zip(fast, slow, strict=True)):
            worst.see(abs(found - expected) / abs(expected), f"step {step}: {found:.4f}, expected {expected:.4f}")
        return worst.error, worst.where

    def _run(self, trainer: Any) -> list[float]:
        drop_nothing(trainer)
        return [
            trainer.step(n, prepared)["loss"] for n, prepared in enumerate(synthetic.batches(trainer, self.trained))
        ]


def drop_nothing(trainer: Any) -> Any:
    """The trainer without dropout: fused attention leaves its own out, which others do not."""
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return trainer


def worst_of(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, str]:
    """Over tensors of the same names."""
    if found.keys() != expected.keys():
        return float("nan"), f"not the same tensors: {sorted(found.keys() ^ expected.keys())[:3]}"
    worst = Worst()
    largest = max((float(x.abs().max()) for x in expected.values() if x.numel()), default=1.0)
    for name, x in expected.items():
        if float(x.abs().max()) > 1e-6 * largest:  # others are zero but for rounding, as keys' biases are
            worst.see(difference(found[name], x), name)
    return worst.error, worst.where
