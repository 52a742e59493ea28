"""Baselines on TF-IDF features, shown beside a model: similar texts, and linear programs that train."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_parts() -> list[xmclab.PartRef]:
    return [
        xmclab.part("baseline", "tfidf_labels", "xmclab_baselines.tfidf:TfidfLabels"),
        xmclab.part("baseline", "tfidf_neighbours", "xmclab_baselines.tfidf:TfidfNeighbours"),
        xmclab.part("baseline", "one_vs_all", "xmclab_baselines.linear:OneVsAll"),
        xmclab.part("baseline", "napkinxc", "xmclab_baselines.napkinxc:NapkinXC"),
    ]
