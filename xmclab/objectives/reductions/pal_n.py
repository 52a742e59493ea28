"""Pick all labels, normalised: the mean over the positives of each query, against all labels.

Formula:  L = mean_i sum_{p in P_i} (y_ip / sum_p' y_ip') * loss(i,p)          (anchors=sum: sum_i instead of mean_i)
Where:    P_i all positives of anchor i; candidates are all labels
Use when: all labels fit in memory and every query should count the same. `psl` estimates it on the pool.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from xmclab.objectives.reductions.psl import Psl


@dataclass
class PalN(Psl):
    """Pick all labels, normalised: the mean over all positives, against all labels."""

    needs = "all"
