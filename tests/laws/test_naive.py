"""Every loss under every reduction equals the loops of conftest.py, whatever the targets, ignored pairs and weights."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xmclab
from xmclab.host.registry import default_registry
from xmclab.objectives import Objective, Psl, Term
from xmclab.objectives.reductions.pol import Pol

pytestmark = pytest.mark.usefixtures("way")
PAIRINGS = [(loss, reduction) for loss in ("ds", "supcon", "softmax") for reduction in ("pal", "pal_n", "psl")] + [
    ("bce", reduction) for reduction in ("ova", "ova_n", "pal", "psl", "pol")
]
each_pairing = pytest.mark.parametrize(("loss", "reduction"), PAIRINGS)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@each_pairing
@few
@given(seed=st.integers(0, 10_000), soft=st.booleans(), ignoring=st.booleans(), weighing=st.booleans())
def test_query_to_label(loss, reduction, naive, problem, seed, soft, ignoring, weighing):
    p = problem(seed, soft)
    ignore_QP = p.ignore_QP if ignoring else None
    label_weight_P = p.label_weight_P if weighing else None
    found = xmclab.objective(loss, reduction=reduction, temperature=0.7)(
        p.s_QP, p.y_QP, ignore_QP=ignore_QP, label_weight_P=label_weight_P
    )
    expected = naive(loss, reduction, p.s_QP / 0.7, p.y_QP, ignore_QP, label_weight_P)
    assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("loss", "reduction"), [pair for pair in PAIRINGS if pair[0] != "bce"])
@few
@given(seed=st.integers(0, 10_000), soft=st.booleans())
def test_label_to_query(loss, reduction, naive, problem, seed, soft):
    p = problem(seed, soft)
    found = xmclab.objective(loss, reduction=reduction, q2l_share=0.0)(
        p.s_QP, p.y_QP, ignore_QP=p.ignore_QP, label_weight_P=p.label_weight_P
    )
    expected = naive(loss, reduction, p.s_QP.T, p.y_QP.T, p.ignore_QP.T, p.label_weight_P, labels_are_rows=True)
    assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)


@dataclass
class SomeDrawn(Psl):
    """The mean over the positives that were drawn."""

    among = "drawn"


@pytest.mark.parametrize("loss", ["ds", "supcon"])
@pytest.mark.parametrize("anchors", ["queries", "labels"])
@pytest.mark.parametrize("closed", [True, False])
@few
@given(seed=st.integers(0, 10_000), soft=st.booleans(), ignoring=st.booleans(), weighing=st.booleans())
def test_only_drawn_pairs_count(loss, anchors, closed, naive, problem, seed, soft, ignoring, weighing):
    p, by_label = problem(seed, soft), anchors == "labels"
    made = default_registry().get("loss", loss)
    made = made if closed else type("Open", (made,), {"terms": made.terms})
    assert made().has_closed_form == closed
    at_most_one_QP = torch.eye(*p.y_QP.shape, dtype=torch.bool).roll(
        seed, dims=1
    )  # of each anchor, so nothing is left to chance
    for reduction, drawn_QP in ((SomeDrawn(), p.drawn_QP), (Pol(), at_most_one_QP)):
        masks = p.ignore_QP if ignoring else None, p.label_weight_P if weighing else None
        objective = Objective([Term(loss, 1.0, made(), reduction)], q2l_share=0.0 if by_label else 1.0)
        found = objective(p.s_QP, p.y_QP, ignore_QP=masks[0], label_weight_P=masks[1], drawn_QP=drawn_QP)
        rows = [x.T if by_label and x is not None else x for x in (p.s_QP, p.y_QP, masks[0], drawn_QP)]
        expected = naive(loss, "psl", *rows[:3], masks[1], by_label, rows[3])
        assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-10)
