"""The laws of a search."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from xmclab.api import LabelSpace, Search
from xmclab.host import default_registry
from xmclab_kit.core import Broken, Subject, check_close, described, identical, named, numbers
from xmclab_kit.structure import OPTIONS, structural_laws

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTHS = {"de": 3, "clf": 2}
HEADS = [("de",), ("clf",), ("de", "clf")]
VALUES = np.array([0, 1, -1, 2, -2], np.float32)  # exact in any order of summation, and many scores are equal
TRAINING_STEP = 0.0173  # while no two training queries are equally near
NEAR = {"rtol": 1e-4, "atol": 1e-5}  # tolerance for float32 sums in another order

LAWS = structural_laws()

Vectors = Mapping[str, Tensor]  # by head
Found = tuple[Tensor, Tensor]  # (ids_NK, scores_NK)


class Compared(LabelSpace):
    """Labels that are all compared, without an index."""

    def __init__(self, vectors: Vectors, num_labels: int) -> None:
        self.heads, self.num_labels, self._vectors = tuple(vectors), num_labels, vectors

    def nearest(self, heads: str, queries: Vectors, k: int) -> Found:
        scores_NL, ids_NL = self._all(heads, queries).sort(dim=1, descending=True, stable=True)
        missing = max(k - ids_NL.shape[1], 0)
        return pad(ids_NL[:, :k], (0, missing), value=-1), pad(scores_NL[:, :k], (0, missing), value=-torch.inf)

    def scores(self, heads: str, queries: Vectors, row_E: Tensor, label_E: Tensor) -> Tensor:
        if (label_E >= self.num_labels).any():
            raise IndexError("LabelSpace.scores() was asked for a label from num_labels on")
        return self._all(heads, queries)[row_E, label_E]

    def _all(self, heads: str, queries: Vectors) -> Tensor:
        return torch.stack([queries[head] @ self._vectors[head].T for head in heads.split("+")]).sum(dim=0)


@dataclass(frozen=True)
class Asked:
    """A question to a search, and the model that it is about."""

    queries: Vectors
    labels: Vectors
    training: Vectors
    targets: NDArray[np.float32]  # of the training queries; labels beyond were added later
    k: int

    def __str__(self) -> str:
        vectors = {"queries": self.queries, "labels": self.labels, "training queries": self.training}
        tables = {f"{name}, {head}": x_ND for name, by_head in vectors.items() for head, x_ND in by_head.items()}
        return f"{named(**tables, targets_NL=self.targets)}\nk={self.k}"

    @property
    def space(self) -> Compared:
        return Compared(self.labels, self.targets.shape[1])

    @property
    def every(self) -> int:
        """The number of labels, with those that were added."""
        return len(next(iter(self.labels.values())))


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    heads = draw(st.sampled_from(HEADS))
    queries, labels, added, training = (draw(st.integers(*ends)) for ends in ((1, 3), (1, 4), (0, 1), (1, 3)))

    def vectors(count: int, step: float = 0.0) -> Vectors:
        drawn = {head: VALUES[numbers(draw, count * WIDTHS[head]) % len(VALUES)] for head in heads}
        shifted = {head: x + np.float32(step) * np.arange(1, len(x) + 1, dtype=np.float32) for head, x in drawn.items()}
        return {head: torch.from_numpy(x).view(count, -1) for head, x in shifted.items()}

    targets = (numbers(draw, training * labels) % 2).astype(np.float32).reshape(training, labels)
    targets[0, 0] = 1
    everything = (vectors(queries), vectors(labels + added), vectors(training, TRAINING_STEP))
    return Asked(*everything, targets, k=draw(st.integers(1, labels + added + 1)))


def copied(vectors: Vectors) -> dict[str, Tensor]:
    return {head: x_ND.clone() for head, x_ND in vectors.items()}


def made(subject: Subject) -> Search:
    """A new search with an index, as in a run."""
    search: Search = subject.make()
    search.index = default_registry().get("index", "exact")()
    return search


def fitted(subject: Subject, asked: Asked) -> Search:
    """A search that has seen the training queries, if it reads them."""
    search = made(subject)
    if search.reads_training_queries:
        search.fit(copied(asked.training), sp.csr_array(asked.targets))
    return search


def rank(search: Search, name: str, asked: Asked, k: int = 0) -> Found:
    """One of its rankings, from copies of the vectors."""
    return search.rank(name, copied(asked.queries), asked.space, k or asked.k)


def rankings(search: Search, asked: Asked) -> dict[str, Found]:
    """All of its rankings, by name."""
    return {name: rank(search, name, asked) for name in search.names(tuple(asked.queries))}


def check_same(found: Found, expected: Found, name: str, who: str) -> None:
    """Raise `Broken` with two rankings that differ."""
    if not all(map(identical, found, expected)):
        first, again = (named(ids_NK=ids_NK, scores_NK=scores_NK) for ids_NK, scores_NK in (expected, found))
        raise Broken(f"{name!r}:\n{first}\n{who}:\n{again}")


@LAWS.law(
    says="names() gives at least one name, none of them empty or twice, for one head and for two",
    fix="return a tuple of names, the default last; for a single head, leave out what needs two",
    needs=[OPTIONS],
)
def names(subject: Subject) -> None:
    for heads in HEADS:
        found = made(subject).names(heads)
        if not isinstance(found, tuple) or not all(isinstance(name, str) and name for name in found):
            raise Broken(f"names({heads}) returned {found!r}")
        if not found or len(set(found)) < len(found):
            raise Broken(f"names({heads}) returned {found!r}: {'a name twice' if found else 'no name'}")


@LAWS.law(
    says="rank() returns ids (int64) and scores (float32) of one shape: a row per query, at most k columns",
    fix="return what labels.nearest() returns, or a sorted tensor's indices and values, cut to [:, :k]",
    examples=questions(),
    needs=["names"],
)
def shape(subject: Subject, asked: Asked) -> None:
    for name, (ids_NK, scores_NK) in rankings(fitted(subject, asked), asked).items():
        for what, x_NK, dtype in (("ids", ids_NK, torch.int64), ("scores", scores_NK, torch.float32)):
            if not isinstance(x_NK, Tensor) or x_NK.dtype != dtype or x_NK.ndim != 2:
                raise Broken(f"{name!r}: the {what} are {described(x_NK)}, not {dtype}".replace("torch.", ""))
        rows = len(next(iter(asked.queries.values())))
        if ids_NK.shape != scores_NK.shape or len(ids_NK) != rows or ids_NK.shape[1] > asked.k:
            shapes = f"ids of shape {tuple(ids_NK.shape)} and scores of shape {tuple(scores_NK.shape)}"
            raise Broken(f"{name!r}: {shapes} for {rows} queries and k={asked.k}")


@LAWS.law(
    says="the same queries have the same ranking, asked again or of another instance",
    fix="draw no random numbers, and keep nothing between calls that changes the answer",
    examples=questions(),
    needs=["shape"],
)
def pure(subject: Subject, asked: Asked) -> None:
    search, other = fitted(subject, asked), fitted(subject, asked)
    for name, expected in rankings(search, asked).items():
        for who, again in (("asked again", search), ("another instance", other)):
            check_same(rank(again, name, asked), expected, name, who)


@LAWS.law(
    says="a row has each label at most once, ids of labels only (also of those added later), and -1 only at its end",
    fix="merge what two searches found by id, and give a padded place the score -inf before sorting",
    examples=questions(),
    needs=["pure"],
)
def ids(subject: Subject, asked: Asked) -> None:
    for name, (ids_NK, _) in rankings(fitted(subject, asked), asked).items():
        for row, labels in enumerate(ids_NK.tolist()):
            there = [label for label in labels if label != -1]
            if labels[: len(there)] != there:
                raise Broken(f"{name!r}: -1 comes before a label in row {row}: {labels}")
            if len(set(there)) < len(there):
                raise Broken(f"{name!r}: a label comes twice in row {row}: {labels}")
            if there and not 0 <= min(there) <= max(there) < asked.every:
                raise Broken(f"{name!r}: row {row} is {labels}, but there are {asked.every} labels")


@LAWS.law(
    says="scores are finite and do not rise along a row; labels with equal scores come by ascending id",
    fix="bring the columns in the order of ids, then sort(dim=1, descending=True, stable=True)",
    examples=questions(),
    needs=["ids"],
)
def order(subject: Subject, asked: Asked) -> None:
    for name, (ids_NK, scores_NK) in rankings(fitted(subject, asked), asked).items():
        seen = f"{name!r}:\n{named(ids_NK=ids_NK, scores_NK=scores_NK)}"
        there_NK = ids_NK >= 0
        if not scores_NK[there_NK].isfinite().all():
            raise Broken(f"a score is not finite in {seen}")
        step_NK, both_NK = scores_NK.diff(dim=1), there_NK[:, 1:]
        if (both_NK & (step_NK > 0)).any():
            raise Broken(f"a score rises in {seen}")
        if (both_NK & (step_NK == 0) & (ids_NK.diff(dim=1) < 0)).any():
            raise Broken(f"equal scores are not by id in {seen}")


@LAWS.law(
    says="the k best labels of a query are the first k of a longer ranking",
    fix="score every label that could be among the k best, not only the k best of one head; topk does not order ties",
    examples=questions(),
    needs=["order"],
)
def cut(subject: Subject, asked: Asked) -> None:
    search = fitted(subject, asked)
    for name, (ids_NK, _) in rankings(search, asked).items():
        longer_NL, _ = rank(search, name, asked, asked.every)
        for row, (labels, longer) in enumerate(zip(ids_NK.tolist(), longer_NL.tolist(), strict=True)):
            found, expected = ([label for label in some if label >= 0][: asked.k] for some in (labels, longer))
            if found != expected:
                raise Broken(f"{name!r}: row {row} has {found}, but begins with {expected} for k={asked.every}")


@LAWS.law(
    says="a ranking named after heads (de, de+clf) reads only these; after a single head, it needs no fit()",
    fix="call a ranking de, clf or de+clf only if it is that of these heads; any other name gets all heads",
    examples=questions(),
    needs=["pure"],
)
def heads(subject: Subject, asked: Asked) -> None:
    search = fitted(subject, asked)
    for name, expected in rankings(search, asked).items():
        read = set(name.split("+"))
        if read <= asked.queries.keys():
            queries = {head: q_ND.clone() for head, q_ND in asked.queries.items() if head in read}
            found = (search if len(read) > 1 else made(subject)).rank(name, queries, asked.space, asked.k)
            check_same(found, expected, name, f"with queries of {', '.join(queries)} alone")


@LAWS.law(
    says="a query has the same ranking in any block of queries",
    fix="no query may depend on the others: no mean, rank or softmax over dim=0",
    examples=questions(),
    needs=["ids"],
)
def blocks(subject: Subject, asked: Asked) -> None:
    search = fitted(subject, asked)
    for name in search.names(tuple(asked.queries)):
        expected_NL = by_label(*rank(search, name, asked, asked.every), asked.every)
        for row in range(len(expected_NL)):
            block = {head: q_ND[[row]] for head, q_ND in asked.queries.items()}
            found_NL = by_label(*search.rank(name, block, asked.space, asked.every), asked.every)
            check_close(found_NL, expected_NL[[row]], f"{name!r}: scores of query {row} by itself", **NEAR)


def by_label(ids_NK: Tensor, scores_NK: Tensor, labels: int) -> Tensor:
    """The score of every label, -inf if it was not found."""
    scores_NL = scores_NK.new_full((len(ids_NK), labels + 1), -torch.inf)
    return scores_NL.scatter(1, ids_NK.where(ids_NK >= 0, labels), scores_NK)[:, :labels]


@LAWS.law(
    says="queries, training queries and their targets are not modified",
    fix="use operations without a trailing underscore: the other rankings read the same vectors",
    examples=questions(),
    needs=["shape"],
)
def unchanged(subject: Subject, asked: Asked) -> None:
    search, queries, training = made(subject), copied(asked.queries), copied(asked.training)
    targets_NL = sp.csr_array(asked.targets)
    if search.reads_training_queries:
        search.fit(training, targets_NL)
    for name in search.names(tuple(queries)):
        search.rank(name, queries, asked.space, asked.k)
    for what, after, before in (("queries", queries, asked.queries), ("training queries", training, asked.training)):
        for head, x_ND in after.items():
            if not torch.equal(x_ND, before[head]):
                raise Broken(f"the {what} of {head} were written into: " + named(afterwards=x_ND))
    if not np.array_equal(targets_NL.toarray(), asked.targets):
        raise Broken("targets_NL was written into: " + named(afterwards=targets_NL.toarray()))


@LAWS.law(
    says="load() after save() gives the same rankings; a search that reads no training queries writes nothing",
    fix="write all that fit() learned, and set reads_training_queries if there is any",
    examples=questions(),
    needs=["pure"],
)
def saved(subject: Subject, asked: Asked) -> None:
    search, other = fitted(subject, asked), made(subject)
    with tempfile.TemporaryDirectory() as folder:
        search.save(Path(folder))
        if not search.reads_training_queries:
            if written := [file.name for file in Path(folder).iterdir()]:
                raise Broken(f"save() wrote {written[0]}, but reads_training_queries is false")
            return
        other.load(Path(folder), torch.device("cpu"))
        for name, expected in rankings(search, asked).items():
            check_same(rank(other, name, asked), expected, name, "after loading")
