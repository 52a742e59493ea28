"""How frequent labels are: propensities, and groups of labels by frequency.

Paper:    Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing
          Label Applications", KDD 2016.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from xmclab.data.sparse import canonical

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ids = NDArray[np.int64]

FAMILIES = {"amazon": (0.6, 2.6), "wikipedia": (0.5, 0.4)}  # (A, B) of data sets in the literature
HEAD_ABOVE, TAIL_UP_TO = 100, 10  # training queries of a label


@dataclass(frozen=True)
class Propensity:
    """The constants of the propensity model, and who chose them."""

    a: float
    b: float
    source: str = "default"

    def __str__(self) -> str:
        return f"propensities A={self.a:g} B={self.b:g} ({self.source})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"A": self.a, "B": self.b, "source": self.source}


DEFAULT_PROPENSITY = Propensity(0.55, 1.5)


def propensity_parameters(name: str) -> tuple[float, float]:
    """(A, B) of the propensity model that the literature uses for the data set of this name."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if "amazon" in plain:
        return FAMILIES["amazon"]
    if re.search(r"wiki(pedia|titles)(large)?500k", plain):
        return FAMILIES["wikipedia"]
    return DEFAULT_PROPENSITY.a, DEFAULT_PROPENSITY.b


def propensity_of(name: str, chosen: tuple[float, float] | None = None) -> Propensity:
    """The propensity model for the data set of this name.

    Args:
        chosen: `evaluate.propensity`; None: what the literature uses for it.
    """
    if chosen is not None:
        return Propensity(*chosen, "evaluate.propensity")
    usual = Propensity(*propensity_parameters(name))
    return usual if usual == DEFAULT_PROPENSITY else replace(usual, source=f"from the name {name}")


def inverse_propensity(targets_train_NL: sp.csr_array, a: float, b: float) -> Floats:
    """w_L = 1 + C (f_l + B)^-A with C = (ln N - 1)(B + 1)^A, for f_l of N training queries having label l.

    C is 0 where the model makes no sense: below 3 training queries it would be negative.
    """
    rows = targets_train_NL.shape[0]
    scale = max(np.log(max(rows, 1)) - 1, 0.0) * (b + 1) ** a
    return np.asarray(1 + scale * (label_frequencies(targets_train_NL) + b) ** -a, dtype=np.float64)


def label_frequencies(targets_NL: sp.csr_array) -> Ids:
    """f_L: the number of queries that have each label."""
    return np.bincount(canonical(targets_NL).indices, minlength=targets_NL.shape[1])


@dataclass(frozen=True)
class LabelGroups:
    """A partition of the labels."""

    names: tuple[str, ...]  # [G]
    group_L: Ids  # position of each label's group in `names`


def frequency_bands(targets_train_NL: sp.csr_array) -> LabelGroups:
    """Head labels (more than 100 training queries), torso (11 to 100) and tail (up to 10, unseen ones included)."""
    frequency_L = label_frequencies(targets_train_NL)
    group_L = np.where(frequency_L > HEAD_ABOVE, 0, np.where(frequency_L > TAIL_UP_TO, 1, 2))
    return LabelGroups(("head", "torso", "tail"), group_L)


def frequency_deciles(targets_train_NL: sp.csr_array) -> LabelGroups:
    """Ten groups of labels in order of frequency, most frequent first, with a tenth of all training pairs each.

    Equal numbers of pairs rather than of labels: most labels are so rare that a tenth of them says little.
    """
    frequency_L = label_frequencies(targets_train_NL)
    order = np.argsort(-frequency_L, kind="stable")
    pairs_before = np.cumsum(frequency_L[order]) - frequency_L[order]
    group_L = np.empty(len(order), dtype=np.int64)
    group_L[order] = np.minimum(10 * pairs_before // max(frequency_L.sum(), 1), 9)
    return LabelGroups(tuple(f"decile {number}" for number in range(1, 11)), group_L)
