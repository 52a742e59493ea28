"""What the heads are trained with: the objective of each, and the weights and propensities of the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from xmclab.api import Dataset
from xmclab.data.propensity import inverse_propensity, propensity_of
from xmclab.host.config import Config
from xmclab.host.schema import Settings
from xmclab.objectives.objective import Objective
from xmclab.training.start import trained_heads


def objectives_of(config: Config) -> dict[str, Objective]:
    """The objective of every trained head, with its share in the loss: all of it if no other head is trained."""
    de_share, heads = config.settings.objective.de_share, trained_heads(config)
    shares = {"de": de_share, "clf": 1 - de_share} if len(heads) > 1 else dict.fromkeys(heads, 1.0)
    return {name: replace(config.objective(name), share=shares[name]) for name in heads}


def label_weights(
    data: Dataset, settings: Settings, objectives: Mapping[str, Objective]
) -> tuple[Tensor | None, Tensor | None]:
    """[L] the weights and the inverse propensities of all labels on the host, each None where it is not used."""
    weighted = settings.objective.label_weights != "none"
    needed = any(objective.needs_propensities for objective in objectives.values())
    if not weighted and not needed:
        return None, None
    propensity = propensity_of(data.name, settings.evaluate.propensity)
    known_L = inverse_propensity(data.real.targets_NL, propensity.a, propensity.b)
    both = known_L / known_L.mean(), known_L
    weight_L, inverse_L = (torch.from_numpy(x_L).float() for x_L in both)
    return weight_L if weighted else None, inverse_L if needed else None
