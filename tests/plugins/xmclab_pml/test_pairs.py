"""The miners of pytorch-metric-learning choose among our pairs what they choose among vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor
from torch.nn.functional import normalize

import xmclab
from xmclab.host.registry import default_registry
from xmclab_pml.options import make_miner
from xmclab_pml.pairs import MINERS, Table

OPTIONS = {
    "BatchEasyHardMiner": {"pos_strategy": "hard", "neg_strategy": "semihard"},
    "BatchHardMiner": {},
    "HDCMiner": {"filter_percentage": 0.4},
    "MultiSimilarityMiner": {"epsilon": 0.2},
    "PairMarginMiner": {"pos_margin": 0.9, "neg_margin": 1.3},
    "TripletMarginMiner": {"margin": 0.3, "type_of_triplets": "semihard"},
    "UniformHistogramMiner": {"num_bins": 3, "pos_per_bin": 2, "neg_per_bin": 2},
}


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit vectors and classes of queries and labels: one class each, as that library has it."""
    torch.manual_seed(0)
    q_QD, z_PD = (normalize(torch.randn(size, 5, dtype=torch.float64)) for size in (8, 12))
    return q_QD, z_PD, torch.arange(8) % 4, torch.arange(12) % 4


def call_of(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


@pytest.mark.parametrize("name", MINERS)
def test_a_miner_chooses_what_it_chooses_among_vectors(name: str, batch: tuple[Tensor, ...]) -> None:
    q_QD, z_PD, class_Q, class_P = batch
    torch.manual_seed(1)
    expected = getattr(miners, name)(**OPTIONS[name])(q_QD, class_Q, z_PD, class_P)
    torch.manual_seed(1)
    y_QP = (class_Q.unsqueeze(1) == class_P).double()
    table = Table.of(q_QD @ z_PD.T / 0.1, y_QP)
    mined = table.mine(make_miner(call_of(name, OPTIONS[name]), MINERS), temperature=0.1).mined
    assert mined is not None
    assert len(mined[0])
    assert len(mined[-1]) < table.num_triplets
    assert [x.tolist() for x in mined] == [x.tolist() for x in expected]


@pytest.mark.parametrize("name", MINERS)
def test_a_query_of_many_labels_is_mined_as_its_own_two_classes(name: str) -> None:
    torch.manual_seed(2)
    s_QP, y_QP = torch.rand(6, 9) * 2 - 1, (torch.rand(6, 9) < 0.4).float()
    mined = Table.of(s_QP, y_QP).mine(make_miner(name, MINERS), temperature=1.0).mined
    assert mined is not None
    a1, p, a2, n = mined if len(mined) == 4 else (mined[0], mined[1], mined[0], mined[2])
    assert (y_QP[a1, p] > 0).all()
    assert (y_QP[a2, n] == 0).all()


@pytest.mark.parametrize("name", MINERS)
def test_an_absent_candidate_is_never_mined(name: str) -> None:
    torch.manual_seed(3)
    s_QP, y_QP = torch.rand(6, 9) * 2 - 1, (torch.rand(6, 9) < 0.4).float()
    y_QP[:, 4], s_QP[:, 4] = 0, -torch.inf
    mined = Table.of(s_QP, y_QP).mine(make_miner(name, MINERS), temperature=1.0).mined
    assert mined is not None
    assert all((x != 4).all() for x in (mined[1], mined[-1]))


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        ("SupConLoss", "MultiSimilarityMiner"),
        ("SupConLoss", "TripletMarginMiner"),
        ("MultiSimilarityLoss", "HDCMiner"),
        ("NCALoss", "MultiSimilarityMiner"),
    ],
)
def test_a_loss_of_anchors_over_mined_pairs_is_theirs(loss: str, miner: str, batch: tuple[Tensor, ...]) -> None:
    q_QD, z_PD, class_Q, class_P = batch
    chosen = getattr(miners, miner)(**OPTIONS[miner])(q_QD, class_Q, z_PD, class_P)
    theirs = getattr(losses, loss)(reducer=MeanReducer())(q_QD, class_Q, chosen, z_PD, class_P)
    text = call_of(miner, OPTIONS[miner]).replace("'", '"')
    ours = xmclab.objective(f"pml.{loss}(miner={text!r})")(q_QD @ z_PD.T, class_Q.unsqueeze(1) == class_P)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("miner", ["BatchHardMiner", "MultiSimilarityMiner", "UniformHistogramMiner"])
def test_a_triplet_loss_over_mined_pairs_sums_to_theirs(miner: str, batch: tuple[Tensor, ...]) -> None:
    """The triplets of mined pairs are all those of an anchor's mined positives with its mined negatives."""
    q_QD, z_PD, class_Q, class_P = batch
    torch.manual_seed(4)
    chosen = getattr(miners, miner)(**OPTIONS[miner])(q_QD, class_Q, z_PD, class_P)
    theirs = losses.TripletMarginLoss(reducer=MeanReducer())(q_QD, class_Q, chosen, z_PD, class_P)
    torch.manual_seed(4)
    table = Table.of(q_QD @ z_PD.T, (class_Q.unsqueeze(1) == class_P).double())
    a, p, n = table.mine(make_miner(call_of(miner, OPTIONS[miner]), MINERS), temperature=1.0).triplets
    distance_QP = (2 - 2 * table.s_QP).sqrt()
    ours = (distance_QP[a, p] - distance_QP[a, n] + 0.05).relu().mean()
    torch.testing.assert_close(ours, theirs)


def test_positives_that_are_not_mined_have_no_value() -> None:
    s_QP, y_QP = torch.tensor([[0.9, 0.1, 0.3]]), torch.tensor([[1.0, 1.0, 0.0]])
    loss = default_registry().get("loss", "pml.NTXentLoss")
    assert (loss().terms(s_QP, y_QP)[0, :2] > 0).all()
    mined = loss(miner="BatchHardMiner").terms(s_QP / 0.07, y_QP)
    assert mined[0, 0] == 0
    assert mined[0, 1] > 0
