"""The trainer: a step on one device, its gradient free of chunks, and never an update from a number not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xmclab
from xmclab.api import Batch, View
from xmclab.data import open_data
from xmclab.errors import DivergedError
from xmclab.kernels import dispatch
from xmclab.keys import Keys
from xmclab.model.device import Precision
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.model import Model
from xmclab.objectives.truth import Truth
from xmclab.plan.pool import build_batch
from xmclab.training.batches import Chunk, Prepared
from xmclab.training.state import state_of
from xmclab.training.trainer import Trainer


def one_step(made: Trainer, step: int = 0) -> float:
    return made.step(step, made.prepare(step, made.rows_N[:64]))["loss"]


@pytest.mark.parametrize(
    "parts",
    [
        ["sampler=random", "miner=none"],
        ["sampler=cluster", "miner=ann", "pool.cap=300"],
        ["encode.chunk=40"],
        ["reduction=pal_n", "objective.label_weights=propensity"],
        ["reduction=pol", "loss.clf=supcon+bce", "head.clf.table=adagrad"],
    ],
)
def test_a_step_leaves_no_tensor_behind_on_the_cpu(
    parts: list[str], small_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the `meta` device any operation that mixes in a tensor of the CPU raises."""
    monkeypatch.setattr("xmclab.training.trainer.pick_device", torch.device)  # users cannot choose it
    made = small_trainer("device=meta", *parts)
    loss, values = made.backward(0, made.prepare(0, made.rows_N[:64]))
    norm = made.optimizers.clip()
    made.optimizers.step()
    assert {tensor.device.type for tensor in (loss, norm, *values.values(), *made.model.parameters())} == {"meta"}


def test_the_meta_device_would_notice(small_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.training.trainer.pick_device", torch.device)
    made = small_trainer("device=meta")
    prepared = made.prepare(0, made.rows_N[:64])
    tokens = prepared.queries[0].tokens
    tokens["features_U"] = torch.zeros(tokens["features_U"].shape, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        made.step(0, prepared)


def test_chunks_do_not_change_a_step(small_trainer: Callable[..., Any]) -> None:
    whole, chunked = (
        small_trainer("head.de.dropout=0", "head.clf.dropout=0"),
        small_trainer("head.de.dropout=0", "head.clf.dropout=0", "encode.chunk=7"),
    )
    assert one_step(chunked) == pytest.approx(one_step(whole), rel=1e-6)
    for a, b in zip(whole.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_training_lowers_the_loss(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    first = one_step(made)
    for step in range(1, 15):
        last = one_step(made, step)
    assert last < first


def test_a_number_that_is_not_finite_stops_before_the_update(tmp_path: Path, small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    with torch.no_grad():
        made.model.head("clf").g2[0].weight[0, 0] = math.nan
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with pytest.raises(DivergedError, match=r"step 7.*clf/ds/q2l") as caught:
        one_step(made, step=7)
    after = made.model.state_dict()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)
    assert caught.value.details["step"] == 7
    assert caught.value.exit_code == 5


def test_a_query_without_labels_is_never_in_a_plan(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    assert np.diff(made.targets_NL.indptr)[made.rows_N].min() > 0


def test_the_objective_knows_what_each_query_drew(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("reduction=pol", "pool.beta=1")
    prepared = made.prepare(0, made.rows_N[:64])
    truth = prepared.truth
    assert torch.equal(truth.row_E[truth.drawn_E], torch.arange(64))
    assert len(truth.row_E) > 64
    forgetful = replace(prepared, truth=replace(truth, drawn_E=None))
    losses = [made.backward(0, batch)[0] for batch in (prepared, prepared, forgetful)]
    assert losses[0] == losses[1] != losses[2]
    assert small_trainer("reduction=pol", "reduction.clf=pal_n").prepare(0, made.rows_N[:64]).truth.drawn_E is None


def test_the_pool_follows_its_settings(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("pool.beta=2", "pool.cap=120", "pool.replacement=true", "pool.gap=60", "miner=random")
    rows = made.rows_N[:64]
    mined_QE = made.miner.sample(rows, made.eta, made.exclude_NL, made.keys.rng("negatives", 3))
    rng = made.keys.rng("pool", 3)
    expected = build_batch(rows, made.targets_NL, made.filter_NL, mined_QE, 2, 120, rng, replacement=True, gap=60)
    batch = made.prepare(3, rows).batch
    assert np.array_equal(batch.labels_P, expected.labels_P)
    assert np.array_equal(batch.drawn_E, expected.drawn_E)
    for other in ("pool.replacement=false", "pool.gap=0"):
        settings = ("pool.beta=2", "pool.cap=120", "pool.replacement=true", "pool.gap=60", "miner=random", other)
        labels_P = small_trainer(*settings).prepare(3, rows).batch.labels_P
        assert not np.array_equal(labels_P, expected.labels_P)


def test_compile_compiles_the_encoder(monkeypatch: pytest.MonkeyPatch, small_trainer: Callable[..., Any]) -> None:
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__))
    small_trainer("compile=on")
    assert compiled == ["Bag"]


@pytest.mark.parametrize("on", [True, False])
def test_compile_compiles_the_passes_over_scores(
    monkeypatch: pytest.MonkeyPatch, on: bool, small_trainer: Callable[..., Any]
) -> None:
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)
    compiled: list[str] = []  # and not run, as that needs a compiler
    monkeypatch.setattr(dispatch, "_compiled", lambda plain: compiled.append(plain.__name__) or plain)
    made = small_trainer(f"compile={on}", "loss.clf=ds")
    made.step(0, made.prepare(0, made.rows_N[:64]))
    assert compiled == (["log_sums", "weigh_"] * 2 if on else [])


def test_a_refresh_looks_with_one_head_only(monkeypatch: pytest.MonkeyPatch, small_trainer: Callable[..., Any]) -> None:
    made = small_trainer("miner=ann")
    monkeypatch.setattr(type(made.model.head("clf")), "labels", lambda *_: pytest.fail("the whole table was read"))
    assert made.refresh(1)["refreshed"] == "negatives", "batches are random"
    assert made.view is not None
    assert made.view.labels_LD.shape == (made.data.num_labels, 16)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [(["miner=none"], "clusters"), (["miner=random"], "clusters"), (["miner=ann"], "clusters and negatives")],
)
def test_a_refresh_says_what_is_new(overrides: list[str], expected: str, small_trainer: Callable[..., Any]) -> None:
    assert small_trainer("sampler=cluster", *overrides).refresh(1)["refreshed"] == expected


@pytest.mark.parametrize(
    ("sampler", "batch", "freed"),
    [("random", 0, "refresh"), ("cluster", 0, "plan"), ("cluster", 3, "refresh")],
)
def test_a_view_is_on_the_device_until_it_was_mined_and_planned_with(
    sampler: str, batch: int, freed: str, monkeypatch: pytest.MonkeyPatch, small_trainer: Callable[..., Any]
) -> None:
    made = small_trainer("miner=ann", "pool.eta=2", f"sampler={sampler}")
    order: list[str] = []
    for owner, name in ((made.miner, "refresh"), (made.sampler, "plan")):
        word, method = name, getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, word=word, method=method: order.append(word) or method(*args))
    monkeypatch.setattr(View, "to_host", lambda view: order.append("to_host") or view)
    made.refresh(1, batch)
    assert order == (["refresh", "to_host"] if freed == "refresh" else ["refresh"])
    made.plan(1)
    assert order[-2:] == ["plan", "to_host"]


QUERIES = ["alpha beta", "gamma", "delta epsilon zeta", "eta", "theta iota"]
LABELS = ["alpha", "beta gamma", "delta", "zeta eta", "kappa", "lambda mu", "nu"]


def make_model(encoder: Any) -> Model:
    torch.manual_seed(1)
    heads = {"de": DualEncoder(dim=6), "clf": Classifier(dim=5)}
    return Model(encoder, heads, len(LABELS)).double()


class Bare(Trainer):
    """A trainer of a given model, without data or optimizers."""

    def __init__(self, model: Model, heads: Sequence[str] = ("de", "clf")) -> None:
        self.model, self.streaming, self.part, self.precision = (
            model,
            set(),
            nullcontext,
            Precision(torch.device("cpu")),
        )
        objectives = {
            "de": replace(xmclab.objective("ds", temperature=0.2, symmetric=True), share=0.3),
            "clf": replace(xmclab.objective("ds+0.5*bce", temperature=0.5, symmetric=True), share=0.7),
        }
        self.objectives = {name: objectives[name] for name in heads}


def make_batch(model: Model, chunk: int, seed: int = 0) -> Prepared:
    encoder = model.encoder

    def chunks(side: str, texts: list[str]) -> list[Chunk]:
        tokens = encoder.tokenise(texts)
        parts = [tokens.take(np.arange(len(texts))[start : start + chunk]) for start in range(0, len(texts), chunk)]
        return [Chunk(encoder.collate(part), Keys(seed).seed_for(side, n)) for n, part in enumerate(parts)]

    y_QP = (torch.rand(len(QUERIES), len(LABELS), generator=torch.Generator().manual_seed(3)) < 0.3).double()
    none = np.zeros(0, np.int64)
    batch = Batch(none, none, (none, none, none.astype(np.float32)), (none, none))
    sides = chunks("query", QUERIES), chunks("label", LABELS)
    return Prepared(batch, *sides, torch.arange(len(LABELS)), Truth.of_matrix(y_QP), None, seed)


def gradients(model: Model) -> dict[str, torch.Tensor]:
    return {
        name: (parameter.grad.to_dense() if parameter.grad is not None else torch.zeros_like(parameter))
        for name, parameter in model.named_parameters()
    }


def run(letters: Any, chunk: int, dropout: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    letters.mix[2].p = dropout
    model = make_model(letters)
    model.zero_grad()
    loss, _ = Bare(model).backward(0, make_batch(model, chunk))
    return loss, gradients(model)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_change_the_gradient(letters: Any, chunk: int) -> None:
    loss, expected = run(letters, 100, dropout=0.0)
    chunked_loss, found = run(letters, chunk, dropout=0.0)
    torch.testing.assert_close(chunked_loss, loss, rtol=1e-12, atol=1e-12)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-12)


def test_replayed_chunks_drop_the_same_units(letters: Any) -> None:
    """With dropout, the replayed gradient is the derivative of the value that was computed."""
    letters.mix[2].p = 0.3
    model = make_model(letters)
    batch = make_batch(model, 2)

    def loss() -> float:
        model.zero_grad()
        return Bare(model).backward(0, batch)[0].item()

    loss()
    weight = model.encoder.mix[0].weight
    analytic = weight.grad[2, 3].item()
    weight.data[2, 3] += 1e-6
    above = loss()
    weight.data[2, 3] -= 2e-6
    below = loss()
    assert analytic == pytest.approx((above - below) / 2e-6, rel=1e-5)
    assert abs(analytic) > 1e-6


def test_each_text_is_encoded_once_for_both_heads(letters: Any) -> None:
    model = make_model(letters)
    seen: list[int] = []
    letters.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    Bare(model).backward(0, make_batch(model, 100))
    assert seen == [len(QUERIES), len(LABELS)]


def test_only_one_graph_waits_for_the_loss_and_its_chunk_is_not_encoded_again(letters: Any) -> None:
    model = make_model(letters)
    seen: list[tuple[int, bool]] = []
    letters.register_forward_hook(lambda module, args, output: seen.append((len(output), output.requires_grad)))
    Bare(model).backward(0, make_batch(model, 3))
    first_pass = [(3, False), (2, False), (3, False), (3, False), (1, True)]
    replay = [(3, True), (3, True), (2, True), (3, True)]
    assert seen == first_pass + replay


def test_the_total_is_the_weighted_sum_of_the_heads(letters: Any) -> None:
    model = make_model(letters).eval()
    total, values = Bare(model).backward(0, make_batch(model, 100))
    assert list(values) == ["de/ds/q2l", "de/ds/l2q", "clf/ds/q2l", "clf/ds/l2q", "clf/bce/cells"]
    expected = 0.3 * 0.5 * (values["de/ds/q2l"] + values["de/ds/l2q"])
    expected += 0.7 * (0.5 * (values["clf/ds/q2l"] + values["clf/ds/l2q"]) + 0.5 * values["clf/bce/cells"])
    torch.testing.assert_close(total.double(), expected)


def test_the_step_reads_label_rows_of_the_pool_only(letters: Any) -> None:
    model = make_model(letters)
    batch = make_batch(model, 100)
    two = Truth.of_matrix(batch.truth.matrix(torch.float64)[:, [1, 4]])
    Bare(model, ["clf"]).backward(0, replace(batch, labels=[], labels_P=torch.tensor([1, 4]), truth=two))
    ids_P, _ = model.head("clf").psi.gradient()
    assert ids_P.tolist() == [1, 4]


@pytest.mark.parametrize("overrides", [("pool.beta=1", "miner=none", "pool.eta=0"), ("reduction=pal_n", "loss=ds")])
def test_a_step_says_for_how_many_queries_all_positives_are_in_the_pool(
    overrides: tuple[str, ...], small_config: Callable[..., Any]
) -> None:
    """Against a loop over the queries of the batch, by the band of their labels."""
    config = small_config(*overrides)
    trainer = Trainer(config, open_data(config))
    prepared = trainer.prepare(0, trainer.plan(0)[0])
    targets, pool = trainer.targets_NL, set(prepared.batch.labels_P.tolist())
    frequency_L = np.bincount(targets.indices, minlength=targets.shape[1])
    shares: dict[str, list[bool]] = {"head": [], "torso": [], "tail": []}
    for row in prepared.batch.rows_Q.tolist():
        labels = targets.indices[targets.indptr[row] : targets.indptr[row + 1]].tolist()
        bands = {"head" if frequency_L[x] > 100 else "torso" if frequency_L[x] > 10 else "tail" for x in labels}
        for band in bands:
            shares[band].append(pool.issuperset(labels))
    expected = {band: float(np.mean(some)) for band, some in shares.items() if some}
    assert trainer.step(0, prepared)["complete"] == pytest.approx(expected)
    assert all(share == 1 for share in expected.values()) == ("loss=ds" in overrides)


RULES = [
    ["head.clf.table=adamw", "optim.decay=0.1"],
    ["head.clf.table=adagrad", "encoder.table=sgd"],
    ["head.clf.table=momentum", "head.clf.table_dtype=bfloat16"],
    ["head.clf.table=dense_adamw", "encode.chunk=13"],
    ["reduction.clf=pal_n", "loss.clf=ds", "optim.clip=0"],
    ["reduction.clf=pal_n", "loss.clf=ds", "optim.clip=0.1", "head.clf.table=adagrad", "freeze=encoder"],
]


def state(made: Trainer) -> dict[str, torch.Tensor]:
    """A copy of all that training changes."""
    found = state_of(made)
    tensors = dict(found.dense) | {f"{t}.{kind}": x for t, rows in found.tables.items() for kind, x in rows.items()}
    rates = [group["lr"] for optimizer in made.optimizers._all for group in optimizer.param_groups]
    numbers = [float(x) for table in found.numbers["tables"].values() for x in table.values()]
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return copies | {"host": torch.tensor([made.optimizers.updates, *rates, *numbers], dtype=torch.float64)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_a_step_that_is_read_late_is_the_same(rule: list[str], small_trainer: Callable[..., Trainer]) -> None:
    records, states = [], []
    for late in (False, True):
        made = small_trainer(*rule)
        made.late = late
        launched = [made.launch(n, made.prepare(n, made.rows_N[n * 32 :][:32])) for n in range(4)]
        records.append([made.finish(step) for step in launched])
        states.append(state(made))
    for on_time, late_ in zip(*records, strict=True):
        assert late_["loss"] == pytest.approx(on_time["loss"], rel=1e-5)
        assert late_["gradient_norm"] == pytest.approx(on_time["gradient_norm"], rel=1e-5)
        assert late_["terms"] == pytest.approx(on_time["terms"], rel=1e-5)
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
@pytest.mark.parametrize("wrong", ["encoder vectors", "gradient"])
def test_nothing_moves_from_the_first_number_on_that_is_not_finite(
    rule: list[str], wrong: str, small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the next step has begun before anybody looks."""
    if wrong == "gradient" and "optim.clip=0" in rule:
        pytest.skip("blocks of a table move before the gradient of the encoder is known")
    made = small_trainer(*rule)
    made.late = True
    for step in range(2):
        made.finish(made.launch(step, made.prepare(step, made.rows_N[step * 32 :][:32])))
    before, backward = state(made), made.backward

    def failing(step: int, prepared: Prepared) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = backward(step, prepared)
        if step == 2:
            for table in made.model.tables():
                for _, g_PD in table._gradients:
                    g_PD[0, 0] = torch.inf
            for parameter in made.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(torch.nan)
        return found

    if wrong == "gradient":
        monkeypatch.setattr(made, "backward", failing)
    else:
        encoded = made.encoded

        def broken(prepared: Prepared) -> Any:
            sides = encoded(prepared)
            if prepared.batch.rows_Q[0] == made.rows_N[64]:
                sides[0].x_BD.data[0] = torch.nan
            return sides

        monkeypatch.setattr(made, "encoded", broken)
    third, fourth = (made.launch(n, made.prepare(n, made.rows_N[n * 32 :][:32])) for n in (2, 3))
    with pytest.raises(DivergedError, match="step 2"):
        made.finish(third)
    assert all(math.isfinite(value) for value in fourth.values().values())
    after = state(made)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
