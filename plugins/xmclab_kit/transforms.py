"""The laws of a transform."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from xmclab.api import Dataset, Split
from xmclab_kit.core import Broken, Subject, named, numbers
from xmclab_kit.structure import OPTIONS, structural_laws

LAWS = structural_laws()
MATRICES = ("targets_NL", "filter_NL")


@dataclass(frozen=True)
class Asked:
    """A small data set."""

    targets: sp.csr_array
    filters: sp.csr_array
    changed: bool  # whether another transform came before, which left out the last query

    def __str__(self) -> str:
        return named(targets_NL=self.targets.toarray(), filter_NL=self.filters.toarray(), changed=self.changed)

    def dataset(self) -> Dataset:
        """A new copy, as a run hands it over."""
        train = _split("query", self.targets.copy(), self.filters.copy())
        kept = len(train) - self.changed
        shown = Split(train.texts[:kept], train.names[:kept], train.targets_NL[:kept], train.filter_NL[:kept])
        labels = range(self.targets.shape[1])
        return Dataset(
            name="small",
            train=shown,
            test=_split("test query", self.targets.copy(), self.filters.copy()),
            label_texts=[f"the label {label}" for label in labels],
            label_names=[f"l{label}" for label in labels],
            fingerprint="0",
            original=train,
        )


def _split(word: str, targets_NL: sp.csr_array, filter_NL: sp.csr_array) -> Split:
    rows = range(targets_NL.shape[0])
    return Split([f"{word} {row}" for row in rows], [f"{word[0]}{row}" for row in rows], targets_NL, filter_NL)


@st.composite
def datasets(draw: st.DrawFn) -> Asked:
    queries, labels = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    cells = (numbers(draw, queries * labels) % 5).reshape(queries, labels)
    targets = np.select([cells == 1, cells == 2], [1.0, 0.5], 0).astype(np.float32)
    targets[0, 0] = 1
    return Asked(sp.csr_array(targets), sp.csr_array((cells == 3).astype(np.float32)), draw(st.booleans()))


def applied(subject: Subject, asked: Asked) -> Dataset:
    found: Dataset = subject.make().apply(asked.dataset())
    return found


def check_same(found: Split, expected: Split, who: str) -> None:
    """Raise `Broken` with what differs between two versions of the training queries."""
    for what in ("texts", "names"):
        ours, theirs = list(getattr(found, what)), list(getattr(expected, what))
        if ours != theirs:
            raise Broken(f"{who}: the {what} are {ours}, not {theirs}")
    for what in MATRICES:
        now, before = (sp.csr_array(getattr(each, what)).toarray() for each in (found, expected))
        if not np.array_equal(now, before):
            raise Broken(f"{who}: {what} is\n{named(now=now, before=before)}")


@LAWS.law(
    says="the training queries fit together: a text, a name and a row of targets and filter pairs each, for all labels",
    fix="change texts, names, targets_NL and filter_NL alike; both matrices are csr_arrays with a column per label",
    examples=datasets(),
    needs=[OPTIONS],
)
def shape(subject: Subject, asked: Asked) -> None:
    found = applied(subject, asked)
    if not isinstance(found, Dataset):
        raise Broken(f"apply() returned {type(found).__name__}, not a Dataset")
    rows = len(found.train.texts)
    if len(found.train.names) != rows:
        raise Broken(f"{rows} texts, but {len(found.train.names)} names")
    for what in MATRICES:
        matrix = getattr(found.train, what)
        if not isinstance(matrix, sp.csr_array) or matrix.shape != (rows, asked.targets.shape[1]):
            seen = f"{type(matrix).__name__} of shape {getattr(matrix, 'shape', '?')}"
            raise Broken(f"{what} is a {seen}, for {rows} queries and {asked.targets.shape[1]} labels")
        if not matrix.has_canonical_format:
            raise Broken(f"{what} has columns that are not sorted, or stored twice")


@LAWS.law(
    says="targets are finite numbers above 0 in float32, and some query has one",
    fix="leave out pairs instead of giving them the target 0, and convert to np.float32",
    examples=datasets(),
    needs=["shape"],
)
def targets(subject: Subject, asked: Asked) -> None:
    values = applied(subject, asked).train.targets_NL.data
    if values.dtype != np.float32:
        raise Broken(f"the targets are {values.dtype}")
    if not (np.isfinite(values) & (values > 0)).all():
        raise Broken(f"the targets are {values.tolist()}")
    if not len(values):
        raise Broken("no training query has a label")


@LAWS.law(
    says="only `train` changes: test queries, labels and the rest are the same objects",
    fix="return dataclasses.replace(data, train=...)",
    examples=datasets(),
    needs=["shape"],
)
def only_train(subject: Subject, asked: Asked) -> None:
    data = asked.dataset()
    found = subject.make().apply(data)
    for name in ("name", "test", "label_texts", "label_names", "fingerprint", "original"):
        if getattr(found, name) is not getattr(data, name):
            raise Broken(f"`{name}` is another object than before")


@LAWS.law(
    says="the same data gives the same training queries, again and by another instance",
    fix="draw from np.random.default_rng created in apply() with a fixed seed, and keep nothing between calls",
    examples=datasets(),
    needs=["shape"],
)
def pure(subject: Subject, asked: Asked) -> None:
    transform = subject.make()
    expected = transform.apply(asked.dataset()).train
    check_same(transform.apply(asked.dataset()).train, expected, "asked again")
    check_same(applied(subject, asked).train, expected, "another instance")


@LAWS.law(
    says="the data set that it gets is not modified",
    fix="copy a matrix before writing into it: what is measured reads the same arrays",
    examples=datasets(),
    needs=["shape"],
)
def unchanged(subject: Subject, asked: Asked) -> None:
    data, before = asked.dataset(), asked.dataset()
    subject.make().apply(data)
    assert data.original is not None
    assert before.original is not None
    for found, expected, who in (
        (data.train, before.train, "the training queries"),
        (data.original, before.original, "the original queries"),
        (data.test, before.test, "the test queries"),
    ):
        check_same(found, expected, who)
    if replace(data, train=before.train, test=before.test, original=before.original) != before:
        raise Broken("the labels were written into")
