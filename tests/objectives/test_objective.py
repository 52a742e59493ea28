"""Objectives: built by names, summed over terms and directions, and what is said about a wrong expression."""

from __future__ import annotations

import doctest
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import xmclab
from xmclab.api import BinaryLoss, MultiClassLoss
from xmclab.errors import ConfigError, PluginError
from xmclab.host import compose
from xmclab.host.compose import build_objective, check_terms
from xmclab.host.registry import default_registry
from xmclab.objectives import engine as closed_form
from xmclab.objectives.expr import TermSpec, parse_expression
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.ova import Ova
from xmclab.objectives.reductions.psl import Psl
from xmclab.objectives.truth import Truth
from xmclab_losses.supcon import SupCon


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7) < 0.4


def test_terms_are_added_with_their_weights(batch):
    value = xmclab.objective("0.7*ds+0.3*bce", reduction="psl", temperature=0.05)(*batch)
    ds, bce = (xmclab.objective(loss, temperature=0.05)(*batch) for loss in ("ds", "bce"))
    torch.testing.assert_close(value, 0.7 * ds + 0.3 * bce)
    assert value.shape == ()


def test_a_temperature_is_the_losss_own_else_the_objectives_else_one(batch):
    s_QP, y_QP = batch
    found = xmclab.objective("supcon(temperature=0.1)+bce", temperature=0.5)(s_QP, y_QP)
    expected = xmclab.objective("supcon")(s_QP / 0.1, y_QP) + xmclab.objective("bce")(s_QP / 0.5, y_QP)
    torch.testing.assert_close(found, expected)


def test_a_loss_may_come_from_a_file(batch, tmp_path):
    file = tmp_path / "mine.py"
    hook = "import xmclab\n@xmclab.hookimpl\ndef xmclab_parts(): "
    file.write_text(hook + "return [xmclab.part('loss', 'mine', 'xmclab_losses.ds:DecoupledSoftmax')]")
    torch.testing.assert_close(xmclab.objective("mine", plugin=file)(*batch), xmclab.objective("ds")(*batch))
    with pytest.raises(ConfigError, match="mine"):
        xmclab.objective("mine")


def test_symmetric_is_the_mean_of_both_directions_and_bce_has_none(batch):
    s_QP, y_QP = batch
    ds, bce = xmclab.objective("ds"), xmclab.objective("bce")
    symmetric = xmclab.objective("ds+bce", symmetric=True)(s_QP, y_QP)
    torch.testing.assert_close(symmetric, (ds(s_QP, y_QP) + ds(s_QP.T, y_QP.T)) / 2 + bce(s_QP, y_QP))
    mixed = xmclab.objective("ds", q2l_share=0.3)(s_QP, y_QP)
    torch.testing.assert_close(mixed, 0.3 * ds(s_QP, y_QP) + 0.7 * ds(s_QP.T, y_QP.T))


def test_parts_name_every_term_and_direction_and_add_up(batch):
    objective = xmclab.objective("0.5*ds+2*bce", q2l_share=0.25)
    parts = objective.evaluate(batch[0], Truth.of_matrix(batch[1])).parts
    assert [(part.term, part.direction) for part in parts] == [("ds", "q2l"), ("ds", "l2q"), ("bce", "cells")]
    for part, factor in zip(parts, (0.5 * 0.25, 0.5 * 0.75, 2.0), strict=True):
        torch.testing.assert_close(part.weighted, factor * part.value)
    torch.testing.assert_close(sum(part.weighted for part in parts), objective(*batch))
    assert [part.direction for part in xmclab.objective("ds").evaluate(batch[0], Truth.of_matrix(batch[1])).parts] == [
        "q2l"
    ]
    assert [
        part.direction
        for part in xmclab.objective("ds", q2l_share=0.0).evaluate(batch[0], Truth.of_matrix(batch[1])).parts
    ] == ["l2q"]


def test_a_term_may_have_a_reduction_of_its_own(batch):
    found = xmclab.objective("pal(ds)+supcon+ova_n(bce)", reduction="psl")(*batch)
    alone = [("ds", "pal"), ("supcon", "psl"), ("bce", "ova_n")]
    torch.testing.assert_close(found, sum(xmclab.objective(loss, reduction=name)(*batch) for loss, name in alone))


@pytest.mark.parametrize(
    ("expression", "reduction", "needs_all"),
    [
        ("ds+bce", "psl", False),
        ("ds", "pol", False),
        ("bce", "psl", False),
        ("ds", "pal", True),
        ("ds", "pal_n", True),
        ("bce", "ova", True),
        ("ds+ova_n(bce)", "psl", True),
        ("psl(ds)+bce", "ova", True),
    ],
)
def test_needs_all_labels_if_any_term_does(expression, reduction, needs_all):
    assert xmclab.objective(expression, reduction=reduction).needs_all is needs_all


def test_options_of_the_default_reduction(batch):
    s_QP, y_QP = batch
    get = default_registry().get
    objective = build_objective([TermSpec("bce")], "ova", None, 1.0, get, reduction_options={"cells": "sum"})
    torch.testing.assert_close(
        objective(s_QP, y_QP), binary_cross_entropy_with_logits(s_QP, y_QP.double(), reduction="sum")
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("positives", [torch.bool, torch.int64, torch.float16, torch.float32, torch.float64])
def test_any_float_scores_and_any_positives(batch, dtype, positives):
    s_QP, y_QP = batch
    objective = xmclab.objective("ds+bce", symmetric=True)
    value = objective(s_QP.to(dtype), y_QP.to(positives))
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(value, objective(s_QP.to(dtype).to(value.dtype), y_QP))


@pytest.mark.parametrize("reduction", ["pol", "pal", "pal_n", "psl"])
def test_every_tensor_is_made_on_the_device_of_the_scores(reduction):
    s_QP = torch.empty(3, 4, device="meta", requires_grad=True)
    here = torch.arange(3, device="meta")
    truth = Truth((3, 4), here, here, torch.ones(3, device="meta"), here, here, 2, 2)
    for weight_P in (None, torch.empty(4, device="meta")):
        for expression in ("ds+supcon+bce", "ova_n(bce)"):
            s_QP.grad = None
            objective = xmclab.objective(expression, reduction, symmetric=True)
            objective.evaluate(s_QP, truth, weight_P).total.backward()
            assert s_QP.grad.device.type == "meta"


def test_label_weights_scale_pairs_and_not_the_number_of_anchors(batch):
    s_QP, _ = batch
    y_QP = torch.eye(5, 7, dtype=torch.bool)
    weight_P = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    rows_Q = cross_entropy(s_QP, torch.arange(5), reduction="none")
    found = xmclab.objective("supcon")(s_QP, y_QP, label_weight_P=weight_P)
    torch.testing.assert_close(found, (rows_Q * weight_P[:5]).sum() / 5)
    columns_P = cross_entropy(s_QP.T[:5], torch.arange(5), reduction="none")
    found = xmclab.objective("supcon", q2l_share=0.0)(s_QP, y_QP, label_weight_P=weight_P)
    torch.testing.assert_close(found, (columns_P * weight_P[:5]).sum() / 5)


def test_an_ignored_positive_is_no_positive(batch):
    s_QP, y_QP = batch
    ignore_QP = torch.rand(5, 7) < 0.3
    for expression in ("ds", "supcon", "bce", "ova_n(bce)"):
        objective = xmclab.objective(expression, symmetric=True)
        with_positives = objective(s_QP, y_QP | ignore_QP, ignore_QP=ignore_QP)
        assert torch.equal(with_positives, objective(s_QP, y_QP & ~ignore_QP, ignore_QP=ignore_QP))


@dataclass
class Logarithm(BinaryLoss):
    """Not finite, in value and gradient, for scores of 0 or less."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return (s_QP + 1).log()


@dataclass
class OnlyPositives(MultiClassLoss):
    """Infinite away from the positives."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return torch.where(y_QP > 0, s_QP.logsumexp(dim=1, keepdim=True) - s_QP, math.inf)


def test_ignored_cells_of_a_binary_loss_give_exactly_nothing():
    s_QP = torch.tensor([[1.0, -1.0], [-5.0, 3.0]], requires_grad=True)
    ignore_QP = torch.tensor([[False, True], [True, False]])
    value = Objective([Term("log", 1.0, Logarithm(), Ova())])(s_QP, torch.zeros(2, 2), ignore_QP=ignore_QP)
    value.backward()
    assert float(value.detach()) == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert s_QP.grad.tolist() == [[0.25, 0.0], [0.0, 0.125]]


def test_labels_of_weight_zero_give_a_binary_loss_exactly_nothing():
    s_QP = torch.tensor([[1.0, -1.0], [3.0, -1.0]], requires_grad=True)
    objective = Objective([Term("log", 1.0, Logarithm(), Ova())])
    value = objective(s_QP, torch.zeros(2, 2), label_weight_P=torch.tensor([1.0, 0.0]))
    value.backward()
    assert float(value.detach()) == pytest.approx((math.log(2) + math.log(4)) / 4)
    assert s_QP.grad.tolist() == [[0.125, 0.0], [0.0625, 0.0]]


def test_pairs_without_weight_give_exactly_nothing_even_if_infinite(batch):
    s_QP, y_QP = batch
    value = Objective([Term("mine", 1.0, OnlyPositives(), Psl())], q2l_share=0.5)(s_QP.requires_grad_(), y_QP)
    torch.testing.assert_close(value, xmclab.objective("supcon", symmetric=True)(s_QP, y_QP))
    (gradient_QP,) = torch.autograd.grad(value, s_QP)
    assert torch.isfinite(gradient_QP).all()


def test_inputs_are_left_as_they_were(batch):
    s_QP, y_QP = batch
    before = s_QP.clone(), y_QP.clone()
    xmclab.objective("ds+bce", symmetric=True)(s_QP, y_QP, ignore_QP=torch.rand(5, 7) < 0.5)
    assert torch.equal(s_QP, before[0])
    assert torch.equal(y_QP, before[1])


@pytest.mark.parametrize(
    ("scores", "positives", "more", "reason"),
    [
        (torch.zeros(3), torch.zeros(3), {}, "float matrix"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3), {}, "float matrix"),
        (torch.zeros(2, 3), torch.zeros(2, 1), {}, "positives"),
        (torch.zeros(2, 3), torch.zeros(2, 3), {"ignore_QP": torch.zeros(1, 3, dtype=torch.bool)}, "ignore"),
        (torch.zeros(2, 3), torch.zeros(2, 3), {"label_weight_P": torch.ones(2)}, "label weights"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(scores, positives, more, reason):
    with pytest.raises(ValueError, match=reason):
        xmclab.objective("ds")(scores, positives, **more)


def messages(expression: str, reduction: str = "psl") -> list[str]:
    problems = check_terms(parse_expression(expression), reduction, default_registry().get, where="loss.clf")
    return [str(problem) for problem in problems]


def test_nothing_is_said_about_a_good_expression():
    assert messages("0.7*ds+psl(supcon(temperature=0.1))+ova(bce, cells='sum')") == []
    assert messages("bce", "psl") == []


def test_a_multiclass_loss_under_a_binary_reduction_is_refused_with_the_reason():
    for expression, reduction, column in [("bce+ova(ds)", "psl", 5), ("bce+ds", "ova_n", 5)]:
        (message,) = messages(expression, reduction)
        assert message.startswith(f"loss.clf: column {column}: ")
        assert "takes binary losses" in message
        assert "'ds' is a multi-class loss" in message
        assert "psl" in message


def test_all_problems_are_found_at_once_with_suggestions():
    found = messages("ds+bcee+pssl(supcon(temprature=1))+ova(bce(temperature=-1), cell=1)")
    assert len(found) == 5
    assert found[0] == "loss.clf: column 4: unknown loss 'bcee' (did you mean 'bce'?)"
    assert found[1] == "loss.clf.supcon.temprature: unknown option 'temprature' (did you mean 'temperature'?)"
    assert found[2] == "loss.clf: column 9: unknown reduction 'pssl' (did you mean 'psl'?)"
    assert found[3].startswith("loss.clf.bce.temperature: -1 ")
    assert found[4].startswith("loss.clf.ova.cell: unknown option 'cell' (did you mean 'cells'?)")


def test_an_unknown_default_reduction_is_said_once():
    (message,) = messages("ds+supcon", "pssl")
    assert message == "reduction: unknown reduction 'pssl' (did you mean 'psl'?)"


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_set_beside_the_expression_is_checked(weight):
    (problem,) = check_terms([TermSpec("ds", weight)], "psl", default_registry().get, where="loss.de")
    assert problem.where == "loss.de.ds.weight"


def test_a_plugin_at_fault_is_its_own_error():
    def get(kind: str, name: str) -> type:
        raise PluginError("broken")

    with pytest.raises(PluginError):
        check_terms([TermSpec("ds")], "psl", get)


@pytest.mark.parametrize(
    ("arguments", "at_fault"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"q2l_share": 1.5}, "q2l_share"),
        ({"q2l_share": math.nan}, "q2l_share"),
        ({"q2l_share": 0.5, "symmetric": True}, "q2l_share"),
        ({"reduction": "ova"}, ""),
    ],
)
def test_objective_refuses_bad_arguments(arguments, at_fault):
    with pytest.raises(ConfigError) as caught:
        xmclab.objective("ds", **arguments)
    assert caught.value.problems[0].where == at_fault


def test_parts_of_anybody_take_part():
    parts = {"mine": OnlyPositives, "my_reduction": Psl}
    objective = build_objective(parse_expression("2*mine"), "my_reduction", 0.5, 1.0, lambda kind, name: parts[name])
    s_QP, y_QP = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, False]])
    assert float(objective(s_QP, y_QP)) == pytest.approx(2 * math.log1p(math.exp(-2.0)))


def test_the_example_of_the_docstring():
    assert doctest.testmod(compose).failed == 0


@dataclass
class Doubled(SupCon):
    """A subclass that replaces the pair value only."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return 2 * super().terms(s_QP, y_QP)


def test_a_subclass_with_its_own_terms_does_not_inherit_the_closed_form(batch):
    assert SupCon().has_closed_form
    assert not Doubled().has_closed_form
    doubled = Objective([Term("doubled", 1.0, Doubled(), Psl())])(*batch)
    torch.testing.assert_close(doubled, 2 * xmclab.objective("supcon")(*batch))


@dataclass
class Halved(Ova):
    def weights(self, y_QP: Tensor) -> Tensor:
        return 0.5 * super().weights(y_QP)


def test_a_binary_reduction_with_weights_of_its_own_is_heard(batch):
    bce = default_registry().get("loss", "bce")()
    halved = Objective([Term("bce", 1.0, bce, Halved())])(*batch)
    torch.testing.assert_close(halved, 0.5 * xmclab.objective("bce")(*batch))


WAYS = {
    "bounded": {},
    "any": {"MAX_EXPONENT": -1.0},
    "bounded in blocks": {"CELLS_KEPT": 0, "CELLS_OF_BLOCK": 14, "CELLS_OF_SLICE": 7},
    "any in blocks": {"MAX_EXPONENT": -1.0, "CELLS_KEPT": 0, "CELLS_OF_BLOCK": 14, "CELLS_OF_SLICE": 7},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """A way through the closed forms, whatever the size of the scores and of their matrix."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(closed_form, name, value)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("reduction", ["psl", "pol", "pal"])
def test_closed_forms_equal_autograd(batch, reduction, symmetric):
    """The same losses with their closed forms hidden, on soft targets with ignored pairs."""
    s_QP, y_QP = batch
    y_QP = y_QP * torch.rand(y_QP.shape, dtype=torch.float64)
    ignore_QP = torch.rand(y_QP.shape) < 0.2
    closed = xmclab.objective("ds+0.5*supcon(temperature=0.3)+2*bce", reduction, 0.7, symmetric=symmetric)
    hidden = [
        Term(
            t.name,
            t.weight,
            type(f"Open{t.name}", (type(t.loss),), {"terms": type(t.loss).terms})(t.loss.temperature),
            t.reduction,
        )
        for t in closed.terms
    ]
    opened = Objective(hidden, closed.temperature, closed.q2l_share)
    assert all(term.loss.has_closed_form for term in closed.terms)
    assert not any(term.loss.has_closed_form for term in opened.terms)
    for weight_P in (None, torch.rand(7, dtype=torch.float64)):
        results = []
        for objective in (closed, opened):
            scores = s_QP.clone().requires_grad_()
            torch.manual_seed(3)
            if reduction == "pol":  # draws depend on the shape of the matrix: keep one positive per row and column
                y_QP = torch.eye(5, 7, dtype=torch.float64) * 0.5
            value = objective(scores, y_QP, ignore_QP=ignore_QP, label_weight_P=weight_P)
            value.backward()
            results.append((value.detach(), scores.grad))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)


def vectors(dtype: torch.dtype, queries: int = 5, labels: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    q_QD, z_PD = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (queries, labels))
    return q_QD.to(dtype).requires_grad_(), z_PD.to(dtype).requires_grad_()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("q2l_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    "expression", ["ds", "supcon", "bce", "ds+bce", "ds+0.5*supcon(temperature=0.3)+2*bce", "mine"]
)
def test_vectors_give_what_their_scores_give(batch, expression, q2l_share, weighted):
    get = {"mine": OnlyPositives}.get
    objective = build_objective(
        parse_expression(expression),
        "psl",
        0.5,
        q2l_share,
        lambda kind, name: get(name) or default_registry().get(kind, name),
    )
    q_QD, z_PD = vectors(torch.float64)
    truth = Truth.of_matrix(batch[1] * torch.rand(5, 7), torch.rand(5, 7) < 0.2)
    weight_P = torch.rand(7) if weighted else None
    found = objective.evaluate_vectors(q_QD, z_PD, truth, weight_P)
    expected = objective.evaluate(q_QD @ z_PD.T, truth, weight_P)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-12)
    for one, other in zip(found.parts, expected.parts, strict=True):
        assert (one.term, one.direction) == (other.term, other.direction)
        torch.testing.assert_close((one.value, one.weighted), (other.value, other.weighted), rtol=1e-12, atol=1e-12)
    gradients = (torch.autograd.grad(3 * value.total, (q_QD, z_PD)) for value in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+bce"])
def test_gradients_of_single_precision_are_those_of_double(batch, expression):
    truth, objective = Truth.of_matrix(batch[1]), xmclab.objective(expression, temperature=1 / 18, symmetric=True)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        q_QD, z_PD = (normalize(x.detach(), dim=1).to(dtype).requires_grad_() for x in vectors(torch.float32))
        gradients.append(torch.autograd.grad(objective.evaluate_vectors(q_QD, z_PD, truth).total, (q_QD, z_PD)))
    for single, double in zip(*gradients, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_a_bound_that_is_told_changes_nothing(batch, bound):
    s_QP, y_QP = batch[0].clamp(-1, 1).requires_grad_(), batch[1]
    objective = xmclab.objective("ds+supcon+bce", temperature=0.05, symmetric=True)
    found = objective.evaluate(s_QP, Truth.of_matrix(y_QP), bound=bound).total
    assert found.item() == pytest.approx(objective(s_QP, y_QP).item(), rel=1e-12)


class Sizes(TorchDispatchMode):
    """Notes how many numbers each new piece of memory holds."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        self.made += [
            x.untyped_storage().nbytes() // x.element_size()
            for x in tree_leaves(out)
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in given
        ]
        return out


@pytest.mark.parametrize("bound", [1.0, 1e9])
@pytest.mark.parametrize("expression", ["ds", "supcon", "bce", "ds+bce"])
def test_one_score_matrix_is_made_and_of_a_large_one_blocks_only(monkeypatch, expression, bound):
    monkeypatch.setattr(closed_form, "CELLS_OF_SLICE", 700)
    q_QD, z_PD = vectors(torch.float32, 60, 70)
    truth = Truth.of_matrix(torch.eye(60, 70))
    objective = xmclab.objective(expression, symmetric=True)
    with Sizes() as whole:
        objective.evaluate_vectors(q_QD, z_PD, truth, bound=bound).total.backward()
    assert [size for size in whole.made if size > 700] == [61 * 70]
    monkeypatch.setattr(closed_form, "CELLS_KEPT", 4000)
    monkeypatch.setattr(closed_form, "CELLS_OF_BLOCK", 1400)
    with Sizes() as blocks:
        objective.evaluate_vectors(q_QD, z_PD, truth, bound=bound).total.backward()
    assert [size for size in blocks.made if size > 700] == [21 * 70]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_vectors_have_value_zero(shape):
    q_QD, z_PD = vectors(torch.float32, *shape)
    value = xmclab.objective("ds+bce", symmetric=True).evaluate_vectors(q_QD, z_PD, Truth.of_matrix(torch.zeros(shape)))
    value.total.backward()
    assert float(value.total.detach()) == 0.0
    assert not q_QD.grad.any()


def test_a_term_of_weight_zero_is_reported_and_adds_nothing(batch):
    s_QP, y_QP = batch
    evaluation = xmclab.objective("0*ds+bce").evaluate(s_QP.requires_grad_(), Truth.of_matrix(y_QP))
    assert float(evaluation.parts[0].value) == pytest.approx(float(xmclab.objective("ds")(s_QP.detach(), y_QP)))
    (gradient,) = torch.autograd.grad(evaluation.total, s_QP)
    (expected,) = torch.autograd.grad(xmclab.objective("bce")(s_QP, y_QP), s_QP)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_empty_matrix_has_value_zero(shape):
    s_QP = torch.zeros(shape, requires_grad=True)
    value = xmclab.objective("ds+bce", symmetric=True)(s_QP, torch.zeros(shape))
    value.backward()
    assert float(value.detach()) == 0.0


@pytest.mark.parametrize("shrink", [Tensor.mean, lambda x: x.mean(dim=1), lambda x: x.mean(dim=1, keepdim=True)])
def test_a_loss_that_averages_by_itself_is_refused(batch, shrink):
    @dataclass
    class Averaged(MultiClassLoss):
        def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
            return shrink(s_QP)

    with pytest.raises(PluginError, match="leave sums and averages to the reduction") as caught:
        Objective([Term("mine", 1.0, Averaged(), Psl())])(*batch)
    assert caught.value.exit_code == 4
    assert "'mine'" in str(caught.value)
