"""Goal 3: the classifier against all labels, compared with its unavoidable matrix products and with autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Row, interleaved, peak_growth
from torch import Tensor

import xmclab
from xmclab.api import Batch
from xmclab.model.heads.classifier import Classifier
from xmclab.model.tables import RowOptimizer
from xmclab.objectives.truth import Truth
from xmclab.training.streaming import StreamedRows, all_labels

QUERIES, DIM, POSITIVES = 512, 64, 5
LABELS, FEWER = 500_000, 100_000
LOSSES = {"bce": ("bce", "ova", 1.25), "ds": ("ds", "pal_n", 1.6)}


def make_batch(labels: int, queries: int) -> Batch:
    columns = np.random.default_rng(0).integers(labels, size=(queries, POSITIVES))
    columns = np.sort(columns + np.arange(POSITIVES), axis=1) % labels
    rows, none = np.repeat(np.arange(queries), POSITIVES), np.zeros(0, np.int64)
    pairs = np.unique(np.stack([rows, columns.ravel()]), axis=1)
    return Batch(
        np.arange(queries), np.arange(labels), (pairs[0], pairs[1], np.ones(pairs.shape[1], np.float32)), (none, none)
    )


def ours(loss: str, labels: int, queries: int = QUERIES, dim: int = DIM) -> Callable[[], None]:
    """Values, gradient of the queries and updated table (row-wise adagrad), without dropout."""
    name, reduction, _ = LOSSES[loss]
    head = Classifier(dim=dim, table="adagrad", row_dropout=0.0)
    head.build(8, labels)
    head.train()
    optimizer = RowOptimizer([head.psi])
    truth = Truth.of_batch(make_batch(labels, queries), "cpu")
    objective = xmclab.objective(name, reduction, temperature=0.1)
    q_QD = torch.randn(queries, dim) * 0.1
    rows = StreamedRows(optimizer, at_once=True)
    optimizer.update_block(head.psi, slice(0, 1), torch.zeros(1, dim))  # the state is part of the table

    def run() -> None:
        rows.backward(*all_labels(head, objective, q_QD, truth, None, lambda label: label))
        rows.finish(None)
        optimizer.step()

    return run


def ours_alone(loss: str, labels: int) -> Callable[[], None]:
    """A call whose peak is only its own: a small one first loads the libraries."""
    ours(loss, 1000)()
    return ours(loss, labels)


def products(labels: int) -> Callable[[], None]:
    """The three products over all labels (scores, gradients of queries and rows), in blocks of the best size."""
    psi_LD, q_QD = torch.randn(labels, DIM) * 0.1, torch.randn(QUERIES, DIM) * 0.1
    size = (1 << 19) // QUERIES  # the fastest of 2^17 to 2^22

    def run() -> None:
        dq_QD = torch.zeros_like(q_QD)
        for start in range(0, labels, size):
            z_BD = psi_LD[start : start + size]
            s_QB = q_QD @ z_BD.T
            dq_QD.addmm_(s_QB, z_BD)
            s_QB.T @ q_QD

    return run


def autograd(loss: str, labels: int) -> Callable[[], None]:
    """The obvious version: the score matrix, the loss in torch, `backward`, a dense Adagrad."""
    batch = make_batch(labels, QUERIES)
    table = torch.nn.Parameter(torch.randn(labels, DIM) * 0.1)
    q_QD = (torch.randn(QUERIES, DIM) * 0.1).requires_grad_()
    y_QL = torch.zeros(QUERIES, labels)
    y_QL[batch.positives[0], batch.positives[1]] = 1
    optimizer = torch.optim.Adagrad([table], lr=1e-3)

    def value(s_QL: Tensor) -> Tensor:
        if loss == "bce":
            return F.binary_cross_entropy_with_logits(s_QL, y_QL)
        negatives_Q1 = s_QL.masked_fill(y_QL > 0, -torch.inf).logsumexp(dim=1, keepdim=True)
        return -(F.logsigmoid(s_QL - negatives_Q1) * y_QL / y_QL.sum(dim=1, keepdim=True)).sum(dim=1).mean()

    def run() -> None:
        optimizer.zero_grad()
        q_QD.grad = None
        value(q_QD @ table.T / 0.1).backward()
        optimizer.step()

    return run


def million(loss: str) -> Callable[[], Any]:
    """1.3M labels of width 256, including the table and its state."""

    def run() -> None:
        ours(loss, 1_305_265, QUERIES, 256)()

    return run


def measure() -> list[Row]:
    rows = []
    for loss, (_, _, bound) in LOSSES.items():
        shape = f"{loss}, {QUERIES} queries, d = {DIM}"
        times = interleaved({"ours": ours(loss, LABELS), "products": products(LABELS)}, repeats=5)
        seconds, beside = (f"{times[name]:.2f} s" for name in ("ours", "products"))
        ratio = times["ours"] / times["products"]
        rows.append(Row(3, f"{shape}, {LABELS:,} labels, with update", seconds, f"3 products {beside}", ratio, bound))
        times = interleaved({"ours": ours(loss, FEWER), "autograd": autograd(loss, FEWER)}, repeats=3)
        seconds, beside = (f"{times[name]:.2f} s" for name in ("ours", "autograd"))
        ratio = times["autograd"] / times["ours"]
        rows.append(
            Row(
                3,
                f"{shape}, {FEWER:,} labels, with update",
                seconds,
                f"autograd, dense Adagrad {beside}",
                ratio,
                4.5,
                ">=",
            )
        )
        for labels in (FEWER, LABELS):
            mib = peak_growth("streaming", "ours_alone", loss, labels) / 2**20
            rows.append(Row(3, f"{shape}, {labels:,} labels: MiB beyond the table", f"{mib:.0f} MiB", "-", mib, 40))
        gib = peak_growth("streaming", "million", loss) / 2**30
        what = f"{loss}, {QUERIES} queries, 1,305,265 labels × 256, table and adagrad state included: GiB"
        rows.append(Row(3, what, f"{gib:.2f} GiB", f"table alone {1_305_265 * 1024 / 2**30:.2f} GiB", gib, 2))
    return rows
