"""Softmax cross-entropy: the pair value of `supcon` under its classic name.

Formula:  l(i,p) = logsumexp_l s_il - s_ip
Where:    s_QP scores / temperature, l over all candidates of anchor i, its other positives included
Use when: anchors have one or two positives, and the reduction sums over them (`pal`) or reads one of them (`pol`): the
          classic multi-label softmax. Averaged over the positives (`psl`, `pal_n`) it is `supcon`.
Paper:    Menon et al., "Multilabel Reductions: What Is My Loss Optimising?", NeurIPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from xmclab_losses.supcon import SupCon


@dataclass
class Softmax(SupCon):
    pass
