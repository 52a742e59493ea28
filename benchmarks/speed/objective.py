"""The symmetric objective from one score matrix: time and memory of the value and the gradients of both sides' vectors.

The yardstick is the three unavoidable matrix products: s = q z', dq = G z, dz = G' q.
"""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable
from functools import partial

import torch
from harness import Row, interleaved, peak_growth, without_numba
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, normalize

import xmclab
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth

QUERIES, LABELS, WIDTH, TEMPERATURE = 1098, 3000, 256, 1 / 18
LARGE = 8192
EXPRESSIONS = ("ds", "supcon", "bce", "ds+bce")
Call = Callable[[], object]


def vectors(queries: int, labels: int, norm: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """(q_QD, z_PD, y_QP): random directions, one to nine positives per query."""
    generator = torch.Generator().manual_seed(0)
    q_QD, z_PD = (normalize(torch.randn(n, WIDTH, generator=generator), dim=1) for n in (queries, labels))
    y_QP = torch.zeros(queries, labels, dtype=torch.bool)
    for row in y_QP:
        row[torch.randint(0, labels, (int(torch.randint(1, 10, (), generator=generator)),), generator=generator)] = True
    return (norm * q_QD).requires_grad_(), z_PD.requires_grad_(), y_QP


def measured_alone(make: Callable[[int, int], Call], queries: int, labels: int) -> Call:
    """A call whose peak is only its own: a small one first loads the libraries, and freed memory is returned."""
    make(2048, 1024)()
    call = make(queries, labels)
    ctypes.CDLL(None).malloc_trim(0)
    return call


def ours_alone(expression: str, queries: int, labels: int) -> Call:
    return measured_alone(partial(ours, expression), queries, labels)


def naive_alone(expression: str, queries: int, labels: int) -> Call:
    return measured_alone(partial(naive, expression), queries, labels)


def products_alone(queries: int, labels: int) -> Call:
    return measured_alone(products, queries, labels)


def back(value: Tensor, q_QD: Tensor, z_PD: Tensor) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(value, (q_QD, z_PD))


def products(queries: int, labels: int) -> Call:
    q_QD, z_PD, _ = vectors(queries, labels)
    q_QD, z_PD = q_QD.detach(), z_PD.detach()

    def call() -> tuple[Tensor, Tensor]:
        s_QP = q_QD @ z_PD.T
        return s_QP @ z_PD, s_QP.T @ q_QD

    return call


def ours(expression: str, queries: int, labels: int, norm: float = 1.0, bound: float = math.inf) -> Call:
    q_QD, z_PD, y_QP = vectors(queries, labels, norm)
    truth = Truth.of_matrix(y_QP)
    objective = xmclab.objective(expression, temperature=TEMPERATURE, symmetric=True)
    return lambda: back(evaluate_vectors(objective, q_QD, z_PD, truth, bound=bound).total, q_QD, z_PD)


def in_own_loop(expression: str, queries: int, labels: int) -> Call:
    """The README's loop: torch computes the scores, the positives are a mask."""
    q_QD, z_PD, y_QP = vectors(queries, labels)
    objective = xmclab.objective(expression, temperature=TEMPERATURE, symmetric=True)
    return lambda: back(objective(q_QD @ z_PD.T, y_QP), q_QD, z_PD)


def naive_value(expression: str, s_QP: Tensor, y_QP: Tensor) -> Tensor:
    """The obvious version: a mask, a log-sum-exp and a mean over positives, once per direction."""
    value = s_QP.new_zeros(())
    for term in expression.split("+"):
        if term == "bce":
            value = value + binary_cross_entropy_with_logits(s_QP, y_QP.to(s_QP.dtype))
            continue
        for s_AC, y_AC in ((s_QP, y_QP), (s_QP.T, y_QP.T)):
            if term == "ds":
                negatives_A1 = s_AC.masked_fill(y_AC, -torch.inf).logsumexp(dim=1, keepdim=True)
                pair_AC = -logsigmoid(s_AC - negatives_A1)
            else:
                pair_AC = s_AC.logsumexp(dim=1, keepdim=True) - s_AC
            positives_A = y_AC.sum(dim=1)
            mean_A = (pair_AC * y_AC).sum(dim=1) / positives_A.clamp(min=1)
            value = value + 0.5 * mean_A.sum() / (positives_A > 0).sum()
    return value


def naive(expression: str, queries: int, labels: int) -> Call:
    q_QD, z_PD, y_QP = vectors(queries, labels)
    return lambda: back(naive_value(expression, q_QD @ z_PD.T / TEMPERATURE, y_QP), q_QD, z_PD)


def metric_learning(queries: int, labels: int) -> Call | None:
    """SupConLoss of pytorch-metric-learning in both directions, given the pairs; None if it is not installed."""
    try:
        from pytorch_metric_learning.losses import SupConLoss
    except ImportError:
        return None
    q_QD, z_PD, y_QP = vectors(queries, labels)
    loss = SupConLoss(temperature=TEMPERATURE)
    both = [(*y_AC.nonzero(as_tuple=True), *(~y_AC).nonzero(as_tuple=True)) for y_AC in (y_QP, y_QP.T)]

    def call() -> object:
        forth = loss(q_QD, indices_tuple=both[0], ref_emb=z_PD)
        return back(0.5 * (forth + loss(z_PD, indices_tuple=both[1], ref_emb=q_QD)), q_QD, z_PD)

    return call


def gradient_error(expression: str) -> float:
    """The largest difference of a gradient from that of float64 autograd."""
    q_QD, z_PD, y_QP = vectors(QUERIES, LABELS)
    found = ours(expression, QUERIES, LABELS)()
    q_QD, z_PD = (x.detach().double().requires_grad_() for x in (q_QD, z_PD))
    expected = back(naive_value(expression, q_QD @ z_PD.T / TEMPERATURE, y_QP), q_QD, z_PD)
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def measure() -> list[Row]:
    """Goals 1 and 2."""
    size = (QUERIES, LABELS)
    where = f"{QUERIES}x{LABELS}x{WIDTH}, both directions"
    calls = {"products": products(*size), "ds, scores of any size": ours("ds", *size, norm=100.0)}
    for expression in EXPRESSIONS:
        calls[expression] = ours(expression, *size)
        calls[f"{expression} without numba"] = without_numba(ours(expression, *size, bound=1.0))  # cosines
        calls[f"naive {expression}"] = naive(expression, *size)
    calls["objective(q @ z.T, y) of 0.7*ds+0.3*bce"] = in_own_loop("0.7*ds+0.3*bce", *size)
    peer = metric_learning(*size)
    if peer:
        calls["pytorch-metric-learning"] = peer
    time = interleaved(calls, repeats=15, settle=1)
    rows = []

    def compare(what: str, peer: str, bound: float, slower: bool) -> None:
        value = time[peer] / time[what] if slower else time[what] / time[peer]
        text = f"{1e3 * time[what]:.1f} ms", f"{peer} {1e3 * time[peer]:.1f} ms ({value:.2f}x)"
        rows.append(Row(1, f"{what}, {where}", *text, value, bound, ">=" if slower else "<="))

    for expression in EXPRESSIONS:
        compare(expression, "products", 1.45, slower=False)
        compare(f"{expression} without numba", "products", 1.45, slower=False)
        compare(expression, f"naive {expression}", 4, slower=True)
        error = gradient_error(expression)
        rows.append(Row(1, f"{expression}, gradients, {where}", f"{error:.1e}", "float64 autograd", error, 1e-6))
    compare("ds, scores of any size", "products", 1.75, slower=False)
    compare("objective(q @ z.T, y) of 0.7*ds+0.3*bce", "products", 1.5, slower=False)
    if peer:
        compare("supcon", "pytorch-metric-learning", 7, slower=True)
    else:
        print("pytorch-metric-learning is not installed: not compared")

    matrix = 4 * QUERIES * LABELS
    floor = peak_growth("objective", "products_alone", *size) / matrix
    for expression in EXPRESSIONS:
        # The allocator places blocks differently in each process, so take the median of three.
        grown, naively = (
            statistics.median(peak_growth("objective", way, expression, *size) for _ in range(3)) / matrix
            for way in ("ours_alone", "naive_alone")
        )
        text = f"{grown:.2f} score matrices", f"products alone {floor:.2f}, naive {naively:.1f}"
        rows.append(Row(2, f"{expression}, memory, {where}", *text, grown, 1.6))
    for expression in EXPRESSIONS:
        grown = peak_growth("objective", "ours_alone", expression, LARGE, LARGE) / 2**20
        what = f"{expression}, memory, {LARGE}x{LARGE}x{WIDTH}"
        rows.append(Row(2, what, f"{grown:.0f} MiB", f"one score matrix {4 * LARGE**2 / 2**20:.0f} MiB", grown, 64))
    in_blocks = {"products": products(LARGE, LARGE)}
    in_blocks |= {expression: ours(expression, LARGE, LARGE) for expression in EXPRESSIONS}
    time = interleaved(in_blocks, repeats=3)
    for expression in EXPRESSIONS:
        value = time[expression] / time["products"]
        text = f"{time[expression]:.2f} s", f"products {time['products']:.2f} s ({value:.2f}x)"
        rows.append(Row(2, f"{expression}, time, {LARGE}x{LARGE}x{WIDTH} in blocks", *text, value, 1.75))
    return rows
