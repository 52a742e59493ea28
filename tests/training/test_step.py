"""One step: the gradient does not depend on how texts are chunked, and each text is encoded once for both heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xmclab
from xmclab.keys import Keys
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.model import Model
from xmclab.objectives.truth import Truth
from xmclab.training.step import DeviceBatch, HeadTerm, forward_backward

QUERIES = ["alpha beta", "gamma", "delta epsilon zeta", "eta", "theta iota"]
LABELS = ["alpha", "beta gamma", "delta", "zeta eta", "kappa", "lambda mu", "nu"]


def make_model(encoder: Any) -> Model:
    torch.manual_seed(1)
    heads = {"de": DualEncoder(dim=6), "clf": Classifier(dim=5)}
    return Model(encoder, heads, len(LABELS)).double()


def make_terms() -> dict[str, HeadTerm]:
    return {
        "de": HeadTerm(xmclab.objective("ds", temperature=0.2, symmetric=True), 0.3),
        "clf": HeadTerm(xmclab.objective("ds+0.5*bce", temperature=0.5, symmetric=True), 0.7),
    }


def make_batch(model: Model, chunk: int) -> DeviceBatch:
    encoder = model.encoder

    def chunks(texts: list[str]) -> list[Any]:
        tokens = encoder.tokenise(texts)
        rows = np.arange(len(texts))
        return [encoder.collate(tokens.take(rows[i : i + chunk])) for i in range(0, len(rows), chunk)]

    y_QP = (torch.rand(len(QUERIES), len(LABELS), generator=torch.Generator().manual_seed(3)) < 0.3).double()
    return DeviceBatch(chunks(QUERIES), chunks(LABELS), torch.arange(len(LABELS)), Truth.of_matrix(y_QP), None)


def gradients(model: Model) -> dict[str, torch.Tensor]:
    return {
        name: (parameter.grad.to_dense() if parameter.grad is not None else torch.zeros_like(parameter))
        for name, parameter in model.named_parameters()
    }


def run(letters: Any, chunk: int, dropout: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    letters.mix[2].p = dropout
    model = make_model(letters)
    model.zero_grad()
    loss, _ = forward_backward(model, make_batch(model, chunk), make_terms(), lambda p, c: Keys(0).seed_for(p, c))
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
    batch, terms = make_batch(model, 2), make_terms()

    def loss() -> float:
        model.zero_grad()
        return forward_backward(model, batch, terms, lambda p, c: Keys(0).seed_for(p, c))[0].item()

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
    forward_backward(model, make_batch(model, 100), make_terms(), lambda p, c: 0)
    assert seen == [len(QUERIES), len(LABELS)]


def test_only_one_graph_waits_for_the_loss_and_its_chunk_is_not_encoded_again(letters: Any) -> None:
    model = make_model(letters)
    seen: list[tuple[int, bool]] = []
    letters.register_forward_hook(lambda module, args, output: seen.append((len(output), output.requires_grad)))
    forward_backward(model, make_batch(model, 3), make_terms(), lambda p, c: 0)
    first_pass = [(3, False), (2, False), (3, False), (3, False), (1, True)]
    replay = [(3, True), (3, True), (2, True), (3, True)]
    assert seen == first_pass + replay


def test_the_total_is_the_weighted_sum_of_the_heads(letters: Any) -> None:
    model = make_model(letters).eval()
    batch, terms = make_batch(model, 100), make_terms()
    total, values = forward_backward(model, batch, terms, lambda p, c: 0)
    assert list(values) == ["de/ds/q2l", "de/ds/l2q", "clf/ds/q2l", "clf/ds/l2q", "clf/bce/cells"]
    expected = 0.3 * 0.5 * (values["de/ds/q2l"] + values["de/ds/l2q"])
    expected += 0.7 * (0.5 * (values["clf/ds/q2l"] + values["clf/ds/l2q"]) + 0.5 * values["clf/bce/cells"])
    torch.testing.assert_close(total.double(), expected)


def test_the_step_reads_label_rows_of_the_pool_only(letters: Any) -> None:
    model = make_model(letters)
    batch = make_batch(model, 100)
    few = DeviceBatch(
        batch.query_chunks,
        [],
        torch.tensor([1, 4]),
        Truth.of_matrix(batch.truth.matrix(torch.float64)[:, [1, 4]]),
        None,
    )
    forward_backward(model, few, {"clf": make_terms()["clf"]}, lambda p, c: 0)
    gradient = model.head("clf").psi.weight.grad.coalesce()
    assert gradient.indices().tolist() == [[1, 4]]
