"""The laws of a miner."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from xmclab.api import Dataset, Keys, Miner, Split, View
from xmclab.host import default_registry
from xmclab_kit.core import Broken, Subject, named, numbers
from xmclab_kit.structure import OPTIONS, structural_laws

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAWS = structural_laws()


@dataclass(frozen=True)
class Asked:
    """A question to a miner: negatives of some queries, and the excluded pairs."""

    exclude: NDArray[np.bool_]  # [N, L] positives and filter pairs
    rows_Q: NDArray[np.int64]
    n: int
    depth: int
    seed: int

    def __str__(self) -> str:
        tables = named(exclude_NL=self.exclude.astype(np.int64), rows_Q=self.rows_Q)
        return f"{tables}\nn={self.n}, depth={self.depth}, seed={self.seed}"

    @property
    def exclude_NL(self) -> sp.csr_array:
        return sp.csr_array(self.exclude)

    @property
    def data(self) -> Dataset:
        """Texts that share a word, and a list of all labels for each query."""
        queries, labels = (tuple(f"of {number}" for number in range(size)) for size in self.exclude.shape)
        true_NL, none_NL = (sp.csr_array(self.exclude.astype(np.float32) * share) for share in (1, 0))
        every_NL = sp.csr_array(np.ones(self.exclude.shape, np.float32))
        train = Split(queries, queries, true_NL, none_NL, every_NL)
        return Dataset("kit", train, Split((), (), true_NL[:0], none_NL[:0]), labels, labels, "")

    @property
    def view(self) -> View:
        rng = np.random.default_rng(self.seed)
        queries_ND, labels_LD = (rng.normal(size=(size, 3)).astype(np.float32) for size in self.exclude.shape)
        return View(0, queries_ND, labels_LD)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    queries, labels = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    return Asked(
        (numbers(draw, queries * labels) % 2 == 1).reshape(queries, labels),
        np.array(draw(st.permutations(range(queries)))[: draw(st.integers(1, queries))], dtype=np.int64),
        n=draw(st.integers(1, 5)),
        depth=draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 3)),
    )


def made(subject: Subject) -> Miner:
    """A new miner with an index, as in a run."""
    miner: Miner = subject.make()
    miner.index = default_registry().get("index", "exact")()
    return miner


def prepared(subject: Subject, asked: Asked, times: int = 1) -> Miner:
    """A miner that is ready for the first step."""
    miner = made(subject)
    for _ in range(times):
        miner.prepare(asked.data, asked.exclude_NL, Keys(asked.seed))
    return miner


def refreshed(subject: Subject, asked: Asked, preparations: int = 1) -> Miner:
    """A miner that has also seen the view, as before any step that draws from it."""
    miner = prepared(subject, asked, preparations)
    if miner.needs_view:
        miner.refresh(asked.view, asked.exclude_NL, asked.depth, Keys(asked.seed))
    return miner


def sample(miner: Miner, asked: Asked) -> NDArray[np.int64]:
    return miner.sample(asked.rows_Q.copy(), asked.n, asked.exclude_NL, asked.rng)


@LAWS.law(
    says="sample() returns n label ids for each of its queries, int64, -1 where there are fewer ([Q, 0]: mines none)",
    fix="fill np.full((len(rows_Q), n), -1) with ids from 0 to L - 1",
    examples=questions(),
    needs=[OPTIONS],
)
def shape(subject: Subject, asked: Asked) -> None:
    miners = {"unprepared": made(subject), "before the first refresh": prepared(subject, asked)}
    for when, miner in {**miners, "after it": refreshed(subject, asked)}.items():
        drawn = sample(miner, asked)
        if not isinstance(drawn, np.ndarray) or drawn.dtype != np.int64:
            raise Broken(f"{when}, sample() returned {getattr(drawn, 'dtype', type(drawn).__name__)}, not int64")
        if drawn.ndim != 2 or len(drawn) != len(asked.rows_Q) or drawn.shape[1] not in (0, asked.n):
            raise Broken(f"{when}, sample() returned shape {drawn.shape} for {len(asked.rows_Q)} queries, n={asked.n}")
        if drawn.size and not -1 <= drawn.min() <= drawn.max() < asked.exclude.shape[1]:
            raise Broken(
                f"{when}, ids range from {drawn.min()} to {drawn.max()}, but there are {asked.exclude.shape[1]} labels"
            )


@LAWS.law(
    says="no positive and no filter pair is ever drawn: nothing from a query's row of exclude_NL",
    fix="look rows up by rows_Q (not by their place in the batch), and drop what exclude_NL holds before drawing",
    examples=questions(),
    needs=["shape"],
)
def allowed(subject: Subject, asked: Asked) -> None:
    drawn = sample(refreshed(subject, asked), asked)
    for row, labels in zip(asked.rows_Q, drawn, strict=True):
        wrong = [int(label) for label in labels if label >= 0 and asked.exclude[row, label]]
        if wrong:
            raise Broken(f"label {wrong[0]} was drawn for query {row}, which excludes it: " + named(drawn=drawn))


@LAWS.law(
    says="a query gets as many distinct negatives as it can: n, unless fewer are allowed (or mined: depth)",
    fix="draw without replacement, and mine `depth` labels not counting the excluded ones",
    examples=questions(),
    needs=["shape", "allowed"],
)
def enough(subject: Subject, asked: Asked) -> None:
    miner = refreshed(subject, asked)
    drawn = sample(miner, asked)
    if not drawn.shape[1]:
        return
    for row, labels in zip(asked.rows_Q, drawn, strict=True):
        possible = int((~asked.exclude[row]).sum())
        wanted = min(asked.n, possible, asked.depth if miner.needs_view else possible)
        found = len(set(labels[labels >= 0].tolist()))
        if found < wanted:
            raise Broken(f"query {row} got {found} distinct labels, but {wanted} are available: " + named(drawn=drawn))


@LAWS.law(
    says="draws depend only on the generator: the same state gives the same labels, in another instance too",
    fix="draw only from the rng passed to sample() (in refresh(): from keys.rng)",
    examples=questions(),
    needs=["shape"],
)
def pure(subject: Subject, asked: Asked) -> None:
    miner = refreshed(subject, asked)
    first = sample(miner, asked)
    for who, other in (("asked again", miner), ("another instance", refreshed(subject, asked))):
        again = sample(other, asked)
        if not np.array_equal(first, again):
            raise Broken(f"{named(first=first)}\n{who}: {named(drawn=again)}")


@LAWS.law(
    says="prepare() is repeatable, as a resumed run calls it again: a second call changes no draw",
    fix="draw from keys.rng, and make everything new instead of adding to what is there",
    examples=questions(),
    needs=["shape", "pure"],
)
def repeatable(subject: Subject, asked: Asked) -> None:
    first, again = (sample(refreshed(subject, asked, times), asked) for times in (1, 2))
    if not np.array_equal(first, again):
        raise Broken(f"{named(first=first)}\nprepared twice: {named(drawn=again)}")


@LAWS.law(
    says="rows, exclusions, the data and the vectors of the view are not modified",
    fix="do not write into arrays that are passed in",
    examples=questions(),
    needs=["shape"],
)
def unchanged(subject: Subject, asked: Asked) -> None:
    miner, rows_Q, view, exclude_NL = made(subject), asked.rows_Q.copy(), asked.view, asked.exclude_NL
    data = asked.data
    miner.prepare(data, exclude_NL, Keys(asked.seed))
    if miner.needs_view:
        miner.refresh(view, exclude_NL, asked.depth, Keys(asked.seed))
    miner.sample(rows_Q, asked.n, exclude_NL, asked.rng)
    arrays = {
        "rows_Q": (rows_Q, asked.rows_Q),
        "exclude_NL": (exclude_NL.toarray(), asked.exclude),
        "view.queries_ND": (view.queries_ND, asked.view.queries_ND),
        "view.labels_LD": (view.labels_LD, asked.view.labels_LD),
        "data.train.targets_NL": (data.train.targets_NL.toarray(), asked.data.train.targets_NL.toarray()),
        "data.train.candidates_NL": (_dense(data.train.candidates_NL), _dense(asked.data.train.candidates_NL)),
    }
    for name, (after, before) in arrays.items():
        if not np.array_equal(after, before):
            raise Broken(f"{name} was written into: " + named(afterwards=after))


@LAWS.law(
    says="what state() returns makes another instance go on as after the refresh, and later refreshes leave it alone",
    fix="return every array that refresh() made, take them in load_state(), and make new ones in refresh()",
    examples=questions(),
    needs=["shape", "pure"],
)
def resumed(subject: Subject, asked: Asked) -> None:
    miner = refreshed(subject, asked)
    state = miner.state()
    if state is None:  # a resumed run calls refresh() again
        return
    copies = {name: array.copy() for name, array in state.items()}
    first, other = sample(miner, asked), prepared(subject, asked)
    if miner.needs_view:
        other.load_state(copies)
        view = dataclasses.replace(asked.view, labels_LD=-asked.view.labels_LD)
        miner.refresh(view, asked.exclude_NL, asked.depth, Keys(asked.seed))
    again = sample(other, asked)
    if not np.array_equal(first, again):
        raise Broken(f"{named(first=first)}\nafter load_state(): {named(drawn=again)}")
    for name, before in copies.items():
        if not np.array_equal(state[name], before):
            raise Broken(f"a later refresh() wrote into {name!r}: {named(afterwards=state[name])}")


def _dense(matrix: sp.csr_array | None) -> NDArray[np.float32]:
    assert matrix is not None
    return matrix.toarray()
