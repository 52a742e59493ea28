"""The laws of a head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st
from torch import Tensor

from xmclab.api import Head
from xmclab.model.tables import RowTable
from xmclab_kit.core import Broken, Subject, check_close, check_finite, check_gradients, described, numbers, seed
from xmclab_kit.structure import OPTIONS, structural_laws

WIDTH, LABELS, QUERIES = 6, 9, 8
NEAR = {"rtol": 1e-4, "atol": 1e-5}  # tolerance for float32 sums in another order

LAWS = structural_laws()


def built(subject: Subject) -> Head:
    """A head for an encoder of this width, with dropout off."""
    head: Head = subject.make()
    head.build(WIDTH, LABELS)
    return head.eval()


def encoded(subject: Subject) -> tuple[Tensor, Tensor]:
    """(x_ND, x_LD): encoded queries and labels."""
    return torch.randn(QUERIES, WIDTH), torch.randn(LABELS, WIDTH)


def positives() -> sp.csr_array:
    """Targets in which the last label has no query."""
    return sp.csr_array(np.eye(QUERIES, LABELS, dtype=np.float32))


def queries(subject: Subject, rows: list[int]) -> Tensor:
    with torch.no_grad():
        return subject.once(built).queries(subject.once(encoded)[0][rows])


def labels(subject: Subject, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return labels_of(subject.once(built), subject.once(encoded)[1], ids)


def labels_of(head: Head, x_LD: Tensor, ids: list[int]) -> Tensor:
    """z_PD of these labels, by what the head reads."""
    return head.labels(*read_by(head, x_LD, ids))


def read_by(head: Head, x_LD: Tensor, ids: list[int]) -> tuple[Tensor | None, Tensor]:
    """What `labels` and `search_labels` take; a new label has the text of an old one."""
    labels_P = torch.tensor(ids)
    return x_LD[labels_P % len(x_LD)] if head.labels_from == "text" else None, labels_P


@dataclass(frozen=True)
class Rows:
    """Queries and labels of a chunk, by number."""

    queries: list[int]
    labels: list[int]

    def __str__(self) -> str:
        return f"queries {self.queries} and labels {self.labels}, of {QUERIES} and {LABELS}"


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    queries, labels = (
        np.argsort(numbers(draw, size), kind="stable")[: draw(st.integers(1, 4))].tolist() for size in (QUERIES, LABELS)
    )
    return Rows(queries, labels)


def searched(head: Head, x_ND: Tensor, x_LD: Tensor, chunk: Rows) -> dict[str, Tensor]:
    """The vectors of a chunk as searched, by the method that returns them."""
    with torch.no_grad():
        z_PD = head.search_labels(*read_by(head, x_LD, chunk.labels))
        return {"search_queries": head.search_queries(x_ND[chunk.queries]), "search_labels": z_PD}


def all_rows(head: Head) -> Rows:
    """All queries and labels; a head that reads texts also knows labels that were not trained."""
    return Rows(list(range(QUERIES)), list(range(LABELS + (head.labels_from == "text"))))


@LAWS.law(
    says="labels_from is 'text' or 'table'; lr and temperature are numbers above 0; build() makes the parameters",
    fix="set the class variable labels_from, and declare lr and temperature as options with gt=0",
    needs=[OPTIONS],
)
def builds(subject: Subject) -> None:
    head = subject.once(built)
    if getattr(head, "labels_from", None) not in ("text", "table"):
        raise Broken(f"labels_from is {getattr(head, 'labels_from', 'missing')!r}")
    for name in ("lr", "temperature"):
        if not getattr(head, name, 0) > 0:
            raise Broken(f"{name} is {getattr(head, name, 'missing')}")


@LAWS.law(
    says="queries() and labels() give vectors of one width, finite, one for each query and each label",
    fix="return q_BD and z_PD of the same D; score = inner product",
    examples=rows(),
    needs=["builds"],
)
def shape(subject: Subject, example: Rows) -> None:
    q_BD, z_PD = queries(subject, example.queries), labels(subject, example.labels)
    check_vectors("queries", q_BD, len(example.queries))
    check_vectors("labels", z_PD, len(example.labels))
    if q_BD.shape[1] != z_PD.shape[1]:
        raise Broken(f"queries have width {q_BD.shape[1]}, labels {z_PD.shape[1]}")


def check_vectors(name: str, x_BD: Tensor, count: int) -> None:
    """Raise `Broken` unless a method returned a finite vector for each of its texts."""
    if not isinstance(x_BD, Tensor) or x_BD.ndim != 2 or len(x_BD) != count or not x_BD.is_floating_point():
        raise Broken(f"{name}() returned {described(x_BD)} for {count} {name.removeprefix('search_')}")
    check_finite(x_BD, f"{name}(): the value")


@LAWS.law(
    says="outside training, a query and a label have the same vectors each time",
    fix="use nn.Dropout or F.dropout(..., training=self.training), and keep no state between calls",
    examples=rows(),
    needs=["shape"],
)
def repeatable(subject: Subject, example: Rows) -> None:
    for name, vectors, chosen in (("queries", queries, example.queries), ("labels", labels, example.labels)):
        first = vectors(subject, chosen)
        check_close(vectors(subject, chosen), first, f"{name}(): value on the second call")


@LAWS.law(
    says="a query has the same vector in any chunk",
    fix="no query may depend on the others in its chunk: no batch norm, no centring, nothing over dim=0",
    examples=rows(),
    needs=["repeatable"],
)
def query_chunks(subject: Subject, example: Rows) -> None:
    everyone = queries(subject, list(range(QUERIES)))
    check_close(queries(subject, example.queries), everyone[example.queries], "value in this chunk", **NEAR)


@LAWS.law(
    says="a label has the same vector in any pool: from its own row of a table, or its own text",
    fix="look up table rows by labels_P (ids, not places in the pool); no label may depend on the others",
    examples=rows(),
    needs=["repeatable"],
)
def label_rows(subject: Subject, example: Rows) -> None:
    everyone = labels(subject, list(range(LABELS)))
    check_close(labels(subject, example.labels), everyone[example.labels], "value in this pool", **NEAR)


@LAWS.law(
    says="search vectors are finite and the same in any chunk; labels may have one number more than queries (a bias), "
    "and ids from num_labels on if read as texts",
    fix="append one number to labels at most, and none to queries; ids from num_labels on need a bias by default",
    examples=rows(),
    needs=["query_chunks", "label_rows"],
)
def search(subject: Subject, example: Rows) -> None:
    head, (x_ND, x_LD) = subject.once(built), subject.once(encoded)
    whole = all_rows(head)
    expected = searched(head, x_ND, x_LD, whole)
    q_BD, z_PD = expected.values()
    check_vectors("search_queries", q_BD, len(whole.queries))
    check_vectors("search_labels", z_PD, len(whole.labels))
    if z_PD.shape[1] - q_BD.shape[1] not in (0, 1):
        raise Broken(f"queries have width {q_BD.shape[1]} in searches, labels {z_PD.shape[1]}")
    found = searched(head, x_ND, x_LD, example)
    for name, chosen in (("search_queries", example.queries), ("search_labels", example.labels)):
        check_close(found[name], expected[name][chosen], f"{name}(): value in this chunk", **NEAR)


@LAWS.law(
    says="label_rows, if given, is a RowTable; of_rows() of a row is the vector of its label and uses no parameters",
    fix="return self.of_rows(table(labels_P)) from labels(), with a RowTable and no layers in of_rows()",
    examples=rows(),
    needs=["label_rows"],
)
def table(subject: Subject, example: Rows) -> None:
    head = subject.once(built)
    if head.label_rows is None:
        return
    if not isinstance(head.label_rows, RowTable):
        raise Broken(f"label_rows is {type(head.label_rows).__name__}")
    found = head.of_rows(head.label_rows(torch.tensor(example.labels)).detach())
    if found.requires_grad:
        raise Broken("of_rows() uses trained parameters, which get no gradient from blocks of rows")
    check_close(found, labels(subject, example.labels), "of_rows() of the rows of these labels", **NEAR)


@LAWS.law(
    says="the gradient of scores reaches every trainable parameter, and is not all zeros (except for a bias)",
    fix="delete unused parameters, or freeze them with requires_grad_(False); do not detach()",
    needs=["shape"],
)
def gradients(subject: Subject) -> None:
    head, (x_ND, x_LD) = built(subject).train(), subject.once(encoded)
    if not any(p.requires_grad for p in head.parameters()):  # the gradient is that of the encoder
        x_ND = x_ND.clone().requires_grad_()

    def value() -> Tensor:
        s_QP = head.queries(x_ND) @ labels_of(head, x_LD, list(range(LABELS))).T
        if not s_QP.requires_grad:
            raise Broken("the scores have no gradient")
        return (s_QP * torch.randn_like(s_QP)).sum()

    check_gradients(head, value)


@LAWS.law(
    says="no inner product exceeds score_bound, in training or outside",
    fix="return inf from score_bound unless vectors are normalised last (after the dropout)",
    needs=["shape"],
)
def bound(subject: Subject) -> None:
    head, (x_ND, x_LD) = built(subject), subject.once(encoded)
    for training in (False, True):
        head.train(training)
        with torch.no_grad():
            s_QP = head.queries(100 * x_ND) @ labels_of(head, 100 * x_LD, list(range(LABELS))).T
        if not float(s_QP.abs().max()) <= head.score_bound * (1 + 1e-4):
            when = "in training" if training else "outside training"
            raise Broken(f"{when}, a score is {float(s_QP.abs().max()):.4g}, but score_bound is {head.score_bound:.4g}")


@LAWS.law(
    says="build() and the state dict restore the same head",
    fix="keep everything learned in parameters and buffers, and create the same modules in every build()",
    needs=["repeatable"],
)
def state(subject: Subject) -> None:
    seed(1)  # different initial values
    again = built(subject)
    again.load_state_dict(subject.once(built).state_dict())
    x_ND, x_LD = subject.once(encoded)
    with torch.no_grad():
        check_close(again.queries(x_ND), queries(subject, list(range(QUERIES))), "queries(): value after loading")
        z_LD = labels_of(again, x_LD, list(range(LABELS)))
    check_close(z_LD, labels(subject, list(range(LABELS))), "labels(): value after loading")


@LAWS.law(
    says="count() leaves finite vectors, also for labels without queries, and the state dict holds what it learns",
    fix="smooth frequencies or use log1p: the log of 0 is -inf; keep counts in a buffer",
    needs=["search", "state"],
)
def count(subject: Subject) -> None:
    head, again, (x_ND, x_LD) = built(subject), built(subject), subject.once(encoded)
    head.count(positives())
    check_all_finite(head, x_ND, x_LD)
    again.load_state_dict(head.state_dict())
    expected = searched(head, x_ND, x_LD, all_rows(head))
    for name, x_BD in searched(again, x_ND, x_LD, all_rows(head)).items():
        check_close(x_BD, expected[name], f"{name}(): value after loading")


def check_all_finite(head: Head, x_ND: Tensor, x_LD: Tensor) -> None:
    """Raise `Broken` with a number that is not finite, of vectors as trained or as searched."""
    with torch.no_grad():
        trained = {"queries": head.queries(x_ND), "labels": labels_of(head, x_LD, list(range(LABELS)))}
    for name, x_BD in (trained | searched(head, x_ND, x_LD, all_rows(head))).items():
        check_finite(x_BD, f"{name}(): the value")


@LAWS.law(
    says="start(), if starts_from_texts is true, takes encoded queries and labels and leaves finite vectors",
    fix="give a label without training queries a row too: normalise with an eps, divide by clamped counts",
    needs=["search"],
)
def start(subject: Subject) -> None:
    head, (x_ND, x_LD) = built(subject), subject.once(encoded)
    if not head.starts_from_texts:
        return
    head.start(x_ND, x_LD, positives())
    check_all_finite(head, x_ND, x_LD)
