"""Every interface of xmclab and every value passed between parts: the one file that a plugin author reads.

A part is a dataclass (or an `nn.Module` that is one) whose annotated fields are its options: `option(...)` types,
bounds and documents them, and a recipe or the command line sets them (`loss.de.ds.temperature=0.1`).

Shape suffixes, everywhere in the code:
    N training queries · L labels · Q queries of a batch · P candidate labels of a batch (the pool, or all L)
    D width of a vector · B texts of a chunk · T tokens · K results of a search
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from torch import Tensor, nn

from xmclab.keys import Keys
from xmclab.options import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Baseline",
    "Batch",
    "BinaryLoss",
    "Dataset",
    "Encoder",
    "Head",
    "Index",
    "Keys",
    "Loss",
    "Miner",
    "MultiClassLoss",
    "Pairs",
    "Ragged",
    "Ranking",
    "Reader",
    "Reduction",
    "Sampler",
    "Side",
    "Split",
    "Tokens",
    "Tracker",
    "Transformer",
    "View",
    "option",
]

Side = Literal["query", "label"]
Tokens = dict[str, Any]  # what an encoder takes, by its own names: tensors are moved to the device, the rest is not


# Values


@dataclass(frozen=True)
class Split:
    """Queries with their labels: the training or the test half of a data set."""

    texts: Sequence[str]  # [N]
    names: Sequence[str]  # [N] the reader's identifiers of the queries
    targets_NL: sp.csr_array  # float32 relevance > 0 of each true pair; sorted, no duplicates
    filter_NL: sp.csr_array  # nonzero = leave this pair out of rankings, and never use it as a negative

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Dataset:
    """A validated data set, whatever file format it came from."""

    name: str
    train: Split
    test: Split
    label_texts: Sequence[str]  # [L]
    label_names: Sequence[str]  # [L]
    fingerprint: str  # sha256 over the bytes it was read from

    @property
    def num_labels(self) -> int:
        return len(self.label_texts)


@dataclass(frozen=True)
class Ragged:
    """Token (or feature) ids of many texts without padding: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int64]  # [texts + 1]
    weights: NDArray[np.float32] | None = None  # [T] weight of each id, for encoders that use one
    shortened: int = 0  # texts that had more ids than the encoder takes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """The texts of all parts, one after the other; there is at least one part."""
        starts = np.cumsum([0, *(len(part.ids) for part in parts)])
        ends = [part.offsets[1:] + start for part, start in zip(parts, starts[:-1], strict=True)]
        weights = [part.weights for part in parts if part.weights is not None]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([np.zeros(1, np.int64), *ends]),
            np.concatenate(weights) if weights else None,
            sum(part.shortened for part in parts),
        )

    def take(self, rows: NDArray[np.int64]) -> Ragged:
        """The texts of these rows, in this order."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        where = np.arange(offsets[-1])
        where += np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.ids.take(where), offsets, None if self.weights is None else self.weights.take(where))


@dataclass(frozen=True)
class Transformer:
    """A network and a tokenizer of the transformers library, and how its states become a vector."""

    network: Any
    tokenizer: Any
    pooling: Literal["mean", "cls"]
    max_length: int


@dataclass(frozen=True)
class View:
    """The model's current picture of the data (dropout off), taken every `refresh_every` epochs."""

    epoch: int  # the epoch it was taken before
    queries_ND: NDArray[np.float32]  # search vectors of all training queries
    labels_LD: NDArray[np.float32]  # search vectors of all labels
    device: str = "cpu"  # where the run computes, and so where searches should


@dataclass(frozen=True)
class Batch:
    """What one step trains on: queries, candidate labels, and which pairs are true or unknown.

    Every true pair inside the batch is listed, whoever brought the label into the pool, so that a true positive is
    never taken for a negative.
    """

    rows_Q: NDArray[np.int64]  # query ids; each has a positive in the pool
    labels_P: NDArray[np.int64]  # unique label ids, ascending
    positives: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # (row in Q, column in P, target > 0)
    ignored: tuple[NDArray[np.int64], NDArray[np.int64]]  # filter pairs in the pool: neither positive nor negative
    dropped: int = 0  # queries of the plan left without a positive in the pool: they give no loss term
    missing: int = 0  # mined negatives that were asked for and not to be had


@dataclass(frozen=True)
class Ranking:
    """Search results: label ids by descending score, -1 where there are fewer than K."""

    ids_NK: NDArray[np.int64]
    scores_NK: NDArray[np.float32]


# The mathematics of training


@dataclass(frozen=True)
class Pairs:
    """The positives of a score matrix: entry e says that candidate `column_E[e]` is a positive of anchor `row_E[e]`."""

    row_E: Tensor
    column_E: Tensor
    target_E: Tensor  # > 0
    weight_E: Tensor  # >= 0, of the pair in the sum


@dataclass
class Loss(ABC):
    """The value of an (anchor, candidate) pair. A loss knows nothing of models, reductions, devices or batches.

    Subclass `MultiClassLoss` when positives of an anchor compete with its other candidates (softmax family), or
    `BinaryLoss` when every cell stands alone (BCE family); write `terms`.
    """

    kind: ClassVar[Literal["multiclass", "binary"]]
    targets: ClassVar[Literal["relevance", "inverse_propensity"]] = "relevance"  # or y / propensity of the label

    laws_not_kept: ClassVar[Mapping[str, str]] = {}  # of `xmclab check`, each with what in its nature breaks it

    temperature: float | None = option(None, "divides the scores; unset: the head's (or objective's) own", gt=0)

    @abstractmethod
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        """The loss of every pair.

        Args:
            s_QP: scores, already divided by the temperature, in float32 or float64. A score of -inf means
                that the candidate is absent for this anchor.
            y_QP: targets of the same dtype: 0 for a negative, > 0 (usually 1) for a positive.

        Returns:
            l_QP: the value of each pair. A multi-class loss is read at the positives only; the rest may hold anything
            that is differentiable.
        """

    closed_form: ClassVar[str] = (
        ""  # name of the optional method that spares the graph of `terms` and most of its memory
    )

    @property
    def has_closed_form(self) -> bool:
        """Whether the method is defined, and not for the `terms` of a parent that a subclass replaced."""
        return self.defines(self.closed_form)

    def defines(self, word: str) -> bool:
        """Whether an optional method or word is defined for the `terms` of this loss."""
        return _defined_with(self, word, "terms")


def _defined_with(part: object, word: str, *others: str) -> bool:
    """Whether a class defines a word where, or after, it last defined what the word says something about.

    A subclass that replaces one of the others without the word has left it behind.
    """
    definers = [cls for cls in type(part).__mro__ if {word, *others} & vars(cls).keys()]
    return word in vars(definers[0]) and definers[0].__module__ != __name__


@dataclass
class MultiClassLoss(Loss):
    """A loss of a positive against the other candidates of its anchor."""

    kind = "multiclass"
    closed_form = "value_and_grad"

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Optional: the value from the scores of the positives and one number for the negatives of each anchor.

        For losses that see negatives through their log-sum-exp only, in which case no matrix has to be looked at.

        Args:
            s_E: scores of the pairs, already divided by the temperature.
            negatives_Q: the log-sum-exp of the scores of each anchor's negatives; -inf if it has none.

        Returns:
            The sum over the pairs by their weights, and its gradients with respect to `s_E` and `negatives_Q`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form")


@dataclass
class BinaryLoss(Loss):
    """A loss of each cell by itself; targets may be any real number in [0, 1]."""

    kind = "binary"
    closed_form = "of_negatives"

    softplus_negatives: ClassVar[bool] = False  # a cell of target 0 costs log(1 + exp s): stands for `of_negatives`

    @property
    def has_closed_form(self) -> bool:
        """Whether the negatives are known without `terms`."""
        return self.defines("of_negatives") or self.has_softplus_negatives

    @property
    def has_softplus_negatives(self) -> bool:
        """Whether `softplus_negatives` is said of the `terms` of this loss."""
        return self.softplus_negatives and self.defines("softplus_negatives")

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        """Optional: the sum of `terms` over cells whose target is 0, and its gradient.

        A score of -inf, an absent candidate, adds 0 to either. The gradient may be written over the scores.
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def of_negative_odds(self, e_QP: Tensor) -> tuple[Tensor, Tensor]:
        """Optional: the same from the exponentials of the scores, which are kept; define it if that is faster."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form of odds")

    def of_pairs(self, s_E: Tensor, y_E: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """Optional, in place of autograd: the sum of `terms` over pairs by their weights, and its gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form of pairs")


@dataclass
class Reduction(ABC):
    """Which pairs count, and with what weight: independent of the loss that gives their values."""

    needs: ClassVar[Literal["pool", "all"]] = "pool"  # candidates: the labels of the batch, or every label
    accepts: ClassVar[Literal["multiclass", "binary"]] = "multiclass"  # kind of loss that it reduces
    adds_up_to: ClassVar[Literal["one", "targets", "cells", "anything"]] = "anything"  # the weights of an anchor

    def targets(self, y_QP: Tensor) -> Tensor:
        """The targets that the loss sees; the raw ones unless the reduction normalises them. 0 stays 0."""
        return y_QP

    @abstractmethod
    def weights(self, y_QP: Tensor) -> Tensor:
        """w_QP >= 0, the weight of each pair. A multi-class reduction weighs positives only (y_QP > 0).

        It depends on the positives of each row alone: columns of zeros may be left out or moved. Randomness
        (drawing a positive) comes from torch's global generator, which the trainer seeds for every step.
        """

    def normaliser(self, w_QP: Tensor) -> Tensor:
        """What the weighted sum is divided by: the number of anchors that have a weight, unless overridden."""
        return (w_QP > 0).any(dim=1).sum().clamp(min=1)

    def cell_weight(self, cells: int) -> float:
        """Optional, of a reduction that weighs all cells alike: the weight of each of so many, the normaliser included.

        It spares the weight matrix, and lets a binary loss stream over blocks of all labels.
        """
        raise NotImplementedError(f"{type(self).__name__} weighs cells differently")

    @property
    def weighs_cells_alike(self) -> bool:
        """Whether `cell_weight` is defined, and not for the weights of a parent that a subclass replaced."""
        return _defined_with(self, "cell_weight", "weights", "normaliser")


# The model


class Encoder(nn.Module, ABC):
    """Text to vectors: the shared encoder of queries and labels. A dataclass: its fields are its options.

    Life: constructed with options, `fit` on all training texts (or `load_assets`), then `tokenise` once on the host and
    `forward` on the device for every chunk.
    """

    lr: float  # learning rate of its parameters

    @property
    @abstractmethod
    def width(self) -> int:
        """D of the vectors that `forward` returns; known after `fit`."""

    @abstractmethod
    def fit(self, texts: Sequence[str]) -> None:
        """Learn whatever is needed before tokenising (a vocabulary), and create the parameters."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> Ragged:
        """Texts to ids, once, on the host."""

    def fit_key(self) -> Mapping[str, Any] | None:
        """What `fit` learns depends on besides the texts, in terms of JSON, if it takes long enough to be kept.

        With a key, `load_assets` of what was saved after `fit` must give the same encoder as `fit`.
        """
        return None

    def token_key(self) -> Mapping[str, Any] | None:
        """What `tokenise` depends on besides the texts, in terms of JSON; None: tokens are made for every run.

        With a key, tokens are kept between runs, and texts are tokenised in blocks and in several processes: the ids of
        a text must not depend on the others. Known after `fit`.
        """
        return None

    @abstractmethod
    def collate(self, tokens: Ragged) -> Tokens:
        """Ids of one chunk to host tensors of the names that `forward` takes."""

    @abstractmethod
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        """x_BD of a chunk of B texts; `side` selects the tower where an encoder has two."""

    def transformer(self) -> Transformer | None:
        """Optional: the network behind it, if all that `forward` does is to pool its last states; exports write it."""
        return None

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write what `fit` learned besides parameters (vocabulary, tokenizer files)."""

    @abstractmethod
    def load_assets(self, folder: Path) -> None:
        """The counterpart of `save_assets`, in place of `fit`."""


class Head(nn.Module, ABC):
    """Encoder output to query and label vectors whose inner product is the score. A dataclass, as all parts."""

    labels_from: ClassVar[
        Literal["text", "table"]
    ]  # label vectors from the encoded label text, or from a row per label

    lr: float  # learning rate of its dense parameters
    temperature: float  # divides the inner products in training, for loss terms that set none

    @abstractmethod
    def build(self, width: int, num_labels: int) -> None:
        """Create the parameters for an encoder of this width and this many labels."""

    @property
    def score_bound(self) -> float:
        """What no inner product exceeds in absolute value, if that is known (1 at unit length): it saves work."""
        return math.inf

    @property
    def starts_from_texts(self) -> bool:
        """Whether `start` wants to be called."""
        return False

    def start(self, x_ND: Tensor, x_LD: Tensor, targets_NL: sp.csr_array) -> None:
        """Optional: set first values from the encoded training queries and labels, before the first step."""

    @abstractmethod
    def queries(self, x_BD: Tensor) -> Tensor:
        """q_BD of encoded query texts."""

    @abstractmethod
    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        """z_PD of labels: from their encoded texts `x_PD` (`labels_from == "text"`), or from the ids alone."""

    @property
    def label_rows(self) -> nn.Module | None:
        """Optional: the `RowTable` whose row l alone makes the vector of label l, by `of_rows`.

        A head that has one is trained against all labels in blocks of rows, without a matrix of all scores.
        """
        return None

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        """z_PD of rows of `label_rows`; randomness comes from torch's global generator, seeded for every block."""
        raise NotImplementedError(f"{type(self).__name__} has no table of label rows")

    def query_projection(self) -> tuple[nn.Linear, Literal["tanh", "none"]] | None:
        """Optional: the linear map and the activation that are all of `queries`, but for dropout and length.

        Exports for sentence-transformers write it.
        """
        return None


# Planning: on the host, numpy, pure functions of their keys


@dataclass
class Sampler(ABC):
    """Which queries form a batch."""

    needs_view: ClassVar[bool] = False  # true: plans from a view, taken anew every `refresh_every` epochs

    batch_size: int = option(1024, "queries of a batch", ge=1)

    @abstractmethod
    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
        """The batches of an epoch: a partition of `rows_N`, pure in its arguments.

        Args:
            rows_N: query ids that can be trained on (those with a positive), ascending.
            targets_NL: the labels of all training queries, not to be changed.
            view: the latest view, `None` before the first refresh.
        """


@dataclass
class Miner(ABC):
    """Where the negatives of a query come from, beyond the other queries' positives."""

    needs_view: ClassVar[bool] = False  # true: `refresh` is called with a view every `refresh_every` epochs

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        """Mine anew: up to `depth` labels for every training query, none of them in its row of `exclude_NL`."""

    def report(self) -> dict[str, float]:
        """Optional: what is worth logging of the latest refresh."""
        return {}

    @abstractmethod
    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] label ids drawn for these queries, -1 where there are fewer; none is in its row of `exclude_NL`."""


# The surroundings


@dataclass
class Index(ABC):
    """Search over label vectors by inner product."""

    exact: ClassVar[bool] = False  # it compares every label
    pays_up_to: ClassVar[float] = 1.0  # share of the labels beyond which exact search is about as fast
    can_write: ClassVar[bool] = False  # it has `write` and `read`: exports keep it

    @abstractmethod
    def build(self, z_LD: Tensor) -> None:
        """Take the label vectors (float32, on the device that searches)."""

    @abstractmethod
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK int64, scores_QK float32) by descending score, smaller id first among equals; id -1 pads."""

    @property
    def share(self) -> float:
        """About the share of the labels that a search compares, once built."""
        return 1.0

    def look_further(self) -> bool:
        """Optional: let searches compare more labels from now on; False if there are no more, or no way to."""
        return False

    def write(self, path: Path) -> None:
        """Optional: keep the built index in a file."""
        raise NotImplementedError(f"{type(self).__name__} cannot be written")

    def read(self, path: Path) -> None:
        """Take an index that `write` left, in place of `build`; the caller knows that the file is whole."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read")


@dataclass
class Reader(ABC):
    """A file format. The first line of its docstring says which files it looks for."""

    text: Literal["title", "title+content"] = option("title", "which text of a query or label is read")

    @abstractmethod
    def matches(self, folder: Path) -> bool:
        """Whether the folder (or the single file) looks like this format."""

    @abstractmethod
    def read(self, folder: Path) -> Dataset:
        """Read and validate everything; raise `DataError` with all problems found."""


@dataclass
class Baseline(ABC):
    """A method without training, shown beside the model so that one sees at once what learning brings."""

    @abstractmethod
    def rank(self, data: Dataset, k: int) -> Ranking:
        """The k best labels of every test query, filter pairs left out."""


@dataclass
class Tracker(ABC):
    """Watches a run and cannot change it. With `part(..., always=True)` every run has it, chosen or not."""

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Called once before the first record, with the run folder and the config, nested as in `config.yaml`."""

    @abstractmethod
    def log(self, record: Mapping[str, Any]) -> None:
        """One record of plain numbers and strings; docs/plugins.md lists what each has.

        `record["event"]`: start, step, refresh, eval, baselines, end.
        """

    def end(self) -> None:
        """Called once after the last record, or once another method has raised: what was opened is closed here."""
