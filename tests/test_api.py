"""The words of `api.py`: any part can say them and gets the fast road, unless it replaces what they speak of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from xmclab.api import BinaryLoss, Encoder, Head, Index, Reduction, View
from xmclab.data import open_dataset
from xmclab.host import default_registry, resolve
from xmclab.model.heads.classifier import Classifier
from xmclab.model.heads.dual_encoder import DualEncoder
from xmclab.model.tables import RowTable
from xmclab.objectives.objective import Objective, Term
from xmclab.objectives.reductions.ova import Ova
from xmclab.objectives.softmax import sum_of_negatives
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss
from xmclab.training.streaming import streams
from xmclab.training.trainer import Trainer
from xmclab_losses.bce import BinaryCrossEntropy


@dataclass
class Thirds(Reduction):
    """Every cell weighs a third."""

    needs = "all"
    accepts = "binary"

    def weights(self, y_QP: Tensor) -> Tensor:
        return torch.ones_like(y_QP)

    def normaliser(self, w_QP: Tensor) -> Tensor:
        return w_QP.new_full((), 3.0)

    def cell_weight(self, cells: int) -> float:
        return 1 / 3


@dataclass
class Uneven(Thirds):
    """Replaces the weights and leaves `cell_weight` behind."""

    def weights(self, y_QP: Tensor) -> Tensor:
        return 1 + y_QP


@dataclass
class Soft(BinaryLoss):
    softplus_negatives = True

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return softplus(s_QP) - y_QP * s_QP


@dataclass
class Other(Soft):
    """Replaces the terms and leaves `softplus_negatives` behind."""

    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return 2 * super().terms(s_QP, y_QP)


@dataclass(eq=False)
class Table(Head):
    """A head of one's own, with a table of label rows."""

    labels_from = "table"

    lr: float = 0.1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__init__()

    def build(self, width: int, num_labels: int) -> None:
        self.own = RowTable(num_labels, width, lr=0.1)

    @property
    def label_rows(self) -> nn.Module:
        return self.own

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        return rows_PD

    def queries(self, x_BD: Tensor) -> Tensor:
        return x_BD

    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        return self.of_rows(self.own(labels_P))


def objective(loss: BinaryLoss, reduction: Reduction) -> Objective:
    return Objective([Term("mine", 1.0, loss, reduction)])


def value_and_gradient(found: Objective) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    s_QP = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    value = found(s_QP, torch.rand(4, 6) < 0.3)
    return value.detach(), torch.autograd.grad(value, s_QP)[0]


def test_a_reduction_that_weighs_cells_alike_has_the_closed_form() -> None:
    assert objective(Soft(), Thirds()).has_closed_form
    assert not objective(Soft(), Uneven()).has_closed_form
    assert Thirds().weighs_cells_alike
    assert not Uneven().weighs_cells_alike


def test_the_closed_form_of_cells_is_what_autograd_finds() -> None:
    for reduction in (Thirds(), Ova(), Ova(cells="sum")):
        closed, slow = objective(Soft(), reduction), objective(BySlowTerms(), reduction)
        torch.testing.assert_close(value_and_gradient(closed), value_and_gradient(slow))


@dataclass
class BySlowTerms(BinaryLoss):
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        return softplus(s_QP) - y_QP * s_QP


def test_softplus_negatives_stand_for_of_negatives() -> None:
    s_QP = torch.randn(3, 5, dtype=torch.float64)
    assert Soft().has_closed_form
    torch.testing.assert_close(
        sum_of_negatives(Soft(), s_QP.clone()), sum_of_negatives(BinaryCrossEntropy(), s_QP.clone())
    )
    assert not Other().has_closed_form
    assert not BySlowTerms().has_closed_form


def test_any_head_with_label_rows_streams_over_all_labels() -> None:
    against_all = objective(Soft(), Thirds())
    head = Table()
    head.build(4, 10)
    assert streams(head, against_all, weighted=False)
    assert not streams(head, against_all, weighted=True)
    assert not streams(head, objective(Soft(), Uneven()), weighted=False)
    assert not streams(DualEncoder(dim=4), against_all, weighted=False)
    head.own = nn.Embedding(10, 4)  # type: ignore[assignment]
    assert not streams(head, against_all, weighted=False)


def test_heads_say_what_an_export_can_write() -> None:
    for head, activation in ((Classifier(dim=3), "none"), (DualEncoder(dim=3), "tanh")):
        head.build(4, 10)
        linear, found = head.query_projection()
        assert (linear.in_features, linear.out_features, found) == (4, 3, activation)
    table = Table()
    table.build(4, 10)
    assert table.query_projection() is None
    assert Encoder.transformer(table) is None  # type: ignore[arg-type]


def test_an_index_need_not_choose_anything() -> None:
    assert not Exact.can_write
    index: Index = Exact()
    index.build(torch.eye(3))
    index.tune(torch.eye(3), np.random.default_rng(0))
    assert index.report() == {}


def test_an_index_need_not_share_products() -> None:
    faiss: Index = Faiss()
    faiss.build(torch.eye(3))
    assert not faiss.shares_products
    with pytest.raises(NotImplementedError, match="Faiss searches all columns together"):
        faiss.search_parts(torch.eye(3), [1, 2], 1)


class OnGpu(Tensor):
    """Says that it is on a GPU, and counts copies to the host."""

    device = torch.device("cuda")
    copies = 0

    def cpu(self) -> Tensor:  # type: ignore[override]
        type(self).copies += 1
        return self.as_subclass(Tensor)


def test_a_view_is_an_array_for_plugins_and_a_tensor_on_the_device() -> None:
    q_ND, z_LD = torch.ones(3, 2), torch.zeros(4, 2)
    for given in ((q_ND, z_LD), (q_ND.numpy(), z_LD.numpy())):
        view = View(1, *given)
        assert isinstance(view.queries_ND, np.ndarray)
        assert view.queries_ND.ctypes.data == view.q_ND.data_ptr() == q_ND.data_ptr()  # no copy on a CPU
        assert view.labels_LD.ctypes.data == view.z_LD.data_ptr() == z_LD.data_ptr()
        assert replace(view, epoch=2).queries_ND is view.queries_ND
    with pytest.raises(TypeError, match="labels_LD"):
        View(1, q_ND)  # type: ignore[call-arg]


def test_a_view_is_copied_from_its_device_once() -> None:
    q_ND = torch.ones(3, 2).as_subclass(OnGpu)
    view = View(1, q_ND, torch.zeros(4, 2).as_subclass(OnGpu), "cpu")
    assert OnGpu.copies == 0
    assert view.queries_ND is view.queries_ND
    assert OnGpu.copies == 1
    view.to_host()
    view.to_host()
    assert OnGpu.copies == 2
    assert not isinstance(view.q_ND, OnGpu)
    assert torch.equal(view.q_ND, torch.ones(3, 2))


def test_a_sampler_can_put_queries_of_a_label_together(tmp_path: Path) -> None:
    """Two queries per label, as metric learning samples them: the plan sees the targets."""
    file = tmp_path / "pairs.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "import xmclab\n"
        "from xmclab.api import Sampler\n"
        "@dataclass\n"
        "class TwoPerLabel(Sampler):\n"
        "    def plan(self, rows_N, targets_NL, epoch, view, keys):\n"
        "        first_N = targets_NL.indices[targets_NL.indptr[rows_N]]\n"
        "        by_label = rows_N[np.argsort(first_N, kind='stable')]\n"
        "        return np.array_split(by_label, -(-len(rows_N) // self.batch_size))\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts():\n"
        "    return [xmclab.part('sampler', 'two_per_label', TwoPerLabel)]\n"
    )
    options = ["data=tiny", "encoder.dim=8", "head.clf=none", "head.de.dim=8", "sampler.batch_size=64"]
    config = resolve([*options, f"plugin={file}", "sampler=two_per_label"], default_registry())
    trainer = Trainer(config, open_dataset("tiny", "title", default_registry()))
    plan = trainer.plan(0)
    assert sorted(np.concatenate(plan).tolist()) == trainer.rows_N.tolist()
    targets_NL = trainer.targets_NL.toarray() > 0
    shared = [(targets_NL[batch].sum(axis=0) > 1).sum() for batch in plan]
    at_random = [(targets_NL[rows].sum(axis=0) > 1).sum() for rows in np.array_split(trainer.rows_N[::-1], len(plan))]
    assert np.mean(shared) > np.mean(at_random)
    trainer.step(0, next(trainer.batches(plan[:1], 0)))
