"""All labels, block by block: the step is the one that the whole score matrix gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import xmclab
import xmclab.training.streaming
from xmclab.api import Batch
from xmclab.data import open_dataset
from xmclab.errors import DivergedError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.heads.classifier import Classifier
from xmclab.model.tables import RowOptimizer
from xmclab.objectives.objective import Objective
from xmclab.objectives.truth import Truth
from xmclab.training.streaming import AllLabels, LabelBlocks, can_stream
from xmclab.training.trainer import Trainer

QUERIES, LABELS, DIM, BLOCK = 9, 23, 6, 5


def make_batch(ignored: bool = True) -> Batch:
    generator = np.random.default_rng(0)
    y_QL = generator.random((QUERIES, LABELS)) < 0.2
    y_QL[np.arange(QUERIES), np.arange(QUERIES)] = True
    y_QL[:, 10:15] = False  # a block without positives
    unknown_QL = ~y_QL & (generator.random((QUERIES, LABELS)) < 0.15)
    rows, columns = y_QL.nonzero()
    positives = rows, columns, generator.uniform(0.3, 1, len(rows)).astype(np.float32)
    return Batch(
        np.arange(QUERIES), np.arange(LABELS), positives, unknown_QL.nonzero() if ignored else ((rows[:0],) * 2)
    )


def make_head(**options: object) -> Classifier:
    torch.manual_seed(1)
    head = Classifier(dim=DIM, table_lr=0.1, **options)  # type: ignore[arg-type]
    head.build(4, LABELS)
    return head.double().train()


def seed_for(block: int) -> int:
    return 100 + block


def vectors_by_block(head: Classifier) -> torch.Tensor:
    """All label vectors with a graph, dropout drawn as for blocks."""
    parts = []
    for number, start in enumerate(range(0, LABELS, BLOCK)):
        ids = torch.arange(start, min(start + BLOCK, LABELS))
        torch.manual_seed(seed_for(number))
        parts.append(head.labels(None, ids))
    return torch.cat(parts)


def materialised(
    head: Classifier,
    objective: Objective,
    q_QD: torch.Tensor,
    batch: Batch,
    weight_L: torch.Tensor | None,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Three steps with the score matrix; the losses, the gradients of the queries, and the last parts."""
    optimizer, losses, gradients = RowOptimizer([head.psi], decay=decay), [], []
    for _ in range(3):
        q = q_QD.clone().requires_grad_()
        value = objective.evaluate(q @ vectors_by_block(head).T, Truth.of_batch(batch, "cpu"), weight_L)
        (0.7 * value.total).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.total.detach())
        gradients.append(q.grad)
    head.psi.settle()
    return torch.stack(losses), torch.stack(gradients), {f"{p.term}/{p.direction}": p.value.item() for p in value.parts}


def streamed(
    head: Classifier,
    objective: Objective,
    q_QD: torch.Tensor,
    batch: Batch,
    weight_L: torch.Tensor | None,
    decay: float,
    late: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    optimizer, losses, gradients = RowOptimizer([head.psi], decay=decay), [], []
    blocks = LabelBlocks.of_batch(batch, "cpu", BLOCK)

    def update(rows: slice, gradient_BD: torch.Tensor) -> None:
        optimizer.update_block(head.psi, rows, gradient_BD)

    for _ in range(3):
        step = AllLabels(head, objective, 0.7, q_QD, blocks, weight_L, seed_for)
        step.backward(None if late else update)
        parts = step.parts
        if late:
            step.replay(update, torch.ones((), dtype=torch.float64))
        optimizer.step()
        losses.append(torch.stack([part.weighted for part in parts]).sum())
        gradients.append(step.dq_QD)
    return torch.stack(losses), torch.stack(gradients), {f"{p.term}/{p.direction}": p.value.item() for p in parts}


CASES = [
    ("ds", "pal_n", 1.0),
    ("ds", "pal", 0.5),
    ("supcon", "pal_n", 0.5),
    ("softmax(temperature=0.1)", "pal", 0.0),
    ("bce", "ova", 1.0),
    ("bce", "ova_n", 1.0),
    ("0.7*ds+0.3*bce+supcon(temperature=2)", "pal_n", 0.4),
]


@pytest.mark.parametrize(("expression", "reduction", "q2l_share"), CASES)
@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd"])
def test_steps_are_those_of_the_score_matrix(expression: str, reduction: str, q2l_share: float, rule: str) -> None:
    objective = xmclab.objective(expression, reduction, temperature=0.3, q2l_share=q2l_share)
    weight_L = None if "bce" in expression else torch.rand(LABELS, generator=torch.Generator().manual_seed(5)) + 0.5
    weight_L = None if weight_L is None else weight_L.double()
    q_QD = torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    options = {"table": rule, "row_dropout": 0.3, "normalise": rule == "adamw"}
    for late in (False, True):
        expected_head, found_head = make_head(**options), make_head(**options)
        assert can_stream(objective, weight_L is not None)
        expected = materialised(expected_head, objective, q_QD, make_batch(), weight_L, decay=0.2)
        found = streamed(found_head, objective, q_QD, make_batch(), weight_L, decay=0.2, late=late)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=1e-10)
        assert found[2] == pytest.approx(expected[2], rel=1e-10)
        torch.testing.assert_close(found_head.psi.weight, expected_head.psi.weight, rtol=1e-10, atol=1e-10)


def test_without_ignored_pairs_and_dropout_the_size_of_blocks_does_not_matter() -> None:
    objective = xmclab.objective("ds+bce", "pal_n", temperature=0.3, symmetric=True)
    q_QD = torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    gradients = []
    for size in (1, 4, None):
        blocks = LabelBlocks.of_batch(make_batch(ignored=False), "cpu", size)
        step = AllLabels(make_head(row_dropout=0.0), objective, 1.0, q_QD, blocks, None, seed_for)
        step.backward()
        gradients.append(step.dq_QD)
        assert step.square > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-12, atol=1e-12)


def test_a_query_whose_labels_are_all_positive_has_no_loss() -> None:
    everything = np.zeros(LABELS, np.int64), np.arange(LABELS), np.ones(LABELS, np.float32)
    batch = Batch(np.arange(1), np.arange(LABELS), everything, (everything[0][:0],) * 2)
    blocks = LabelBlocks.of_batch(batch, "cpu", BLOCK)
    q_QD = torch.randn(1, DIM, dtype=torch.float64)
    step = AllLabels(make_head(), xmclab.objective("ds", "pal_n"), 1.0, q_QD, blocks, None, seed_for)
    step.backward()
    assert step.parts[0].value.item() == 0.0
    assert step.dq_QD.abs().max() == 0.0


def test_large_scores_do_not_overflow() -> None:
    head = make_head(row_dropout=0.0).float()
    q_QD = 1e4 * torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4))
    step = AllLabels(
        head, xmclab.objective("ds+supcon+bce", "pal_n", symmetric=True), 1.0, q_QD,
        LabelBlocks.of_batch(make_batch(), "cpu", BLOCK), None, seed_for,
    )  # fmt: skip
    step.backward()
    assert all(part.value.isfinite() for part in step.parts)
    assert step.dq_QD.isfinite().all()


def test_only_losses_that_are_known_in_a_form_for_blocks_stream() -> None:
    assert can_stream(xmclab.objective("ds+bce", "pal_n"), has_label_weights=False)
    assert not can_stream(xmclab.objective("ds+bce", "pal_n"), has_label_weights=True)
    objective = xmclab.objective("ds", "pal_n")

    class Own(type(objective.terms[0].loss)):  # type: ignore[misc]
        def terms(self, s_QP: torch.Tensor, y_QP: torch.Tensor) -> torch.Tensor:
            return -s_QP

    own = Objective([replace(objective.terms[0], loss=Own())])
    assert not can_stream(own, has_label_weights=False)


def test_no_tensor_of_a_step_grows_with_queries_times_labels() -> None:
    """The largest tensor that any operation returns, for many more labels in blocks of the same size."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        cells, table = 0, 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != self.table:
                    self.cells = max(self.cells, tensor.numel())
            return result

    def largest(labels: int) -> int:
        positives = np.arange(64), np.arange(64), np.ones(64, np.float32)
        none = np.zeros(0, np.int64)
        blocks = LabelBlocks.of_batch(Batch(np.arange(64), np.arange(labels), positives, (none, none)), "cpu", 32)
        head = Classifier(dim=DIM, table="sgd", row_dropout=0.0)
        head.build(4, labels)
        optimizer = RowOptimizer([head.psi])
        with Largest() as seen:
            seen.table = head.psi.weight.untyped_storage().data_ptr()
            step = AllLabels(
                head.train(), xmclab.objective("ds+bce", "pal_n", symmetric=True), 1.0, torch.randn(64, DIM), blocks,
                None, seed_for,
            )  # fmt: skip
            step.backward(lambda rows, gradient: optimizer.update_block(head.psi, rows, gradient))
        return seen.cells

    assert largest(300) == largest(1500) == 64 * 32


def make_trainer(*overrides: str) -> Trainer:
    small = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.clf.dim=16", "optim.warmup=0"]
    config = resolve([*small, "reduction.clf=pal_n", *overrides], default_registry())
    return Trainer(config, open_dataset("tiny", "title", default_registry()))


def take_steps(made: Trainer, steps: int = 3) -> list[tuple[float, float, dict[str, float]]]:
    results = []
    for step in range(steps):
        prepared = made.prepare(step, made.rows_N[step * 40 : step * 40 + 40])
        results.append(made.train_step(step, prepared.batch, made.on_device(prepared)))
    made.model.settle()
    return results


@pytest.mark.parametrize("clip", [0, 1e-3])
@pytest.mark.parametrize(
    "parts",
    [
        ["head.clf.table=adagrad"],
        ["head.de=none", "loss.clf=supcon", "head.clf.normalise=on", "objective.label_weights=propensity"],
        ["loss.clf=bce", "reduction.clf=ova_n", "encode.chunk=13", "head.clf.table=sgd", "head.clf.table_lr=10"],
    ],
)
def test_the_trainer_streams_to_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, parts: list[str], clip: float
) -> None:
    monkeypatch.setattr(xmclab.training.streaming, "CELLS", 40 * 30)  # several blocks
    options = [*parts, f"optim.clip={clip}", "optim.decay=0.1", "head.clf.row_dropout=0"]
    streaming = make_trainer(*options)
    assert streaming.terms["clf"].streams
    monkeypatch.setattr(xmclab.training.streaming, "can_stream", lambda objective, weighted: False)
    plain = make_trainer(*options)
    assert not plain.terms["clf"].streams
    for made in (streaming, plain):
        made.model.double()
    first = streaming.model.head("clf").psi.weight.detach().clone()
    for (loss, norm, values), (plain_loss, plain_norm, plain_values) in zip(
        take_steps(streaming), take_steps(plain), strict=True
    ):
        assert loss == pytest.approx(plain_loss, rel=1e-6)
        assert norm == pytest.approx(plain_norm, rel=1e-6)
        assert values == pytest.approx(plain_values, rel=1e-6)
    assert (streaming.model.head("clf").psi.weight - first).abs().max() > 1e-6
    for found, expected in zip(streaming.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_scores_that_overflow_are_seen_before_the_table_is_updated() -> None:
    blocks = LabelBlocks.of_batch(make_batch(), "cpu", BLOCK)
    for size, finite in ((1.0, True), (1e38, False)):
        q_QD = torch.full((QUERIES, DIM), size)
        step = AllLabels(make_head().float(), xmclab.objective("ds", "pal_n", 1e-3), 1.0, q_QD, blocks, None, seed_for)
        assert bool(step.finite) is finite


@pytest.mark.parametrize("clip", [0, 1])
def test_a_number_that_is_not_finite_stops_before_the_table_is_updated(clip: float) -> None:
    made = make_trainer(f"optim.clip={clip}")
    with torch.no_grad():
        made.model.head("clf").g2[0].weight[0, 0] = torch.nan
    before = made.model.head("clf").psi.weight.detach().clone()
    with pytest.raises(DivergedError):
        take_steps(made, 1)
    assert torch.equal(made.model.head("clf").psi.weight, before)


def test_rows_in_bfloat16_learn() -> None:
    made = make_trainer("head.de=none", "head.clf.table_dtype=bfloat16", "head.clf.table=adagrad", "optim.clip=0")
    assert made.model.head("clf").psi.weight.dtype == torch.bfloat16
    prepared = made.prepare(0, made.rows_N[:40])
    losses = [made.train_step(step, prepared.batch, made.on_device(prepared))[0] for step in range(10)]
    assert losses[-1] < losses[0]
