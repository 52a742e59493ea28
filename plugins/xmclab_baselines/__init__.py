"""Baselines without training, shown beside a model: TF-IDF against label texts, and TF-IDF nearest neighbours."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_parts() -> list[xmclab.PartRef]:
    return [
        xmclab.part("baseline", "tfidf_labels", "xmclab_baselines.tfidf:TfidfLabels"),
        xmclab.part("baseline", "tfidf_neighbours", "xmclab_baselines.tfidf:TfidfNeighbours"),
    ]
