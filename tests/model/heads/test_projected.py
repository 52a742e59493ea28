"""Temperature, bias and search of the built-in heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

import xmclab
from xmclab.api import Head
from xmclab.errors import ConfigError
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.heads.projected import projection
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth

N, L, WIDTH, DIM, T = 8, 5, 6, 4, 0.2
COUNTS = [4, 2, 1, 1, 0]
TARGETS_NL = sp.csr_array(np.array([[n < count for count in COUNTS] for n in range(N)], dtype=np.float32))
IDS = torch.arange(L)

HEADS = pytest.mark.parametrize("kind", [DualEncoder, Classifier])


def make(kind: type[Head], **options: Any) -> Head:
    torch.manual_seed(0)
    if kind is Classifier:
        options = {"normalise": True, "row_dropout": 0.0, **options}
    head = kind(**{"dim": DIM, "dropout": 0.0, "temperature": T, **options})  # type: ignore[call-arg]
    head.build(WIDTH, L)
    head.count(TARGETS_NL)
    return head


@HEADS
@pytest.mark.parametrize("options", [{}, {"bias": "label"}, {"popularity": 0.1}])
def test_without_a_width_of_its_own_a_head_is_as_wide_as_the_encoder(kind: type[Head], options: Any) -> None:
    found, expected = (make(kind, dim=dim, **options) for dim in (0, WIDTH))
    found.load_state_dict(expected.state_dict())
    x_ND, x_LD = inputs()
    with torch.no_grad():
        assert torch.equal(found.search_queries(x_ND), expected.search_queries(x_ND))
        assert torch.equal(found.search_labels(x_LD, IDS), expected.search_labels(x_LD, IDS))
    assert found.search_queries(x_ND).shape == (N, WIDTH)


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(N, WIDTH), torch.randn(L, WIDTH)


def log_odds(count: float) -> float:
    share = (count + 0.5) / (N + 1)
    return math.log(share / (1 - share))


@HEADS
@pytest.mark.parametrize("bias", ["mean", "label"])
def test_a_bias_starts_at_the_log_odds_of_a_label(kind: type[Head], bias: str) -> None:
    head, plain, (x_ND, x_LD) = make(kind, bias=bias), make(kind), inputs()
    logits = head.queries(x_ND) @ head.labels(x_LD, IDS).T / T
    without = plain.queries(x_ND) @ plain.labels(x_LD, IDS).T / T
    counts = [np.mean(COUNTS)] * L if bias == "mean" else COUNTS
    expected = torch.tensor([log_odds(count) for count in counts])
    torch.testing.assert_close(logits - without, expected.expand(N, L))


@HEADS
@pytest.mark.parametrize("reduction", ["ova", "pal_n"])
def test_with_a_bias_a_binary_loss_starts_near_the_entropy_of_the_labels(kind: type[Head], reduction: str) -> None:
    """With orthogonal vectors the bias alone is left; the entropy of shares that are smoothed a little."""
    head = make(kind, bias="label")
    z_LD = head.labels(inputs()[1], IDS).detach()
    q_ND = F.pad(torch.zeros(N, DIM), (0, 1), value=1.0)
    truth = Truth.of_matrix(torch.from_numpy(TARGETS_NL.toarray()))
    value = evaluate_vectors(xmclab.objective("bce", reduction, T), q_ND, z_LD, truth).total
    share = np.array(COUNTS) / N
    entropy = -sum(s * math.log(s) + (1 - s) * math.log(1 - s) for s in share if 0 < s < 1)
    assert entropy < float(value) * L < entropy + 0.1
    unbiased = evaluate_vectors(xmclab.objective("bce", reduction, T), 0 * q_ND, z_LD, truth).total
    assert float(unbiased) * L == pytest.approx(L * math.log(2))


@HEADS
@pytest.mark.parametrize("expression", ["ds", "bce", "supcon", "ds+bce", "focal", "triplet"])
def test_values_and_gradients_are_those_of_scores_with_a_bias(kind: type[Head], expression: str) -> None:
    """In both directions, closed form or not: the vectors against a matrix to which the bias was added."""
    objective = xmclab.objective(expression, "psl", T, symmetric=True)
    truth = Truth.of_matrix(torch.from_numpy(TARGETS_NL.toarray()))
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for apart in (False, True):
        head, (x_ND, x_LD) = make(kind, bias="label", learn_temperature=True), inputs()
        q_ND, z_LD = head.queries(x_ND), head.labels(x_LD, IDS)
        if apart:
            value = objective.evaluate(q_ND[:, :-1] @ z_LD[:, :-1].T + z_LD[:, -1], truth).total
        else:
            value = evaluate_vectors(objective, q_ND, z_LD, truth, bound=head.score_bound).total
        value.backward()  # type: ignore[no-untyped-call]
        gradients = {name: p.grad for name, p in head.named_parameters() if p.grad is not None}
        found.append((value, {name: g.to_dense() for name, g in gradients.items()}))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert "log_factor" in found[0][1]
    for name, gradient in found[1][1].items():
        torch.testing.assert_close(found[0][1][name], gradient, rtol=1e-4, atol=1e-6)


@HEADS
@pytest.mark.parametrize("bias", ["none", "label"])
@pytest.mark.parametrize("popularity", [0.0, 0.05])
def test_searches_add_the_bias_and_the_popularity(kind: type[Head], bias: str, popularity: float) -> None:
    head, (x_ND, x_LD) = make(kind, bias=bias, popularity=popularity, learn_temperature=bias == "label"), inputs()
    with torch.no_grad():
        q_ND, z_LD = head.search_queries(x_ND), head.search_labels(x_LD, IDS)
        trained = head.queries(x_ND) @ head.labels(x_LD, IDS).T
    assert q_ND.shape == (N, DIM)
    assert z_LD.shape == (L, DIM + (bias != "none" or popularity > 0))
    scores = q_ND @ z_LD[:, :DIM].T + (z_LD[:, DIM] if z_LD.shape[1] > DIM else 0)
    torch.testing.assert_close(scores, trained + popularity * torch.tensor(COUNTS).log1p())


@pytest.mark.parametrize(
    ("bias", "option", "unit"), [("none", None, True), ("label", None, False), ("label", True, True)]
)
def test_inner_products_are_searched_at_unit_length_unless_there_is_a_bias(
    bias: str, option: bool | None, unit: bool
) -> None:
    head = make(Classifier, normalise=False, bias=bias, normalise_at_search=option)
    with torch.no_grad():
        q_ND, z_LD = head.search_queries(inputs()[0]), head.search_labels(None, IDS)
    assert torch.allclose(q_ND.norm(dim=1), torch.ones(N)) == unit
    assert torch.allclose(z_LD[:, :DIM].norm(dim=1), torch.ones(L)) == unit
    if bias == "label":
        torch.testing.assert_close(z_LD[:, DIM] / T, torch.tensor([log_odds(count) for count in COUNTS]))


def test_plain_inner_products_can_be_searched() -> None:
    head = make(Classifier, normalise=False, normalise_at_search=False)
    with torch.no_grad():
        assert torch.equal(head.search_queries(inputs()[0]), head.queries(inputs()[0]))


def test_new_labels_have_the_bias_of_a_label_without_queries() -> None:
    head, x_LD = make(DualEncoder, bias="label", popularity=0.1), inputs()[1]
    with torch.no_grad():
        old, new = head.search_labels(x_LD, IDS), head.search_labels(x_LD, IDS + L)
    torch.testing.assert_close(new[:, :DIM], old[:, :DIM])
    torch.testing.assert_close(new[:, DIM] / T, torch.full((L,), log_odds(0)))


@HEADS
def test_scores_stay_within_the_bound_however_far_training_went(kind: type[Head]) -> None:
    head, (x_ND, x_LD) = make(kind, bias="label", learn_temperature=True), inputs()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter *= 1e3
        head.get_parameter("log_factor").fill_(9.0)
        scores = head.queries(x_ND) @ head.labels(x_LD, IDS).T
    assert float(scores.abs().max()) <= head.score_bound == pytest.approx(4 + 20 * T)


def test_a_fixed_prior_gets_no_gradient() -> None:
    head, (x_ND, x_LD) = make(DualEncoder, bias="prior"), inputs()
    (head.queries(x_ND) @ head.labels(x_LD, IDS).T).sum().backward()  # type: ignore[no-untyped-call]
    assert head.get_parameter("offset.weight").grad is None
    assert head.get_parameter("g1.0.weight").grad is not None


@HEADS
def test_a_folder_of_another_library_cannot_hold_a_bias(kind: type[Head]) -> None:
    assert make(kind).query_projection() is not None
    assert make(kind, bias="label").query_projection() is None


@HEADS
@pytest.mark.parametrize(
    ("options", "is_projection"),
    [
        ({"learn_temperature": True}, True),  # at unit length, a factor is lost
        ({"learn_temperature": True, "normalise": False, "normalise_at_search": False}, False),
        ({"normalise": True, "normalise_at_search": False}, False),
        ({"normalise": False, "normalise_at_search": False}, True),
    ],
)
def test_a_projection_is_all_that_searched_queries_are_but_for_unit_length(
    kind: type[Head], options: dict[str, bool], is_projection: bool
) -> None:
    head, (x_ND, _) = make(kind, **options), inputs()
    for tensor in head.parameters():
        torch.nn.init.normal_(tensor)
    head.eval()
    projection = head.query_projection()
    assert (projection is not None) == is_projection
    if projection:
        q_ND = projection[0](x_ND)
        q_ND = q_ND.tanh() if projection[1] == "tanh" else q_ND
        q_ND = torch.nn.functional.normalize(q_ND) if head.searched_at_unit_length else q_ND
        torch.testing.assert_close(head.search_queries(x_ND), q_ND.float(), rtol=1e-5, atol=1e-6)


@HEADS
def test_without_a_projection_vectors_are_those_of_the_encoder(kind: type[Head]) -> None:
    options = {"activation": "none"} if kind is DualEncoder else {}
    head, (x_ND, _) = make(kind, projection="none", dim=0, normalise=False, **options), inputs()
    assert torch.equal(head.queries(x_ND), x_ND)
    projection = head.query_projection()
    assert projection is not None
    assert torch.equal(projection[0](x_ND), x_ND)


@HEADS
def test_a_residual_projection_adds_a_rectified_linear_map(kind: type[Head]) -> None:
    options = {"activation": "none"} if kind is DualEncoder else {}
    head, (x_ND, _) = make(kind, projection="residual", dim=WIDTH, init="normal", normalise=False, **options), inputs()
    weight, bias = (p for name, p in head.named_parameters() if ".linear." in name)
    expected_ND = x_ND.clone()
    for n in range(N):
        for d in range(WIDTH):
            expected_ND[n, d] += max(0.0, float(x_ND[n] @ weight[d]) + float(bias[d]))
    torch.testing.assert_close(head.queries(x_ND), expected_ND)
    assert head.query_projection() is None


@pytest.mark.parametrize("projection", ["none", "residual"])
def test_what_keeps_the_width_of_the_encoder_takes_no_other(projection: str) -> None:
    with pytest.raises(ConfigError, match=rf"dim=4: projection={projection} keeps the width of the encoder, 6"):
        make(DualEncoder, projection=projection)


def test_initial_maps_are_those_that_were_published() -> None:
    def weight_and_bias(init: str) -> tuple[Tensor, Tensor]:
        weight, bias = projection(300, 200, "linear", init).parameters()  # type: ignore[arg-type]
        return weight, bias

    weight, bias = weight_and_bias("xavier")
    bound = math.sqrt(6 / 500)
    assert 0.99 * bound < float(weight.abs().max()) <= bound
    assert not bias.any()
    weight, bias = weight_and_bias("normal")
    assert float(weight.std()) == pytest.approx(0.02, rel=0.02)
    assert not bias.any()
    weight, bias = weight_and_bias("default")
    assert 0.99 < float(weight.abs().max()) * math.sqrt(300) <= 1
    assert bias.any()
