"""All labels, block by block: the step is the one that the whole score matrix gives."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import xmclab
import xmclab.objectives.engine
import xmclab.training.streaming
from xmclab.api import Batch, Block, Kernels, option
from xmclab.data import open_dataset
from xmclab.errors import DivergedError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.heads.classifier import Classifier
from xmclab.model.tables import RowOptimizer
from xmclab.objectives.engine import Engine
from xmclab.objectives.objective import Objective
from xmclab.objectives.truth import Truth
from xmclab.training.state import load_state, state_of
from xmclab.training.streaming import StreamedRows, TableScores, all_labels, finite, streams
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
    unknown = unknown_QL.nonzero() if ignored else ((rows[:0],) * 2)
    return Batch(np.arange(QUERIES), np.arange(LABELS), positives, unknown, drawn_E=rows == columns)


def make_head(**options: object) -> Classifier:
    torch.manual_seed(1)
    head = Classifier(dim=DIM, table_lr=0.1, **options)  # type: ignore[arg-type]
    head.build(4, LABELS)
    head.count(sp.csr_array(np.eye(QUERIES, LABELS, dtype=np.float32)))
    return head.double().train()


def seed_for(label: int) -> int:
    return 100 + label // BLOCK


def vectors_by_block(head: Classifier) -> torch.Tensor:
    """All label vectors with a graph, dropout drawn as for blocks."""
    parts = []
    for start in range(0, LABELS, BLOCK):
        ids = torch.arange(start, min(start + BLOCK, LABELS))
        torch.manual_seed(seed_for(start))
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
    """Three steps with the score matrix; the losses, the gradients of the queries, and the last values."""
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
    return torch.stack(losses), torch.stack(gradients), {name: x.item() for name, x in value.values.items()}


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
    rows, truth = StreamedRows(optimizer, clips=late), Truth.of_batch(batch, "cpu")
    for _ in range(3):
        engine, scores = all_labels(head, replace(objective, share=0.7), q_QD, truth, weight_L, seed_for, BLOCK)
        rows.backward(engine, scores)
        found = engine.evaluation
        rows.finish(None)
        optimizer.step()
        losses.append(found.total)
        gradients.append(scores.dq_QD)
    return torch.stack(losses), torch.stack(gradients), {name: x.item() for name, x in found.values.items()}


def backward(
    head: Classifier, objective: Objective, q_QD: torch.Tensor, batch: Batch, block: int | None = BLOCK
) -> tuple[Engine, TableScores]:
    """Both passes without an update."""
    engine, scores = all_labels(head, objective, q_QD, Truth.of_batch(batch, "cpu"), None, seed_for, block)
    engine.backward()
    return engine, scores


CASES = [
    ("ds", "pal_n", 1.0),
    ("ds", "pal", 0.5),
    ("supcon", "pal_n", 0.5),
    ("softmax(temperature=0.1)", "pal", 0.0),
    ("bce", "ova", 1.0),
    ("bce", "ova_n", 1.0),
    ("0.7*ds+0.3*bce+supcon(temperature=2)", "pal_n", 0.4),
    ("pol(ds)+supcon", "pal_n", 0.4),
]


# With labels alone as anchors a bias cancels: its gradient is rounding noise, which Adam would blow up.
WITH_BIAS = [(*case, bias) for case in CASES for bias in ("none", "label") if case[2] > 0 or bias == "none"]


@pytest.mark.parametrize(("expression", "reduction", "q2l_share", "bias"), WITH_BIAS)
@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd"])
def test_steps_are_those_of_the_score_matrix(
    expression: str, reduction: str, q2l_share: float, rule: str, bias: str
) -> None:
    objective = xmclab.objective(expression, reduction, temperature=0.3, q2l_share=q2l_share)
    weight_L = None if "bce" in expression else torch.rand(LABELS, generator=torch.Generator().manual_seed(5)) + 0.5
    weight_L = None if weight_L is None else weight_L.double()
    q_QD = torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    options = {"table": rule, "row_dropout": 0.3, "normalise": rule == "adamw", "bias": bias}
    q_QD = q_QD if bias == "none" else torch.nn.functional.pad(q_QD, (0, 1), value=1.0)
    for late in (False, True):
        expected_head, found_head = make_head(**options), make_head(**options)
        assert streams(found_head, objective, weight_L is not None)
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
        scores = backward(make_head(row_dropout=0.0), objective, q_QD, make_batch(ignored=False), size)[1]
        gradients.append(scores.dq_QD)
        assert scores.square > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-12, atol=1e-12)


def test_keyed_dropout_of_rows_does_not_depend_on_the_size_of_blocks() -> None:
    objective = xmclab.objective("ds+bce", "pal_n", temperature=0.3, symmetric=True)
    q_QD = torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    truth, gradients = Truth.of_batch(make_batch(), "cpu"), []
    for size in (1, 4, None):
        head = make_head(row_dropout=0.4)
        engine, scores = all_labels(head, objective, q_QD, truth, None, seed_for, size, key_seed=8)
        engine.backward()
        gradients.append(scores.dq_QD)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-12, atol=1e-12)
    plain = backward(make_head(row_dropout=0.0), objective, q_QD, make_batch())[1].dq_QD
    assert not torch.allclose(gradients[0], plain)


def test_a_query_whose_labels_are_all_positive_has_no_loss() -> None:
    everything = np.zeros(LABELS, np.int64), np.arange(LABELS), np.ones(LABELS, np.float32)
    batch = Batch(np.arange(1), np.arange(LABELS), everything, (everything[0][:0],) * 2)
    q_QD = torch.randn(1, DIM, dtype=torch.float64)
    engine, scores = backward(make_head(), xmclab.objective("ds", "pal_n"), q_QD, batch)
    assert engine.evaluation.total == 0.0
    assert scores.dq_QD.abs().max() == 0.0


def test_large_scores_do_not_overflow() -> None:
    head = make_head(row_dropout=0.0).float()
    q_QD = 1e4 * torch.randn(QUERIES, DIM, generator=torch.Generator().manual_seed(4))
    objective = xmclab.objective("ds+supcon+bce", "pal_n", symmetric=True)
    engine, scores = backward(head, objective, q_QD, make_batch())
    assert all(value.isfinite() for value in engine.evaluation.values.values())
    assert scores.dq_QD.isfinite().all()


def test_only_losses_that_are_known_in_a_form_for_blocks_stream() -> None:
    head = make_head()
    assert streams(head, xmclab.objective("ds+bce", "pal_n"), weighted=False)
    assert not streams(head, xmclab.objective("ds+bce", "pal_n"), weighted=True)
    assert not streams(head, xmclab.objective("ds+bce", "psl"), weighted=False)
    objective = xmclab.objective("ds", "pal_n")

    class Own(type(objective.terms[0].loss)):  # type: ignore[misc]
        def terms(self, s_QP: torch.Tensor, y_QP: torch.Tensor) -> torch.Tensor:
            return -s_QP

    own = Objective([replace(objective.terms[0], loss=Own())])
    assert not streams(head, own, weighted=False)


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
        truth = Truth.of_batch(Batch(np.arange(64), np.arange(labels), positives, (none, none)), "cpu")
        head = Classifier(dim=DIM, table="sgd", row_dropout=0.0)
        head.build(4, labels)
        optimizer = RowOptimizer([head.psi])
        with Largest() as seen:
            seen.table = head.psi.weight.untyped_storage().data_ptr()
            objective = xmclab.objective("ds+bce", "pal_n", symmetric=True)
            engine, scores = all_labels(head.train(), objective, torch.randn(64, DIM), truth, None, seed_for, 32)
            StreamedRows(optimizer, clips=False).backward(engine, scores)
        return seen.cells

    assert largest(300) == largest(1500) == 64 * 32 + 1  # and the spare cell


# Rows without a projection of the queries, of any length, with a velocity.
PLAIN = ["loss.clf=bce", "head.clf.projection=none", "head.clf.dim=0", "head.clf.rows=normal"]
PLAIN += ["head.clf.table=momentum", "head.clf.table_momentum=0.5", "head.clf.table_lr=0.1"]


def make_trainer(*overrides: str) -> Trainer:
    small = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.clf.dim=16", "optim.warmup=0"]
    config = resolve([*small, "reduction.clf=pal_n", *overrides], default_registry())
    return Trainer(config, open_dataset("tiny", "title", default_registry()))


def take_steps(made: Trainer, steps: int = 3) -> list[dict[str, Any]]:
    rows = [made.rows_N[step * 40 : step * 40 + 40] for step in range(steps)]
    records = [made.step(step, made.prepare(step, rows[step])) for step in range(steps)]
    made.model.settle()
    return records


@pytest.mark.parametrize("clip", [0, 1e-3])
@pytest.mark.parametrize(
    "parts",
    [
        ["head.clf.table=adagrad"],
        ["head.de=none", "loss.clf=supcon", "head.clf.normalise=on", "objective.label_weights=propensity"],
        ["loss.clf=bce", "reduction.clf=ova_n", "encode.chunk=13", "head.clf.table=sgd", "head.clf.table_lr=10"],
        [*PLAIN, "head.de=none", "reduction.clf=ova", "reduction.clf.cells=sum", "head.clf.dropout=0.5"],
    ],
)
def test_the_trainer_streams_to_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, parts: list[str], clip: float
) -> None:
    monkeypatch.setattr(xmclab.objectives.engine, "CELLS_KEPT", 0)
    monkeypatch.setattr(xmclab.objectives.engine, "CELLS_OF_BLOCK", 40 * 30)  # several blocks
    options = [*parts, f"optim.clip={clip}", "optim.decay=0.1", "head.clf.row_dropout=0.2"]
    streaming = make_trainer(*options)
    assert streaming.streaming == {"clf"}
    monkeypatch.setattr(xmclab.training.streaming, "streams", lambda *_: False)
    plain = make_trainer(*options)
    assert not plain.streaming
    for made in (streaming, plain):
        made.model.double()
    first = streaming.model.head("clf").psi.weight.detach().clone()
    for found, expected in zip(take_steps(streaming), take_steps(plain), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-6)
        assert found["terms"] == pytest.approx(expected["terms"], rel=1e-6)
    assert (streaming.model.head("clf").psi.weight - first).abs().max() > 1e-6
    for found, expected in zip(streaming.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@dataclass
class Asked(Kernels):
    """Kernels that take float32, and fail when they are used."""

    reason: str = option("", "why it declines")

    def declines(self, q_QD: torch.Tensor) -> str:
        return self.reason or ("" if q_QD.dtype == torch.float32 else "needs float32")

    def log_sums(self, block: Block, by_label: bool) -> Any:
        raise RuntimeError(f"asked for {tuple(block.z_BD.shape)} at {block.scale:.2f}, by label: {by_label}")

    gradient = None  # type: ignore[assignment]  # is not reached


def with_kernels(*overrides: str) -> Trainer:
    small = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.clf.dim=16", "reduction.clf=pal_n", "baseline=none"]
    registry = default_registry().with_class("kernels", "asked", Asked)
    config = resolve([*small, "kernels=asked", *overrides], registry)
    return Trainer(config, open_dataset("tiny", "title", default_registry()))


def test_kernels_are_given_the_rows_of_a_block(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xmclab.training")
    made = with_kernels("loss.clf=ds(temperature=0.5)+bce(temperature=0.5)")
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("kernels")]
    assert lines == ["kernels: torch computes the scores of head.de: it is not trained on blocks of all labels"]
    labels = made.data.num_labels
    with pytest.raises(RuntimeError, match=rf"asked for \({labels}, 16\) at 2.00, by label: True"):
        take_steps(made)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("kernels.reason=the moon", "the moon"),
        ("loss.clf=ds(temperature=0.5)+bce(temperature=1)", "its losses have several temperatures"),
    ],
)
def test_torch_serves_where_kernels_decline(caplog: pytest.LogCaptureFixture, override: str, reason: str) -> None:
    caplog.set_level(logging.INFO, "xmclab.training")
    made = with_kernels("head.de=none", override)
    assert f"kernels: torch computes the scores of head.clf: {reason}" in caplog.messages
    assert all(np.isfinite(record["loss"]) for record in take_steps(made, 1))


def test_scores_that_overflow_are_seen_before_the_table_is_updated() -> None:
    objective, truth = xmclab.objective("ds", "pal_n", 1e-3), Truth.of_batch(make_batch(), "cpu")
    for size, expected in ((1.0, True), (1e38, False)):
        q_QD = torch.full((QUERIES, DIM), size)
        engine, scores = all_labels(make_head().float(), objective, q_QD, truth, None, seed_for, BLOCK)
        assert bool(finite(engine, scores)) is expected


@pytest.mark.parametrize("clip", [0, 1])
def test_a_number_that_is_not_finite_stops_before_the_table_is_updated(clip: float) -> None:
    made = make_trainer(f"optim.clip={clip}")
    with torch.no_grad():
        made.model.head("clf").g2[0].weight[0, 0] = torch.nan
    before = made.model.head("clf").psi.weight.detach().clone()
    with pytest.raises(DivergedError):
        take_steps(made, 1)
    assert torch.equal(made.model.head("clf").psi.weight, before)


@pytest.mark.parametrize("parts", [["head.clf.table=adagrad"], [*PLAIN, "head.clf.table=sgd", "reduction.clf=ova"]])
def test_rows_in_bfloat16_learn(parts: list[str]) -> None:
    made = make_trainer("head.de=none", "head.clf.table_dtype=bfloat16", "optim.clip=0", *parts)
    assert made.streaming == {"clf"}
    assert made.model.head("clf").psi.weight.dtype == torch.bfloat16
    prepared = made.prepare(0, made.rows_N[:40])
    losses = [made.step(step, prepared)["loss"] for step in range(10)]
    assert losses[-1] < losses[0]


CLIPPED = ["head.de=none", "loss.clf=bce", "reduction.clf=ova_n", "head.clf.table=sgd", "optim.decay=0"]


def table_steps(made: Trainer, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], list[float], list[int]]:
    """The change of the table in each of three steps, the norm before clipping, and passes over the scores."""
    changes, norms, counts = [], [], []
    weight, passes, once = made.model.head("clf").psi.weight, [], Engine.backward
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "backward", lambda engine: (passes.append(1), once(engine))[1])
        for step in range(3):
            before, passes[:] = weight.detach().clone(), []
            norms.append(made.step(step, made.prepare(step, made.rows_N[step * 40 : step * 40 + 40]))["gradient_norm"])
            made.model.settle()
            changes.append(weight.detach() - before)
            counts.append(len(passes))
    return changes, norms, counts


def test_tables_are_clipped_by_the_norm_of_the_step_before_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step, which has none before it, takes both passes."""
    clip = 1e-3
    exact = make_trainer(*CLIPPED, f"optim.clip={clip}")
    ahead = make_trainer(*CLIPPED, f"optim.clip={clip}", "optim.clip_tables=previous")
    expected, norms, passes = table_steps(exact, monkeypatch)
    found, others, fewer = table_steps(ahead, monkeypatch)
    assert (passes, fewer) == ([2, 2, 2], [2, 1, 1])
    assert min(norms) > clip
    assert torch.equal(found[0], expected[0])
    assert others[:2] == pytest.approx(norms[:2])
    assert others[0] != pytest.approx(others[1], rel=1e-3)
    # Both are clipped in the second step: one by the first norm, the other by its own.
    torch.testing.assert_close(found[1] * others[0], expected[1] * norms[1], rtol=1e-3, atol=1e-8)


def test_a_resumed_run_clips_tables_by_the_same_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*CLIPPED, "optim.clip=0.001", "optim.clip_tables=previous"]
    first = make_trainer(*options)
    table_steps(first, monkeypatch)
    state = state_of(first)
    assert 0 < state.numbers["clips_by"] < 1
    second = make_trainer(*options)
    load_state(second, state)
    assert second.optimizers.clips_by == first.optimizers.clips_by
    assert "clips_by" not in state_of(make_trainer(*CLIPPED)).numbers
