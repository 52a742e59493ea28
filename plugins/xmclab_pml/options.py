"""Options from the signatures of pytorch-metric-learning, and its objects from options."""

from __future__ import annotations

import inspect
from dataclasses import make_dataclass
from typing import Any, Literal

from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity, LpDistance
from torch import Tensor

from xmclab.api import option
from xmclab.errors import ConfigError, did_you_mean
from xmclab.host import make_part
from xmclab.objectives import parse_expression

Field = tuple[str, Any, Any]  # name, type, dataclass field

UNIT = 1 - 1e-6  # cosines are kept inside, where an angle and a distance have a slope


class Cosine(CosineSimilarity):  # type: ignore[misc]
    """Passes scores through: they take the place of embeddings and come back as the matrix."""

    def forward(self, s_QP: Tensor, _: object = None) -> Tensor:
        return s_QP.clone()


class Angle(CosineSimilarity):  # type: ignore[misc]
    """Scores as cosines of angles, clamped to [-1, 1]."""

    def forward(self, s_QP: Tensor, _: object = None) -> Tensor:
        return s_QP.clamp(-UNIT, UNIT)


class Euclidean(LpDistance):  # type: ignore[misc]
    """The distance of unit vectors from their scores: |q - z|^2 = 2 - 2 s."""

    def forward(self, s_QP: Tensor, _: object = None) -> Tensor:
        squared_QP = 2 - 2 * s_QP
        return squared_QP if self.power == 2 else squared_QP.clamp(min=2 - 2 * UNIT).sqrt()


DISTANCES: dict[str, BaseDistance] = {
    "cosine": Cosine(),
    "euclidean": Euclidean(),
    "squared_euclidean": Euclidean(power=2),
}

# What signatures lack annotations for, or a score matrix cannot serve.
NO_LABEL_PAIRS = "only False: True needs scores between labels, which a loss does not see"
NO_PARAMETERS = "a loss here has no parameters to learn"
TYPES: dict[str, tuple[Any, str]] = {
    "triplets_per_anchor": (int | Literal["all"], "all, or how many to draw at every step"),
    "type_of_triplets": (Literal["all", "hard", "semihard", "easy"], ""),
    "pos_strategy": (Literal["easy", "semihard", "hard", "all"], ""),
    "neg_strategy": (Literal["easy", "semihard", "hard", "all"], ""),
    "allowed_pos_range": (tuple[float, float] | None, ""),
    "allowed_neg_range": (tuple[float, float] | None, ""),
    "num_bins": (int, ""),
    "pos_per_bin": (int, ""),
    "neg_per_bin": (int, ""),
    "swap": (Literal[False], NO_LABEL_PAIRS),
    "learn_beta": (Literal[False], f"only False: {NO_PARAMETERS}"),
    "num_classes": (None, f"only none: {NO_PARAMETERS}"),
}


def parameters(theirs: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class of theirs, without those of its bases."""
    found = inspect.signature(theirs).parameters
    return {name: parameter for name, parameter in found.items() if parameter.kind is not parameter.VAR_KEYWORD}


def option_fields(theirs: type, distances: list[str]) -> list[Field]:
    """A typed option for each argument of a class of theirs, and one for its distance where there is a choice."""
    fields = [_field(name, parameter) for name, parameter in parameters(theirs).items() if name != "temperature"]
    if len(distances) > 1:
        text = "how scores become distances; euclidean: that of unit vectors with this inner product"
        fields.append(("distance", Literal[tuple(distances)], option(default_distance(theirs), text)))
    return fields


def _field(name: str, parameter: inspect.Parameter) -> Field:
    default = parameter.default
    kind, text = TYPES.get(name, (None, ""))
    if name not in TYPES:
        kind = type(default) if parameter.annotation is parameter.empty else parameter.annotation
        kind = float if kind is int and parameter.annotation is parameter.empty else kind  # margin=1 means 1.0
        kind = kind | None if default is None else kind
    return name, kind, option(default, text)


def default_distance(theirs: type) -> str:
    """The name of the default distance of a class of theirs."""
    distance = theirs().distance
    if distance.is_inverted:
        return "cosine"
    return "squared_euclidean" if distance.power == 2 else "euclidean"


def allowed_distances(theirs: type) -> list[str]:
    """The names of the distances that a class of theirs accepts; one with a temperature gets scores divided by it."""
    if "temperature" in parameters(theirs):
        return ["cosine"]
    return [name for name, distance in DISTANCES.items() if _accepts(theirs, distance)]


def _accepts(theirs: type, distance: BaseDistance) -> bool:
    try:
        theirs(distance=distance)
    except AssertionError:
        return False
    return True


def make_theirs(theirs: type, part: object, distance: BaseDistance | None = None) -> Any:
    """Their object from the options of a part; what they reject is a ValueError."""
    options = {name: getattr(part, name) for name in parameters(theirs) if name != "temperature"}
    if "temperature" in parameters(theirs):
        options["temperature"] = 1.0  # the scores are already divided
    distance = distance or DISTANCES[getattr(part, "distance", default_distance(theirs))]
    try:
        return theirs(**options, distance=distance)
    except AssertionError as error:
        raise ValueError(str(error)) from error


def make_miner(text: str, known: dict[str, type]) -> Any:
    """The miner of an expression such as `MultiSimilarityMiner(epsilon=0.2)`; what is wrong with it is a ValueError."""
    try:
        spec, *more = parse_expression(text)
        if more or spec.weight != 1 or spec.reduction:
            raise ValueError(f"{text!r} is not a single miner")
        if spec.name not in known:
            raise ValueError(f"unknown miner {spec.name!r}: {did_you_mean(spec.name, known)}")
        theirs = known[spec.name]
        fields = option_fields(theirs, allowed_distances(theirs))
        ours: type[Any] = make_dataclass(spec.name, fields, namespace={"__module__": __name__})
        return make_theirs(theirs, make_part(ours, spec.options, spec.name))
    except ConfigError as error:
        raise ValueError(str(error)) from error
