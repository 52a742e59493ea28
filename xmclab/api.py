"""Every interface of xmclab and every value passed between parts: the one file a plugin author needs to read.

A part is a dataclass (possibly an `nn.Module`) whose annotated fields are its options: `option(...)` gives them
defaults, bounds and help, and a recipe or the command line sets them (`loss.de.ds.temperature=0.1`).

Shape suffixes, used throughout the code:
    N training queries · L labels · Q queries of a batch · P candidate labels of a batch (the pool, or all L)
    D vector width · B texts of a chunk, or rows or labels of a block · T tokens · K results of a search
    E pairs of a list · I ignored pairs
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.keys import Keys
from xmclab.options import linear, log, one_of, option

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Baseline",
    "Batch",
    "BinaryLoss",
    "Block",
    "Dataset",
    "Encoder",
    "Head",
    "Index",
    "Kernels",
    "Keys",
    "LabelSpace",
    "Loss",
    "Miner",
    "MultiClassLoss",
    "Pairs",
    "Ragged",
    "Ranking",
    "Reader",
    "Reduction",
    "Sampler",
    "Search",
    "Side",
    "Split",
    "TextFields",
    "Tokens",
    "Tracker",
    "Transform",
    "Transformer",
    "View",
    "linear",
    "log",
    "one_of",
    "option",
]

Side = Literal["query", "label"]
TextFields = Literal["title", "content", "title+content"]  # what is read of a query or label
Tokens = dict[str, Any]  # input of an encoder, with names of its choice; only tensors are moved to the device


# Values


@dataclass(frozen=True)
class Split:
    """Queries and their labels: the training or test part of a data set."""

    texts: Sequence[str]  # [N]
    names: Sequence[str]  # [N] query ids, from the reader
    targets_NL: sp.csr_array  # float32, relevance > 0 of each true pair; sorted, no duplicates
    filter_NL: sp.csr_array  # nonzero: exclude this pair from rankings, and never use it as a negative
    candidates_NL: sp.csr_array | None = None  # entries: labels that `Miner.candidates` lists, positives among them

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Dataset:
    """A validated data set, from any file format."""

    name: str
    train: Split
    test: Split
    label_texts: Sequence[str]  # [L]
    label_names: Sequence[str]  # [L]
    fingerprint: str  # sha256 of the bytes it was read from
    original: Split | None = None  # the training queries before any transform; None: there was none
    held_out: bool = False  # the reader cut the test queries from the training queries, as the files have no such part

    @property
    def num_labels(self) -> int:
        return len(self.label_texts)

    @property
    def real(self) -> Split:
        """The training queries as they were read, which say how frequent a label is."""
        return self.train if self.original is None else self.original


@dataclass(frozen=True)
class Ragged:
    """Token (or feature) ids of many texts without padding: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: NDArray[np.int32]  # [T]
    offsets: NDArray[np.int64]  # [texts + 1]
    weights: NDArray[np.float32] | None = None  # [T] weight of each id, for encoders that use weights
    shortened: int = 0  # number of texts truncated to the maximum length of the encoder

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def join(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate the texts of at least one part."""
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
        """The texts at these rows, in this order."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        where = np.arange(offsets[-1])
        where += np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.ids.take(where), offsets, None if self.weights is None else self.weights.take(where))


@dataclass(frozen=True)
class Transformer:
    """A network and tokenizer of the transformers library, and how its states are pooled to a vector."""

    network: Any
    tokenizer: Any
    pooling: Literal["mean", "cls"]
    max_length: int


class _Vectors:
    """A field that takes an array or a tensor, and is read as an array: a tensor is copied from its device once."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.copy = name, f"{name} on the host"

    def __set__(self, view: View, given: NDArray[np.float32] | Tensor) -> None:
        vars(view)[self.name] = given

    def __get__(self, view: View | None, owner: type) -> NDArray[np.float32]:
        if view is None:
            raise AttributeError(self.name)  # so the field has no default
        given, held = vars(view)[self.name], vars(view)
        if isinstance(given, Tensor) and self.copy not in held:
            held[self.copy] = given.detach().cpu().numpy()
        array: NDArray[np.float32] = held.get(self.copy, given)
        return array


@dataclass(frozen=True)
class View:
    """Vectors of all queries and labels from the current model (dropout off), computed at every refresh."""

    epoch: int  # the epoch of the step that follows
    queries_ND: _Vectors = _Vectors()  # search vectors of all training queries, a float32 array
    labels_LD: _Vectors = _Vectors()  # search vectors of all labels
    device: str = "cpu"  # device of the run, which searches should use
    batch: int = 0  # batches of that epoch before it; above 0, they were planned with an earlier view

    @property
    def q_ND(self) -> Tensor:
        """`queries_ND` on the device of the run; do not modify."""
        return self._on_device("queries_ND")

    @property
    def z_LD(self) -> Tensor:
        """`labels_LD` on the device of the run; do not modify."""
        return self._on_device("labels_LD")

    def to_host(self) -> View:
        """This view, with the memory of the device freed; vectors that are asked for there are sent again."""
        vars(self).update(queries_ND=self.queries_ND, labels_LD=self.labels_LD)
        return self

    def _on_device(self, name: str) -> Tensor:
        given = vars(self)[name]
        return (given if isinstance(given, Tensor) else torch.from_numpy(given)).to(self.device)


@dataclass(frozen=True)
class Batch:
    """The input of one step: queries, candidate labels, and which pairs are positive or ignored.

    All true pairs within the batch are listed, no matter which query brought the label into the pool, so that a true
    positive is never used as a negative.
    """

    rows_Q: NDArray[np.int64]  # query ids; each query has a positive in the pool
    labels_P: NDArray[np.int64]  # unique label ids, ascending
    positives: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # (row in Q, column in P, target > 0)
    ignored: tuple[NDArray[np.int64], NDArray[np.int64]]  # filter pairs in the pool: neither positive nor negative
    drawn_E: NDArray[np.bool_] | None = None  # of the positives, those that their own query drew; None: all
    dropped: int = 0  # planned queries without a positive in the pool; they are not trained on
    missing: int = 0  # mined negatives that were requested but not found


@dataclass(frozen=True)
class Ranking:
    """Search results: label ids by descending score, padded with -1 if there are fewer than K."""

    ids_NK: NDArray[np.int64]
    scores_NK: NDArray[np.float32]


# The mathematics of training


@dataclass(frozen=True)
class Pairs:
    """The positives of a score matrix: candidate `column_E[e]` is a positive of anchor `row_E[e]`, for every e."""

    row_E: Tensor
    column_E: Tensor
    target_E: Tensor  # > 0
    weight_E: Tensor  # >= 0, weight of the pair in the sum


@dataclass
class Loss(ABC):
    """The value of an (anchor, candidate) pair. A loss knows nothing about models, reductions, devices or batches.

    Subclass `MultiClassLoss` if the positives of an anchor compete with its other candidates (softmax family), or
    `BinaryLoss` if cells are independent (BCE family), and implement `terms`.
    """

    kind: ClassVar[Literal["multiclass", "binary"]]
    targets: ClassVar[Literal["relevance", "inverse_propensity"]] = "relevance"  # or relevance / label propensity

    laws_not_kept: ClassVar[Mapping[str, str]] = {}  # laws of `xmclab check` that do not apply -> why

    temperature: float | None = option(None, "divides the scores; none: that of the head or objective", gt=0)

    @abstractmethod
    def terms(self, s_QP: Tensor, y_QP: Tensor) -> Tensor:
        """The loss of every pair.

        Args:
            s_QP: scores, already divided by the temperature, in float32 or float64; -inf means that the candidate
                is absent for this anchor.
            y_QP: targets of the same dtype; 0 for a negative, > 0 (usually 1) for a positive.

        Returns:
            l_QP: the value of each pair. Only the positives of a multi-class loss are used; other cells may have any
            differentiable value.
        """

    closed_form: ClassVar[str] = ""  # optional method that avoids the graph of `terms` and most of its memory

    @property
    def has_closed_form(self) -> bool:
        """Whether the method is defined, for the current `terms` (a subclass may have replaced them)."""
        return self.defines(self.closed_form)

    def defines(self, word: str) -> bool:
        """Whether an optional method or attribute is defined for the `terms` of this loss."""
        return _defined_with(self, word, "terms")


def _defined_with(part: object, word: str, *others: str) -> bool:
    """Whether the class that last defines any of these names defines `word`.

    A subclass that overrides one of the others without `word` makes the inherited `word` invalid.
    """
    definers = [cls for cls in type(part).__mro__ if {word, *others} & vars(cls).keys()]
    return word in vars(definers[0]) and definers[0].__module__ != __name__


@dataclass
class MultiClassLoss(Loss):
    """A loss that compares a positive with the other candidates of its anchor."""

    kind = "multiclass"
    closed_form = "value_and_grad"

    def value_and_grad(self, s_E: Tensor, negatives_Q: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Optional: the value from the scores of the positives and one number for the negatives of each anchor.

        For losses that depend on the negatives only through their log-sum-exp; avoids a matrix of losses.

        Args:
            s_E: scores of the pairs, already divided by the temperature.
            negatives_Q: log-sum-exp of the scores of each anchor's negatives; -inf if it has none.

        Returns:
            The weighted sum over the pairs, and its gradients with respect to `s_E` and `negatives_Q`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form")


@dataclass
class BinaryLoss(Loss):
    """A loss of each cell on its own; targets may be any real number in [0, 1]."""

    kind = "binary"
    closed_form = "of_negatives"

    softplus_negatives: ClassVar[bool] = False  # negatives cost log(1 + exp s); replaces `of_negatives`

    @property
    def has_closed_form(self) -> bool:
        """Whether the sum over negatives can be computed without `terms`."""
        return self.defines("of_negatives") or self.has_softplus_negatives

    @property
    def has_softplus_negatives(self) -> bool:
        """Whether `softplus_negatives` is set for the `terms` of this loss."""
        return self.softplus_negatives and self.defines("softplus_negatives")

    def of_negatives(self, s_QP: Tensor) -> tuple[Tensor, Tensor]:
        """Optional: the sum of `terms` over cells whose target is 0, and its gradient.

        A score of -inf (an absent candidate) adds 0 to both. The gradient may overwrite the scores.
        """
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def of_pairs(self, s_E: Tensor, y_E: Tensor, weight_E: Tensor) -> tuple[Tensor, Tensor]:
        """Optional, instead of autograd: the weighted sum of `terms` over pairs, and its gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form for pairs")


@dataclass
class Reduction(ABC):
    """Which pairs count, and with what weight, for any loss."""

    needs: ClassVar[Literal["pool", "all"]] = "pool"  # candidates: the labels of the batch, or every label
    accepts: ClassVar[Literal["multiclass", "binary"]] = "multiclass"  # kind of loss
    adds_up_to: ClassVar[Literal["one", "targets", "cells", "anything"]] = "anything"  # sum of the weights of an anchor
    among: ClassVar[Literal["positives", "drawn"]] = "positives"  # what `weights` sees: all, or those their query drew

    def targets(self, y_QP: Tensor) -> Tensor:
        """The targets passed to the loss; override to normalise each row. 0 must stay 0."""
        return y_QP

    @abstractmethod
    def weights(self, y_QP: Tensor) -> Tensor:
        """w_QP >= 0, the weight of each pair. A multi-class reduction gives weight to positives only (y_QP > 0).

        With `among = "drawn"`, y_QP is 0 for positives that only other queries drew; the loss still sees them.
        Weights depend only on the positives of each row: columns of zeros may be dropped or moved. Randomness
        (drawing a positive) comes from torch's global generator, which the trainer seeds for every step and head.
        """

    def normaliser(self, w_QP: Tensor) -> Tensor:
        """Optional: the divisor of the weighted sum, instead of the number of anchors with a positive weight.

        Like weights, that of a multi-class reduction must not depend on columns of zeros.
        """
        raise NotImplementedError(f"{type(self).__name__} has no normaliser of its own")

    def cell_weight(self, cells: int) -> float:
        """Optional, if all cells weigh the same: the weight of each of this many cells, including the normaliser.

        Avoids the weight matrix, and lets a binary loss stream over blocks of all labels.
        """
        raise NotImplementedError(f"{type(self).__name__} does not weigh all cells alike")

    def defines(self, word: str) -> bool:
        """Whether it has this optional method."""
        return _defined_with(self, word)

    @property
    def weighs_cells_alike(self) -> bool:
        """Whether `cell_weight` is defined, for the current `weights` and `normaliser`."""
        return _defined_with(self, "cell_weight", "weights", "normaliser")


@dataclass(frozen=True)
class Block:
    """Scores of a block of labels that need not exist as a matrix: s_QB = scale * q z'.

    Listed cells are positives or ignored pairs, so none is a negative. Those whose column is not in [0, B) belong to
    another block and are skipped.
    """

    q_QD: Tensor
    z_BD: Tensor  # of the same dtype, which may be half precision
    scale: float
    row_C: Tensor
    column_C: Tensor  # no cell is listed twice


@dataclass
class Kernels(ABC):
    """Passes over scores that are never written, for a head trained on all labels: `kernels=NAME`.

    They take the place of those of `objectives/engine.py`, which define them, where `declines` has no objection.
    Scores and sums are at least float32.
    """

    @abstractmethod
    def declines(self, q_QD: Tensor) -> str:
        """Why such operands (their dtype and device) are left to torch; empty: they are not."""

    @abstractmethod
    def log_sums(self, block: Block, by_label: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """The first pass: (n_Q, n_B, s_C).

        The log-sum-exp of each query over its negatives, and of each label if wanted (-inf if there are none), and the
        scores of the listed cells; those of another block may be anything finite.
        """

    @abstractmethod
    def gradient(
        self,
        block: Block,
        queries: tuple[Tensor, Tensor] | None,
        labels: tuple[Tensor, Tensor] | None,
        softplus: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The second pass: (g_QB, value, s_C).

        Args:
            queries: (n_Q, slope_Q), the log-sum-exp of each query and its slope; `labels` likewise.
            softplus: factor of the slope of log(1 + exp s).

        Returns:
            g_ij = slope_i exp(s_ij - n_i) + slope_j exp(s_ij - n_j) + softplus / (1 + exp -s_ij) for negatives, 0 for
            listed cells, in the dtype of the operands and contiguous; the sum of log(1 + exp s_ij) over negatives, 0
            without `softplus`; and the scores of the listed cells, as in the first pass.
        """


# The model


class Encoder(nn.Module, ABC):
    """Text to vectors: the shared encoder of queries and labels. A dataclass, like all parts.

    Life cycle: constructed with options, then `fit` on all training texts (or `load_assets`), then `tokenise` once on
    the host, then `forward` on the device for every chunk.

    Dropout: use `nn.Dropout` on inputs whose first dimension is the texts of the chunk, in their order ([B, D],
    [B, T, D], [B, H, T, T]). In training it then drops by text and place, so `encode.chunk`, the order of texts and
    padding change no number. Anything else, such as `F.dropout`, draws from torch's global generator, which is seeded
    for every chunk: replayed chunks draw the same, but another `encode.chunk` draws something else.
    """

    lr: float  # learning rate of its parameters

    @property
    @abstractmethod
    def width(self) -> int:
        """D, the width of the vectors that `forward` returns; known after `fit`."""

    @abstractmethod
    def fit(self, texts: Sequence[str]) -> None:
        """Learn what tokenising needs (such as a vocabulary), and create the parameters."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str]) -> Ragged:
        """Texts to ids; called once, on the host."""

    def fit_key(self) -> Mapping[str, Any] | None:
        """Optional: what `fit` depends on besides the texts, as JSON values; set it to cache a slow `fit`.

        With a key, `load_assets` after `save_assets` must give the same encoder as `fit`.
        """
        return None

    def token_key(self) -> Mapping[str, Any] | None:
        """Optional: what `tokenise` depends on besides the texts, as JSON values; None: no caching.

        With a key, tokens are cached between runs, and texts are tokenised in blocks by several processes: the ids of a
        text must not depend on other texts. Known after `fit`.
        """
        return None

    @abstractmethod
    def collate(self, tokens: Ragged) -> Tokens:
        """Ids of one chunk to host tensors, as the `tokens` of `forward`."""

    @abstractmethod
    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        """x_BD for a chunk of B texts; `side` selects the tower of a two-tower encoder."""

    def report(self) -> dict[str, Any]:
        """Optional: choices that depend on the device and on autocast, such as a kernel; the run folder keeps them."""
        return {}

    def transformer(self) -> Transformer | None:
        """Optional, for exports: the network behind it, if `forward` only pools its last hidden states."""
        return None

    def graph_bytes(self, tokens: int, half: bool) -> int:
        """Optional: about what `forward` keeps on a GPU for the gradient of this many tokens; `xmclab plan` adds it up.

        Args:
            half: whether products are in half precision.
        """
        return 0

    @abstractmethod
    def save_assets(self, folder: Path) -> None:
        """Write what `fit` learned, except parameters (vocabulary, tokenizer files)."""

    @abstractmethod
    def load_assets(self, folder: Path) -> None:
        """Read what `save_assets` wrote; called instead of `fit`."""


class Head(nn.Module, ABC):
    """Encoder output to query and label vectors whose inner product is the score. A dataclass, like all parts.

    A model has up to two, in the slots `head.de` and `head.clf`; each minimises its own loss. An `nn.Dropout` on inputs
    whose first dimension is the queries, or the labels, drops by their ids, as in an `Encoder` by text.
    """

    labels_from: ClassVar[Literal["text", "table"]]  # label vectors come from encoded texts, or from a row per label

    lr: float  # learning rate of its dense parameters
    temperature: float  # divides the scores in training, for loss terms that set none

    @abstractmethod
    def build(self, width: int, num_labels: int) -> None:
        """Create the parameters for an encoder of this width and this many labels."""

    @property
    def score_bound(self) -> float:
        """An upper bound of absolute scores, if known (1 for unit vectors); saves work."""
        return math.inf

    @property
    def starts_from_texts(self) -> bool:
        """Whether to call `start`."""
        return False

    def count(self, targets_NL: sp.csr_array) -> None:
        """Optional: learn how frequent each label is among the training queries; before `start`."""

    def start(self, x_ND: Tensor, x_LD: Tensor, targets_NL: sp.csr_array) -> None:
        """Optional: initialise from the encoded training queries and labels, before the first step."""

    @abstractmethod
    def queries(self, x_BD: Tensor) -> Tensor:
        """q_BD for encoded query texts."""

    @abstractmethod
    def labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        """z_PD for labels: from their encoded texts `x_PD` (`labels_from == "text"`), or from the ids alone.

        In searches, ids of labels known by their texts alone follow those of the training labels.
        """

    def search_queries(self, x_BD: Tensor) -> Tensor:
        """q_BD as searched; by default at unit length."""
        return F.normalize(self.queries(x_BD).float(), dim=-1)

    def search_labels(self, x_PD: Tensor | None, labels_P: Tensor) -> Tensor:
        """z_PD as searched; by default at unit length.

        Label vectors may have one number more than query vectors: a bias, which is added to the score.
        """
        return F.normalize(self.labels(x_PD, labels_P).float(), dim=-1)

    @property
    def searched_at_unit_length(self) -> bool:
        """Whether search vectors are at unit length, apart from a bias; for exports."""
        return True

    @property
    def label_rows(self) -> nn.Module | None:
        """Optional: the `RowTable` whose row l alone determines the vector of label l, through `of_rows`.

        Training against all labels then streams over blocks of rows, without the full score matrix.
        """
        return None

    def of_rows(self, rows_PD: Tensor) -> Tensor:
        """z_PD from rows of `label_rows`, without trained parameters: only the rows get a gradient.

        An `nn.Dropout` drops by label; other draws come from torch's global generator, seeded for every block.
        """
        raise NotImplementedError(f"{type(self).__name__} has no table of label rows")

    def query_projection(self) -> tuple[nn.Linear, Literal["tanh", "none"]] | None:
        """Optional: the linear map and activation of searched queries, if only dropout and normalisation come with it.

        Used by exports for sentence-transformers.
        """
        return None


# Planning: numpy on the host, pure functions of their keys


@dataclass
class Sampler(ABC):
    """Which queries form a batch."""

    needs_view: ClassVar[bool] = False  # true: `plan` gets the view of the latest refresh

    batch_size: int = option(1024, "queries per batch", ge=1)

    @abstractmethod
    def plan(
        self, rows_N: NDArray[np.int64], targets_NL: sp.csr_array, epoch: int, view: View | None, keys: Keys
    ) -> list[NDArray[np.int64]]:
        """The batches of an epoch, a partition of `rows_N`; must be a pure function.

        Args:
            rows_N: ids of the queries with a positive, ascending.
            targets_NL: the labels of all training queries; do not modify.
            view: the latest view; None before the first refresh.
        """


@dataclass
class Miner(ABC):
    """The source of negatives for a query, besides the positives of other queries."""

    needs_view: ClassVar[bool] = False  # true: `refresh` is called with a new view, as often as the settings say

    index: Index = field(init=False, repr=False, compare=False)  # of the run, not yet built; for use in `refresh`

    @property
    def candidates(self) -> str | None:
        """Optional: a file of labels for each training query, read and checked as `data.train.candidates_NL`."""
        return None

    def prepare(self, data: Dataset, exclude_NL: sp.csr_array, keys: Keys) -> None:
        """Optional: compute what needs no model, once before training; none of it in a query's row of `exclude_NL`.

        Called if negatives are drawn at all. A resumed run calls it again, before `load_state`: it must be repeatable.
        """

    @property
    def mining_depth(self) -> int:
        """Optional: the `depth` of every refresh; 0: the labels that a query draws until the next one."""
        return 0

    def refresh(self, view: View, exclude_NL: sp.csr_array, depth: int, keys: Keys) -> None:
        """Mine up to `depth` labels for every training query, none of them in its row of `exclude_NL`."""

    def report(self) -> dict[str, Any]:
        """Optional: what to log about the latest refresh; as `index`, the report of its index."""
        return {}

    def state(self) -> Mapping[str, NDArray[Any]] | None:
        """Optional: the arrays that the latest refresh left, for checkpoints; they must not change in place.

        Without them, a run that is resumed calls `refresh` again with the view of that time.
        """
        return None

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Optional: take the arrays of `state` instead of a refresh."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load")

    @abstractmethod
    def sample(
        self, rows_Q: NDArray[np.int64], n: int, exclude_NL: sp.csr_array, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """[Q, n] label ids drawn for these queries, padded with -1; none is in its query's row of `exclude_NL`."""


# Search, data and observation


@dataclass
class Index(ABC):
    """Search over label vectors by inner product."""

    can_write: ClassVar[bool] = False  # implements `write` and `read`, so exports include it

    @abstractmethod
    def build(self, z_LD: Tensor) -> None:
        """Build from label vectors (float32, on the device that searches)."""

    @abstractmethod
    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK int64, scores_QK float32) by descending score, ties by ascending id; padded with id -1."""

    def tune(self, q_ND: Tensor, rng: np.random.Generator) -> None:
        """Optional, called after `build`: adapt to all queries of the coming searches; draw samples from `rng`."""

    def report(self) -> dict[str, Any]:
        """Optional: `name`, `options` and `recall` of the index that `tune` chose.

        The run folder keeps it, and later commands use that index.
        """
        return {}

    @property
    def shares_products(self) -> bool:
        """Optional: whether it has `search_parts`; known once built."""
        return False

    def search_parts(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        """Optional: the results of several searches in one pass over the labels.

        Args:
            widths: of runs of columns, of queries and labels alike.

        Returns:
            What `search` finds in an index of each run of columns alone, in order, and last in that of all columns.
        """
        raise NotImplementedError(f"{type(self).__name__} searches all columns together")

    @property
    def shape(self) -> tuple[int, int] | None:
        """Optional: (L, D) of the label vectors it was built from; what was read is checked against the labels."""
        return None

    def write(self, path: Path) -> None:
        """Optional: save the built index to a file."""
        raise NotImplementedError(f"{type(self).__name__} cannot be written")

    def read(self, path: Path) -> None:
        """Optional: load what `write` saved, instead of `build`; the caller has verified the file."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read")


class LabelSpace(ABC):
    """The labels of a trained model, with vectors by head; for use in searches.

    Heads are searched one by one (`de`) or together (`de+clf`), which adds their scores up.
    """

    heads: tuple[str, ...]
    num_labels: int  # with vectors of all heads; ids from there on are labels added later, by their texts

    @abstractmethod
    def nearest(self, heads: str, queries: Mapping[str, Tensor], k: int) -> tuple[Tensor, Tensor]:
        """(ids_NK, scores_NK) of the best labels, by the index of the run, as `Index.search` returns them."""

    @abstractmethod
    def scores(self, heads: str, queries: Mapping[str, Tensor], row_E: Tensor, label_E: Tensor) -> Tensor:
        """[E] the scores of pairs of a query, by its row, and a label below `num_labels`."""


@dataclass
class Search(ABC):
    """Ranks labels with the vectors of a trained model; one part may offer several rankings, each with a name.

    Life cycle: constructed with options, then `fit` (or `load`) if it reads training queries, then `rank`.
    Query vectors come by head, those of N queries as `q_ND`, without a bias.
    """

    reads_training_queries: ClassVar[bool] = False  # true: implements `fit`, `save` and `load`

    index: Index = field(init=False, repr=False, compare=False)  # of the run, not yet built; for use in `fit`

    @abstractmethod
    def names(self, heads: Sequence[str]) -> tuple[str, ...]:
        """The rankings that it offers for a model with these heads; the last one is the default."""

    @abstractmethod
    def rank(self, name: str, queries: Mapping[str, Tensor], labels: LabelSpace, k: int) -> tuple[Tensor, Tensor]:
        """(ids_NK, scores_NK) of one of its rankings, as `Index.search` returns them."""

    def fit(self, queries: Mapping[str, Tensor], targets_NL: sp.csr_array) -> None:
        """Optional: take the vectors and the labels of the training queries."""

    def save(self, folder: Path) -> None:
        """Optional: write what `fit` learned."""

    def load(self, folder: Path, device: torch.device) -> None:
        """Optional: read what `save` wrote; called instead of `fit`."""


@dataclass
class Reader(ABC):
    """A file format. The first line of its docstring says which files it looks for."""

    filters_same_text: ClassVar[bool] = False  # data.same_text=auto filters; for files that rarely list such pairs

    text: TextFields = option("title", "text fields to read for queries and labels")
    query_text: TextFields | None = option(None, "the same for queries; none: as `text`; set by data.query_text")
    label_text: TextFields | None = option(None, "the same for labels; none: as `text`; set by data.label_text")

    @abstractmethod
    def matches(self, folder: Path) -> bool:
        """Whether the folder (or the single file) looks like this format."""

    @abstractmethod
    def read(self, folder: Path) -> Dataset:
        """Read and validate everything; raise `DataError` with all problems."""

    def read_queries(self, source: Path, data: Dataset, folder: Path) -> Dataset:
        """Optional: a data set whose test queries are those at `source`, for use with `data`, read from `folder`.

        By default another data set of this format. The caller checks that its labels are those of `data`.
        """
        return self.read(source)

    def validation_queries(self, folder: Path) -> Path | None:
        """Optional: a source of validation queries that comes with the data, for `read_queries`."""
        return None

    def text_of(self, side: Side) -> TextFields:
        """The text fields to read on a side."""
        return (self.query_text if side == "query" else self.label_text) or self.text


@dataclass
class Transform(ABC):
    """Changes what is trained on, such as by extra training queries. What is measured stays as it is."""

    @abstractmethod
    def apply(self, data: Dataset) -> Dataset:
        """The data set with other training queries (`train`), and nothing else changed; a pure function.

        Transforms are applied one after the other. `data.real` are the training queries without any of them.
        """


@dataclass
class Baseline(ABC):
    """Another method, shown next to the model for comparison."""

    trains: ClassVar[bool] = False  # takes minutes rather than seconds: used by name only, never through `baseline=all`

    @abstractmethod
    def rank(self, data: Dataset, k: int) -> Ranking:
        """The k best labels of every test query, without filter pairs."""


@dataclass
class Tracker(ABC):
    """Observes a run without changing it. With `part(..., always=True)` every run has it, chosen or not."""

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Called once, before the first record, with the run folder and the config, nested as in `config.yaml`."""

    @abstractmethod
    def log(self, record: Mapping[str, Any]) -> None:
        """Receive one record of plain numbers and strings; docs/plugins.md lists the fields.

        `record["event"]`: start (or resume), step, refresh, eval, baselines, end.
        """

    def end(self) -> None:
        """Called once, after the last record or when another method raised; close files here."""
