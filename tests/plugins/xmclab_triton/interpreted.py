"""How far the kernels in Triton's interpreter are from torch, as JSON; a process of its own, see test_passes.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import softplus as softplus_of

import xmclab
from xmclab.api import Block
from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.heads.classifier import Classifier
from xmclab.model.tables import RowOptimizer
from xmclab.objectives.fused import FusedEngine
from xmclab.objectives.truth import Truth
from xmclab.training.streaming import StreamedRows, all_labels
from xmclab.training.trainer import Trainer
from xmclab_triton.fused import INTERPRETED, Triton, _Call

QUERIES, LABELS, WIDTH = 19, 45, 6  # no multiples of a tile
SCALE = 2.25
RUN = (
    "data=tiny encoder=bag encoder.dim=8 head.de=none head.clf.dim=8 head.clf.bias=label sampler.batch_size=16 "
    "reduction.clf=pal_n loss.clf=ds+0.5*bce epochs=1"
)


def cells() -> tuple[Tensor, Tensor]:
    """Masks of positives and of ignored pairs, in no order of tiles; a query and a label have no negatives."""
    generator = torch.Generator().manual_seed(1)
    y_QL = torch.rand(QUERIES, LABELS, generator=generator) < 0.1
    y_QL[2], y_QL[:, 4] = True, True
    return y_QL, ~y_QL & (torch.rand(QUERIES, LABELS, generator=generator) < 0.05)


def far(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest number; infinities must agree."""
    assert torch.equal(a.isinf(), b.isinf())
    a, b = (x.double().nan_to_num(posinf=0, neginf=0) for x in (a, b))
    return ((a - b).abs().max() / b.abs().max()).item()


def kernel_errors(dtype: torch.dtype) -> dict[str, float]:
    """Each number of the two passes beside its definition in float64."""
    generator = torch.Generator().manual_seed(0)
    q_QD, z_LD = (torch.randn(n, WIDTH, generator=generator).to(dtype) for n in (QUERIES, LABELS))
    listed_QL = torch.logical_or(*cells())
    row_C, column_C = (x[torch.randperm(len(x), generator=torch.Generator().manual_seed(3))] for x in where(listed_QL))
    elsewhere = torch.tensor([-2, LABELS + 1])  # are listed, in other blocks
    row, column = torch.cat([row_C, torch.tensor([0, 1])]), torch.cat([column_C, elsewhere])
    block = Block(q_QD, z_LD, SCALE, row, column)
    s_QL = SCALE * q_QD.double() @ z_LD.double().T
    of_cells_C, s_QL = s_QL[row_C, column_C], s_QL.masked_fill(listed_QL, -torch.inf)
    n_Q, n_L = s_QL.logsumexp(1), s_QL.logsumexp(0)
    slope_Q, slope_L = torch.rand(QUERIES, generator=generator), torch.rand(LABELS, generator=generator)
    found_Q, found_L, s_C = Triton().log_sums(block, by_label=True)
    assert found_L is not None
    g_QL, value, again_C = Triton().gradient(block, (n_Q.float(), slope_Q), (n_L.float(), slope_L), 0.3)
    least = torch.finfo(torch.double).min
    slopes_QL = (s_QL - n_Q.clamp(min=least)[:, None]).exp() * slope_Q[:, None]
    slopes_QL += (s_QL - n_L.clamp(min=least)).exp() * slope_L
    assert g_QL.dtype == dtype
    return {
        "queries": far(found_Q, n_Q),
        "labels": far(found_L, n_L),
        "listed": far(s_C[:-2], of_cells_C),
        "listed, second pass": far(again_C[:-2], of_cells_C),
        "gradient": far(g_QL, slopes_QL + 0.3 * s_QL.sigmoid()),
        "value": far(value, softplus_of(s_QL, threshold=50).sum()),
    }


def where(mask_QL: Tensor) -> tuple[Tensor, ...]:
    return mask_QL.nonzero(as_tuple=True)


def small_numbers() -> dict[str, float]:
    """log(1 + exp s) of scores far below and above 0, where a plain logarithm loses all digits."""
    s_B = torch.tensor([-60.0, -20.0, -9.0, -0.5, 0.5, 9.0, 70.0])
    none = torch.zeros(0, dtype=torch.long)
    errors = {}
    for s in s_B:
        block = Block(torch.ones(1, 1), s.view(1, 1), 1.0, none, none)
        g, value, _ = Triton().gradient(block, None, None, 1.0)
        exact = softplus_of(s.double(), threshold=50) if s > -30 else s.double().exp()
        errors[f"softplus {s}"] = max(far(value, exact), far(g.view(()), s.double().sigmoid()))
    return errors


def engines(expression: str, reduction: str, q2l_share: float, **options: Any) -> Iterator[tuple[str, float]]:
    """Two steps over blocks of a table with kernels, in float32, beside those of torch in float64."""
    found: dict[bool, list[Tensor]] = {}
    for fused in (False, True):
        torch.manual_seed(1)
        head = Classifier(dim=WIDTH, table_lr=10.0, table="sgd", **options)
        head.build(4, LABELS)
        head.count(sp.csr_array(np.eye(QUERIES, LABELS, dtype=np.float32)))
        head = (head if fused else head.double()).train()
        objective = xmclab.objective(expression, reduction, q2l_share=q2l_share)
        before_LD = head.psi.weight.detach().clone()
        width = WIDTH + (head.bias != "none")
        q_QD = torch.randn(QUERIES, width, generator=torch.Generator().manual_seed(0)).to(head.psi.weight)
        q_QD[:, WIDTH:] = 1
        y_QL, ignored_QL = cells()
        truth = Truth.of_matrix(y_QL.double() if not fused else y_QL.float(), ignored_QL)
        rows, values = StreamedRows(RowOptimizer([head.psi]), clips=False), []
        for step in range(2):
            kernels = Triton() if fused else None
            how: dict[str, Any] = {"block": 30, "key_seed": step, "kernels": kernels}
            engine, scores = all_labels(head, objective, q_QD, truth, None, lambda label: label, **how)
            assert isinstance(engine, FusedEngine) == fused
            rows.backward(engine, scores)
            values.append(engine.evaluation.total)
            rows.finish(None)
        head.psi.settle()
        found[fused] = [torch.stack(values), scores.dq_QD, head.psi.weight.detach() - before_LD]
    for name, torch_s, ours in zip(("values", "queries", "table"), found[False], found[True], strict=True):
        yield f"{expression} {reduction} {q2l_share}: {name}", far(ours, torch_s)


def steps() -> dict[str, Any]:
    """Two steps of a run with `kernels=triton` beside those without; the launches of each."""
    found, launches = {}, {"none": 0, "triton": 0}
    launch = _Call.__call__
    for chosen in ("none", "triton"):
        config = resolve([*RUN.split(), f"kernels={chosen}", "baseline=none"], default_registry())
        trainer = Trainer(config, open_dataset("tiny", "title", default_registry()))
        before, losses = weights_of(trainer), []

        def counted(*given: Any, chosen: str = chosen, **named: Any) -> None:
            launches[chosen] += 1
            launch(*given, **named)

        _Call.__call__ = counted  # type: ignore[method-assign]
        for step in range(2):
            rows = trainer.rows_N[16 * step : 16 * step + 16]
            losses.append(trainer.step(step, trainer.prepare(step, rows))["loss"])
        found[chosen] = torch.tensor(losses), weights_of(trainer) - before
    _Call.__call__ = launch  # type: ignore[method-assign]
    errors = [far(a, b) for a, b in zip(found["triton"], found["none"], strict=True)]
    return {"steps: losses": errors[0], "steps: updates": errors[1], "steps: launches": launches}


def weights_of(trainer: Trainer) -> Tensor:
    """All weights of a model, in a copy."""
    for table in trainer.model.tables():
        table.settle()
    return torch.cat([x.detach().flatten() for x in trainer.model.parameters()])


def main() -> None:
    logging.disable()
    np.seterr(divide="ignore")  # log(0) of a query without negatives
    errors: dict[str, Any] = {"tile": INTERPRETED.labels}
    for dtype in (torch.float32, torch.float16):
        errors |= {f"{dtype} {name}": error for name, error in kernel_errors(dtype).items()}
    errors |= small_numbers()
    errors |= dict(engines("ds", "pal_n", 1.0, bias="label"))
    errors |= dict(engines("bce", "ova", 1.0))
    errors |= dict(engines("0.7*ds+0.3*bce", "pal_n", 1.0, bias="label", normalise=True))
    errors |= dict(engines("supcon", "pal_n", 0.4))
    bad = Block(torch.full((2, 4), torch.nan), torch.ones(3, 4), 1.0, *(torch.zeros(0, dtype=torch.long),) * 2)
    found = Triton().log_sums(bad, False)[0], Triton().gradient(bad, None, None, 1.0)[1]
    errors["finite in spite of NaN"] = any(bool(x.isfinite().any()) for x in found)
    errors["bfloat16"] = Triton().declines(torch.zeros(1, 1, dtype=torch.bfloat16))
    print(json.dumps(errors | steps()))


if __name__ == "__main__":
    main()
