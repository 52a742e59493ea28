"""Any objective as a loss of sentence-transformers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xmclab.api import Loss
from xmclab.errors import ConfigError, Problem
from xmclab.host.compose import build_objective
from xmclab.objectives.expr import parse_expression
from xmclab.objectives.objective import Objective, Term
from xmclab.python.given import Given, Parts


class SentenceTransformerLoss(nn.Module):
    """A loss for `SentenceTransformerTrainer`, on batches of pairs: columns of queries and of labels.

    Equal texts are one query or one label, so that a query is never trained against a label that another row of the
    batch pairs it with. A column `label` of integers says instead which labels are the same. Further columns are
    labels that no row is paired with: hard negatives.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: str | Objective | Loss = "ds",
        reduction: str = "psl",
        temperature: float = 0.05,
        *,
        symmetric: bool = True,
        normalise: bool = True,
        parts: Parts = (),
    ) -> None:
        """
        Args:
            model: the SentenceTransformer that is trained.
            objective: an expression such as `0.7*ds+0.3*bce`, what `xmclab.objective` returns, or a loss.
            reduction: for terms that name none; like the next two, for expressions and losses.
            temperature: divides the scores of terms that set none.
            symmetric: average query-to-label and label-to-query.
            normalise: score by cosines, not by inner products.
            parts: classes that the expression may name.

        Raises:
            ConfigError: the expression is wrong, or needs more than the labels of a batch.
        """
        super().__init__()
        self.model, self.normalise = model, normalise
        self.objective = _objective(objective, reduction, temperature, 0.5 if symmetric else 1.0, parts)
        for term in self.objective.terms:
            if term.reduction.needs == "all":
                reason = f"the reduction of {term.name!r} needs all labels, and a batch has some"
                raise ConfigError(Problem("objective", reason, "choose another, such as psl"))
            if term.loss.targets == "inverse_propensity":
                raise ConfigError(Problem("objective", f"{term.name!r} needs label propensities, and a batch has none"))

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None) -> Tensor:
        """The value of a batch."""
        queries, *columns = sentence_features
        if not columns:
            raise ConfigError(Problem("train_dataset", "has a single column", "a query and a label are needed"))
        q_BD, *z = [self._vectors(features) for features in (queries, *columns)]
        rows, row_B = _distinct(_texts(queries, len(q_BD)) or range(len(q_BD)))
        names = [_texts(features, len(z_BD)) for features, z_BD in zip(columns, z, strict=True)]
        if labels is not None:
            names = _by_number(names, labels.flatten().tolist(), [len(z_BD) for z_BD in z])
        if None in names:
            hint = "add a column `label` of integers"
            raise ConfigError(Problem("train_dataset", "labels cannot be told apart by their tokens", hint))
        places, column_E = _distinct([name for some in names for name in some or ()])
        positives_QP = torch.zeros(len(rows), len(places), dtype=torch.bool, device=q_BD.device)
        positives_QP[row_B, column_E[: len(row_B)]] = True
        value: Tensor = self.objective(q_BD[rows] @ torch.cat(z)[places].T, positives_QP)
        return value

    def _vectors(self, features: Mapping[str, Any]) -> Tensor:
        vectors: Tensor = self.model(dict(features))["sentence_embedding"]
        return F.normalize(vectors, dim=1) if self.normalise else vectors

    def get_config_dict(self) -> dict[str, Any]:
        """What a model card says of the loss."""
        terms = "+".join(f"{term.weight:g}*{term.name}" for term in self.objective.terms)
        symmetric = self.objective.q2l_share == 0.5
        return {"objective": terms, "temperature": self.objective.temperature, "symmetric": symmetric}


def _objective(
    objective: str | Objective | Loss, reduction: str, temperature: float, q2l_share: float, parts: Parts
) -> Objective:
    if isinstance(objective, Objective):
        return objective
    registry = Given.of(parts=parts).registry
    if isinstance(objective, Loss):
        term = Term(type(objective).__name__, 1.0, objective, registry.get("reduction", reduction)())
        return Objective([term], temperature, q2l_share)
    return build_objective(parse_expression(objective), reduction, temperature, q2l_share, registry.get)


def _texts(features: Mapping[str, Any], size: int) -> list[Hashable] | None:
    """The tokens of each text, by which equal ones are known; None if they are not there."""
    ids = features.get("input_ids")
    if not isinstance(ids, Tensor):
        return None
    if isinstance(offsets := features.get("offsets"), Tensor):  # one after the other
        found = [tuple(some.tolist()) for some in ids.tensor_split(offsets.cpu()[1:])]
    elif ids.ndim == 2:
        mask = features.get("attention_mask")
        kept = ids.new_ones(ids.shape) if mask is None else mask
        found = [tuple(row[seen > 0].tolist()) for row, seen in zip(ids.cpu(), kept.cpu(), strict=True)]
    else:
        return None
    return list[Hashable](found) if len(found) == size else None


def _by_number(
    names: Sequence[list[Hashable] | None], numbers: Sequence[Hashable], sizes: Sequence[int]
) -> list[list[Hashable] | None]:
    """Labels by their numbers; those of further columns too, where their text has one."""
    first, *others = names
    known: dict[Hashable, Hashable] = dict(zip(first, numbers, strict=True)) if first else {}
    alone: list[list[Hashable]] = [[(column, row) for row in range(size)] for column, size in enumerate(sizes[1:])]
    rest = [
        [known.get(name, name) for name in some] if some else each for some, each in zip(others, alone, strict=True)
    ]
    return [list(numbers), *rest]


def _distinct(names: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Where each different name is first, and for every name which of these it is."""
    first: dict[Hashable, int] = {}
    places: list[int] = []
    found = []
    for place, name in enumerate(names):
        if name not in first:
            first[name] = len(places)
            places.append(place)
        found.append(first[name])
    return places, found
