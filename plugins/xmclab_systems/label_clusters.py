"""The head of DEXA: a label is its text and a trained vector that it shares with similar labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from xmclab.api import option
from xmclab.plan.samplers.two_means import balanced_clusters
from xmclab_systems.label_residual import LabelResidual

SEED = 0  # clusters depend on nothing but the texts
PRIVATE_OF = 5  # at most every fifth label has a vector of its own
SHARED_BY = 2  # labels of a cluster, at least


@dataclass(eq=False)
class LabelClusters(LabelResidual):
    """Dual encoder whose labels add a vector of their cluster to their encoded text; frequent ones, a private one.

    Formula:  q = normalise(g1(Phi(x))),  z_l = normalise(normalise(g1(Phi(z_l))) + a_c(l))
              the inner normalise only with `unit_texts`, the outer ones only with `normalise`
    Where:    c(l) the label itself for the `private` most frequent labels; of the others, the cluster of l in balanced
              2-means of their texts, encoded before the first step
    Paper:    DEXA (Dahiya et al., KDD 2023): 65,536 clusters and 1,000 private vectors, drawn by Xavier's rule and not
              decayed (`optim.no_decay=own_rows`).
    """

    clusters: int = option(65536, f"clusters of labels; fewer if they would have less than {SHARED_BY} labels", ge=1)
    private: int = option(1000, f"most frequent labels with a vector of their own; at most 1 of {PRIVATE_OF}", ge=0)
    rows: Literal["zeros", "normal", "xavier"] = option(
        "xavier", "initial vectors of clusters: 0, N(0, rows_std) or by Xavier's rule"
    )

    def build(self, width: int, num_labels: int) -> None:
        super().build(width, num_labels)
        self.register_buffer("row_L", torch.zeros(num_labels, dtype=torch.int64))

    def count_rows(self) -> int:
        self.num_private = min(self.private, self.num_labels // PRIVATE_OF)
        others = self.num_labels - self.num_private
        return self.num_private + min(self.clusters, max(others // SHARED_BY, 1))

    def rows_of(self, labels_P: Tensor) -> Tensor:
        return self.get_buffer("row_L")[labels_P]

    @property
    def starts_from_texts(self) -> bool:
        return True

    @torch.no_grad()
    def start(self, x_ND: Tensor, x_LD: Tensor, targets_NL: sp.csr_array) -> None:
        """Private vectors come first in the table, those of clusters after them."""
        count_L = np.bincount(targets_NL.indices, minlength=self.num_labels)
        by_count_L = np.argsort(-count_L, kind="stable")
        frequent, others = by_count_L[: self.num_private], np.sort(by_count_L[self.num_private :])
        row_L = np.empty(self.num_labels, dtype=np.int64)
        row_L[frequent] = np.arange(self.num_private)
        texts_LD = self.projected(x_LD).float().cpu().numpy()
        clusters = len(self.own_rows.weight) - self.num_private
        found = balanced_clusters(texts_LD, others, clusters, np.random.default_rng(SEED))
        for row, labels in enumerate(found, start=self.num_private):
            row_L[labels] = row
        self.get_buffer("row_L").copy_(torch.from_numpy(row_L))
