"""Batches and losses as a run has them, against loops over dense matrices and against independent programs.

28  more positives asked for than a query has
29  more negatives asked for than there are; a positive is never a negative
30  a pool with one label; a query of which every label is a positive
31  every query has a positive in its pool; pools are sets; an epoch visits each query once
32  the length of a plan; the same plan in another process
33  laws between reductions, and the losses of torch and pytorch-metric-learning
34  extreme scores and temperatures, low precision, gradients of every loss
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss, SupConLoss
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import xmclab
from xmclab.api import Batch, Dataset, Split
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.loop import fit
from xmclab.training.trainer import Trainer

DIM = 4
PLAIN = [f"encoder.dim={DIM}", "encoder.chars_from=0", "encoder.min_frequency=1", "baseline=none", "epochs=2"]
PLAIN += [f"head.{head}.{option}" for head in ("de", "clf") for option in (f"dim={DIM}", "dropout=0")]
PLAIN += ["head.clf.row_dropout=0", "sampler.batch_size=5", "optim.warmup=0"]
FEW = settings(max_examples=40, deadline=None)


def data(targets_NL: np.ndarray, filter_NL: np.ndarray | None = None) -> Dataset:
    """A data set with these positives and filter pairs."""
    queries, labels = targets_NL.shape
    pairs = np.zeros((queries, labels)) if filter_NL is None else filter_NL
    csr = [sp.csr_array(x.astype(np.float32)) for x in (targets_NL, pairs)]
    words = [f"word{row} common{row % 3}" for row in range(max(queries, labels))]
    names = [str(row) for row in range(max(queries, labels))]
    split = Split(words[:queries], names[:queries], csr[0], csr[1])
    return Dataset("made", split, split, words[:labels], names[:labels], "")


def trainer(made: Dataset, *overrides: str) -> Trainer:
    return Trainer(resolve([*PLAIN, *overrides], default_registry()), made)


def epoch(made: Trainer, number: int = 0) -> list[tuple[np.ndarray, Any]]:
    """The batches of an epoch, each as planned and as prepared."""
    made.view = None
    if made.needs_views and number:
        made.refresh(number)
    plan = made.plan(number)
    return list(zip(plan, made.batches(plan, 100 * number), strict=True))


def trained(made: Trainer) -> list[dict[str, Any]]:
    """The records of the steps of a run."""
    records: list[dict[str, Any]] = []
    fit(made, lambda record: records.append(dict(record)), dict)
    return [record for record in records if record["event"] == "step"]


@st.composite
def positives(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Targets and filter pairs: sparse, dense, with empty rows and rows of nothing but positives; they may overlap."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(1, 14)), draw(st.integers(1, 12))
    targets_NL = rng.random(shape) < draw(st.sampled_from([0.1, 0.4, 0.8]))
    targets_NL[rng.random(shape[0]) < 0.1] = True
    targets_NL[rng.random(shape[0]) < 0.1] = False
    targets_NL[0, 0] = True
    return targets_NL, rng.random(shape) < draw(st.sampled_from([0.0, 0.3]))


# 28


@FEW
@given(positives(), st.sampled_from([1, 2, 3, 10**6]))
@example((np.array([[1, 1, 1, 1, 1, 1]] + 4 * [[0, 0, 1, 0, 0, 0]], dtype=bool), np.zeros((5, 6), dtype=bool)), 2)
def test_a_query_draws_each_positive_once_and_no_more_than_it_has(
    case: tuple[np.ndarray, np.ndarray], beta: int
) -> None:
    targets_NL, filter_NL = case
    made = trainer(data(targets_NL, filter_NL), f"pool.beta={beta}", "miner=none")
    for rows, prepared in epoch(made):
        batch = prepared.batch
        assert batch.drawn_E is not None
        drawn = np.bincount(batch.positives[0], weights=batch.drawn_E, minlength=len(rows))
        assert drawn.tolist() == [min(beta, count) for count in targets_NL[rows].sum(axis=1)]
        assert batch.labels_P.tolist() == sorted(set(batch.labels_P[batch.positives[1][batch.drawn_E]]))
        if beta > targets_NL.shape[1]:
            assert batch.labels_P.tolist() == np.flatnonzero(targets_NL[rows].any(axis=0)).tolist()


# 29


@FEW
@given(positives(), st.sampled_from(["random", "ann"]), st.integers(1, 8))
def test_negatives_run_short_are_counted_and_never_true(
    case: tuple[np.ndarray, np.ndarray], miner: str, eta: int
) -> None:
    targets_NL, filter_NL = case
    made = trainer(data(targets_NL, filter_NL), f"miner={miner}", f"pool.eta={eta}", "pool.beta=1")
    for rows, prepared in epoch(made, number=1):
        batch, left = prepared.batch, (~(targets_NL | filter_NL))[rows].sum(axis=1)
        asked = min(eta, targets_NL.shape[1])  # more than there are labels are not looked for, which a note says
        assert batch.missing == np.maximum(asked - left, 0).sum()
        role_QP = roles(batch)
        for (place, row), (column, label) in itertools.product(enumerate(rows), enumerate(batch.labels_P)):
            expected = "positive" if targets_NL[row, label] else "ignored" if filter_NL[row, label] else "negative"
            assert role_QP[place][column] == expected
        if len(rows) == 1:
            assert len(batch.labels_P) == 1 + min(eta, left[0])


def roles(batch: Batch) -> list[list[str]]:
    """What each pair of a batch is."""
    found = [["negative"] * len(batch.labels_P) for _ in batch.rows_Q]
    for role, pairs in (("positive", batch.positives), ("ignored", batch.ignored)):
        for row, column in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True):
            assert found[row][column] == "negative"
            found[row][column] = role
    return found


def test_a_run_says_how_many_negatives_it_did_not_find() -> None:
    """Query 0 has every label as a positive, query 1 all but two; the nearest labels come with the first refresh."""
    targets_NL = np.ones((3, 6), dtype=bool)
    targets_NL[1, :2] = targets_NL[2, :] = False
    records = trained(trainer(data(targets_NL), "miner=ann", "pool.eta=5", "refresh_every=1"))
    assert [record["missing_negatives"] for record in records] == [2 * 5, 5 + 3]


# 30

MULTICLASS = ("psl", "pal_n", "pal", "pol")
BINARY = ("ova", "ova_n", *MULTICLASS)
LOSSES = {name: default_registry().get("loss", name)() for name in default_registry().names("loss") if "." not in name}
PAIRINGS = [
    (name, reduction) for name, loss in LOSSES.items() for reduction in {"binary": BINARY}.get(loss.kind, MULTICLASS)
]
ALL_POSITIVE = np.ones((6, 1), dtype=bool)
MIXED = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=bool)


@pytest.mark.parametrize(("loss", "reduction"), PAIRINGS)
@pytest.mark.parametrize("targets_NL", [ALL_POSITIVE, MIXED], ids=["one label", "a row of positives"])
def test_degenerate_pools_train(targets_NL: np.ndarray, loss: str, reduction: str) -> None:
    made = trainer(data(targets_NL), f"loss={loss}", f"reduction={reduction}", "miner=random")
    records = trained(made)
    assert all(math.isfinite(record["loss"]) and math.isfinite(record["gradient_norm"]) for record in records)
    assert all(parameter.isfinite().all() for parameter in made.model.parameters())
    if loss == "ds" and len(targets_NL[0]) == 1:
        assert {(record["loss"], record["gradient_norm"]) for record in records} == {(0.0, 0.0)}


@pytest.mark.parametrize("loss", [name for name, loss in LOSSES.items() if loss.kind == "multiclass"])
@pytest.mark.parametrize("reduction", MULTICLASS)
def test_rows_without_a_choice_cost_ds_nothing_and_others_nothing_infinite(loss: str, reduction: str) -> None:
    """The first row has positives only, the second none; they are counted, or not, among the anchors."""
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(5, 6, dtype=torch.float64, requires_grad=True), torch.rand(5, 6) < 0.4
    y_QP[2:, 0], y_QP[2:, 1], y_QP[0], y_QP[1] = True, False, True, False
    drawn_QP = torch.arange(6).expand(5, 6) == 0
    objective = xmclab.objective(loss, reduction=reduction)
    value = objective(s_QP, y_QP, drawn_QP=drawn_QP)
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    assert value.isfinite()
    assert gradient_QP.isfinite().all()
    assert (gradient_QP[1] == 0).all()
    if loss == "ds":
        assert (gradient_QP[0] == 0).all()
        torch.testing.assert_close(value, objective(s_QP[2:], y_QP[2:], drawn_QP=drawn_QP[2:]) * 3 / 4)


# 31

SAMPLERS = ["random", "cluster", "cluster_mix"]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("cap", [0, 3])
@FEW
@given(positives(), st.integers(1, 6), st.integers(1, 3))
def test_an_epoch_visits_each_query_once_with_a_positive(
    sampler: str, cap: int, case: tuple[np.ndarray, np.ndarray], size: int, beta: int
) -> None:
    targets_NL, filter_NL = case
    small = ["sampler.cluster_size=2"] if sampler == "cluster_mix" else []
    options = [f"sampler={sampler}", *small, f"sampler.batch_size={size}", f"pool.beta={beta}", f"pool.cap={cap}"]
    made = trainer(data(targets_NL, filter_NL), *options, "miner=ann", "pool.eta=2")
    for number in range(2):
        batches = epoch(made, number)
        assert sorted(np.concatenate([rows for rows, _ in batches])) == np.flatnonzero(targets_NL.any(axis=1)).tolist()
        for rows, prepared in batches:
            batch = prepared.batch
            labels = batch.labels_P.tolist()
            assert labels == sorted(set(labels))
            assert set(labels) <= set(range(targets_NL.shape[1]))
            assert targets_NL[batch.rows_Q][:, labels].any(axis=1).all()
            lost = [row for row in rows if row not in batch.rows_Q]
            assert batch.dropped == len(lost)
            assert not targets_NL[lost][:, labels].any()
            assert cap or not lost


# 32

ANOTHER_PROCESS = "import json; from tests.faults.test_training import plans; print(json.dumps(plans()))"


def plans() -> dict[str, list[list[str]]]:
    """By sampler and epoch, a digest of the batches and of their pools; the last two epochs follow a refresh."""
    targets_NL = np.random.default_rng(0).random((60, 40)) < 0.1
    found = {}
    for sampler in SAMPLERS:
        made = trainer(data(targets_NL), f"sampler={sampler}", "miner=ann", "pool.beta=1", "pool.eta=2")
        batches = [[prepared.batch for _, prepared in epoch(made, number)] for number in range(3)]
        found[sampler] = [[digest(some, "rows_Q"), digest(some, "labels_P")] for some in batches]
    return found


def digest(batches: list[Batch], name: str) -> str:
    return hashlib.sha256(b"".join(getattr(batch, name).tobytes() for batch in batches)).hexdigest()


def test_plans_differ_between_epochs_and_not_between_processes() -> None:
    environment = os.environ | {"PYTHONHASHSEED": str(hash("other") % 1000 + 1), "OMP_NUM_THREADS": "1"}
    command, root = [sys.executable, "-c", ANOTHER_PROCESS], Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as process:
        here, there = plans(), json.loads(process.communicate()[0])
    assert here == there
    for epochs in here.values():
        assert all(len(set(digests)) == 3 for digests in zip(*epochs, strict=True))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("refresh_every", [1, 2])
def test_a_run_has_as_many_steps_as_its_schedule_expects(sampler: str, refresh_every: int) -> None:
    targets_NL = np.random.default_rng(0).random((23, 9)) < 0.2
    release = ["sampler.depth=release"] if sampler == "cluster" else []
    made = trainer(data(targets_NL), f"sampler={sampler}", *release, f"refresh_every={refresh_every}", "epochs=3")
    lengths = [len(epoch(made, number)) for number in range(3)]
    records = trained(made)
    assert [sum(record["epoch"] == number for record in records) for number in range(3)] == lengths
    assert len(records) == sum(lengths) == made.steps
    assert [record["last_of_epoch"] for record in records].count(True) == 3


# 33

TARGETS_NL = np.random.default_rng(3).random((20, 9)) < 0.3
TARGETS_NL[:, 0], TARGETS_NL[:, 1] = True, False


@pytest.mark.parametrize("loss", ["ds", "supcon", "softmax", "ds+0.5*bce"])
def test_a_run_with_every_label_in_the_pool_is_one_of_pal_n(loss: str) -> None:
    """`psl` scores a pool, `pal_n` all labels, the classifier's in blocks of its table."""
    pools = ["reduction=psl", "miner=random", f"pool.eta={TARGETS_NL.shape[1]}"], ["reduction=pal_n", "miner=none"]
    made = [trainer(data(TARGETS_NL), f"loss={loss}", "epochs=4", *options) for options in pools]
    assert [each.streaming for each in made] == [set(), {"clf"}]
    found, expected = map(trained, made)
    assert len(found) == 4 * 4
    for name in ("loss", "gradient_norm"):
        assert [record[name] for record in found] == pytest.approx([record[name] for record in expected], rel=1e-4)
    for one, other in zip(*(each.model.state_dict().values() for each in made), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@FEW
@given(st.integers(0, 2**32), st.booleans())
def test_the_mean_of_pol_over_what_may_be_drawn_is_pal_n(seed: int, supcon: bool) -> None:
    rng = np.random.default_rng(seed)
    s_QP, y_QP = 3 * rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.5
    y_QP[:, 0] = True
    terms_QP = np.zeros(y_QP.shape)
    for row, column in itertools.product(range(3), range(5)):
        rivals = [other for other in range(5) if supcon or other == column or not y_QP[row, other]]
        terms_QP[row, column] = math.log(sum(math.exp(s_QP[row, other]) for other in rivals)) - s_QP[row, column]
    expected = np.mean([terms_QP[row, y_QP[row]].mean() for row in range(3)])

    pol, scores = xmclab.objective("supcon" if supcon else "ds", reduction="pol"), torch.from_numpy(s_QP)
    values = []
    for draw in itertools.product(*(np.flatnonzero(row) for row in y_QP)):
        drawn_QP = torch.zeros(3, 5, dtype=torch.bool)
        drawn_QP[range(3), draw] = True
        values.append(float(pol(scores, torch.from_numpy(y_QP), drawn_QP=drawn_QP)))
    assert np.mean(values) == pytest.approx(expected, rel=1e-12, abs=1e-13)


def vectors(made: Trainer, prepared: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """By head, the vectors of the queries and labels of a batch, as training has them."""
    with torch.no_grad():
        ((queries, *_),), ((labels, *_),) = prepared.queries, prepared.labels
        x_QD, x_PD = made.model.encoder(queries, "query"), made.model.encoder(labels, "label")
        heads = made.model.heads.items()
        return {name: (head.queries(x_QD), head.labels(x_PD, prepared.labels_P)) for name, head in heads}


@pytest.mark.parametrize("reduction", ["ova(bce, cells='sum')", "ova(bce)"])
def test_a_step_of_ova_and_bce_has_the_loss_of_torch(reduction: str) -> None:
    made = trainer(data(TARGETS_NL), f"loss={reduction}", "head.de.temperature=0.5", "head.clf.temperature=0.25")
    (rows, prepared), *_ = epoch(made)
    sides = vectors(made, prepared)
    found = made.step(0, prepared)["terms"]
    kind = "sum" if "sum" in reduction else "mean"
    for (name, (q_QD, z_LD)), temperature in zip(sides.items(), (0.5, 0.25), strict=True):
        s_QL, y_QL = q_QD @ z_LD.T / temperature, torch.from_numpy(TARGETS_NL[rows]).float()
        expected = binary_cross_entropy_with_logits(s_QL.double(), y_QL.double(), reduction=kind)
        assert found[f"{name}/bce/cells"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("loss", ["supcon", "ds"])
def test_a_step_of_supcon_and_ds_has_the_loss_of_pytorch_metric_learning(loss: str) -> None:
    """Their NT-Xent is `ds`, averaged over the pairs; they normalise, so both heads do."""
    options = [f"loss={loss}", f"reduction={'psl' if loss == 'supcon' else 'pal'}", "miner=random"]
    same = ["head.de.temperature=0.2", "head.clf.temperature=0.2", "head.clf.normalise=true"]
    made = trainer(data(TARGETS_NL), *options, *same)
    (rows, prepared), *_ = epoch(made)
    sides = vectors(made, prepared)
    found = made.step(0, prepared)["terms"]
    y_QP = torch.from_numpy(TARGETS_NL[rows][:, prepared.batch.labels_P])
    pairs = (*torch.where(y_QP), *torch.where(~y_QP))
    theirs, mean_of = {"supcon": (SupConLoss, len(rows)), "ds": (NTXentLoss, int(y_QP.sum()))}[loss]
    for name, (q_QD, z_PD) in sides.items():
        expected = float(theirs(temperature=0.2)(q_QD, indices_tuple=pairs, ref_emb=z_PD)) * mean_of / len(rows)
        assert found[f"{name}/{loss}/q2l"] == pytest.approx(expected, rel=1e-5)


# 34


@pytest.mark.parametrize(("loss", "reduction"), PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_scores_and_temperatures_stay_finite(dtype: torch.dtype, loss: str, reduction: str) -> None:
    s_QP = torch.tensor([[1e4, -1e4, 0, 1e4], [-1e4, -1e4, 1e4, -1e4], [0, 0, 1e-3, -1e4]], dtype=dtype)
    y_QP = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]]).bool()
    for answers_QP in (y_QP, ~y_QP):
        leaf_QP = s_QP.clone().requires_grad_()
        objective = xmclab.objective(loss, reduction=reduction, temperature=1e-3, symmetric=True)
        value = objective(leaf_QP, answers_QP, inverse_propensity_P=torch.tensor([1.0, 2.0, 5.0, 50.0]))
        value.backward()
        assert value.isfinite()
        assert leaf_QP.grad is not None
        if (loss, dtype) != ("squared_hinge", torch.float16):  # a slope of 1e10 is more than it can hold
            assert leaf_QP.grad.isfinite().all()


@pytest.mark.parametrize(("loss", "reduction"), [pair for pair in PAIRINGS if pair[1] != "pol"])
def test_gradients_are_the_slopes_of_the_objective(loss: str, reduction: str) -> None:
    torch.manual_seed(0)
    s_QP, y_QP = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.rand(4, 5) < 0.4
    y_QP[:, 0], ignore_QP = True, torch.eye(4, 5).roll(2, dims=1).bool()
    objective = xmclab.objective(loss, reduction=reduction, temperature=0.7, q2l_share=0.4)
    more = {"ignore_QP": ignore_QP, "inverse_propensity_P": torch.tensor([1.0, 1.5, 2.0, 4.0, 9.0])}
    assert torch.autograd.gradcheck(lambda s: objective(s, y_QP, **more), s_QP)


def test_a_run_at_a_tiny_temperature_stays_finite() -> None:
    cold = ["head.de.temperature=1e-3", "head.clf.temperature=1e-3", "miner=random"]
    for reduction in ("psl", "pal_n"):
        made = trainer(data(TARGETS_NL), "loss=ds+bce+supcon", f"reduction={reduction}", *cold, "encoder.lr=1")
        assert all(math.isfinite(record["loss"] + record["gradient_norm"]) for record in trained(made))
