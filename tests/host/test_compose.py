"""Objectives by name: what an expression is built into, and what is said about a wrong one."""

from __future__ import annotations

import doctest
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import xmclab
from xmclab.api import MultiClassLoss
from xmclab.errors import ConfigError, PluginError
from xmclab.host import compose
from xmclab.host.compose import build_objective, check_terms
from xmclab.host.registry import default_registry
from xmclab.objectives.expr import TermSpec, parse_expression
from xmclab.objectives.reductions.psl import Psl


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 7, dtype=torch.float64), torch.rand(5, 7) < 0.4


def test_terms_are_added_with_their_weights(batch):
    value = xmclab.objective("0.7*ds+0.3*bce", reduction="psl", temperature=0.05)(*batch)
    ds, bce = (xmclab.objective(loss, temperature=0.05)(*batch) for loss in ("ds", "bce"))
    torch.testing.assert_close(value, 0.7 * ds + 0.3 * bce)
    assert value.shape == ()


def test_a_loss_may_come_from_a_file(batch, tmp_path):
    file = tmp_path / "mine.py"
    hook = "import xmclab\n@xmclab.hookimpl\ndef xmclab_parts(): "
    file.write_text(hook + "return [xmclab.part('loss', 'mine', 'xmclab_losses.ds:DecoupledSoftmax')]")
    torch.testing.assert_close(xmclab.objective("mine", plugin=file)(*batch), xmclab.objective("ds")(*batch))
    with pytest.raises(ConfigError, match="mine"):
        xmclab.objective("mine")


def test_a_term_may_have_a_reduction_of_its_own(batch):
    found = xmclab.objective("pal(ds)+supcon+ova_n(bce)", reduction="psl")(*batch)
    alone = [("ds", "pal"), ("supcon", "psl"), ("bce", "ova_n")]
    torch.testing.assert_close(found, sum(xmclab.objective(loss, reduction=name)(*batch) for loss, name in alone))


def test_options_of_the_default_reduction(batch):
    s_QP, y_QP = batch
    get = default_registry().get
    objective = build_objective([TermSpec("bce")], "ova", None, 1.0, get, reduction_options={"cells": "sum"})
    torch.testing.assert_close(
        objective(s_QP, y_QP), binary_cross_entropy_with_logits(s_QP, y_QP.double(), reduction="sum")
    )


@dataclass
class OnlyPositives(MultiClassLoss):
    """Infinite away from the positives."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return torch.where(y_QP > 0, s_QP.logsumexp(dim=1, keepdim=True) - s_QP, math.inf)


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
