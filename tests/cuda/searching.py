"""Searches, mines and clusters on the fake device, in a process with the shim: a line of JSON for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from device import DEVICE, aten, pretended
from meter import Meter
from torch import Tensor

from xmclab.api import Keys, View
from xmclab.evaluation.search import Space, rank_all
from xmclab.evaluation.searches.heads import Heads
from xmclab.plan.indexes.auto import Auto
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.miners.ann import AnnMiner
from xmclab.plan.samplers import k_means
from xmclab.plan.samplers.two_means import balanced_clusters

LABELS = 400_000


class Certain(Meter):
    """A device whose shortlists leave no doubt."""

    def _answered(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.nonzero.default:
            self.waits(func, args)
            return torch.empty(0, args[0].ndim, dtype=torch.int64, device=DEVICE)
        return super()._answered(func, args, kwargs)


def vectors(rows: int, width: int) -> Tensor:
    return torch.empty(rows, width, device=DEVICE)


def cases() -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """What is measured, by name: the first call prepares it."""

    def exact() -> Callable[[], object]:
        index, q_QD = Exact(), vectors(1024, 384)
        index.build(vectors(LABELS, 384))
        return lambda: index.search(q_QD, 100)

    def building() -> Callable[[], object]:
        z_LD = vectors(LABELS, 384)
        return lambda: Exact().build(z_LD)

    def heads() -> Callable[[], object]:
        queries = {"de": vectors(20_000, 256), "clf": vectors(20_000, 256)}
        labels = {"de": vectors(LABELS, 256), "clf": vectors(LABELS, 257)}
        space = Space(("de", "clf"), LABELS, labels.__getitem__, lambda _: (Auto(), False))
        search, none_NL = Heads(), sp.csr_array((20_000, LABELS), dtype=np.float32)
        for name in search.names(space.heads):
            space.index(name)
        return lambda: rank_all(search, search.names(space.heads), queries, space, none_NL, 100)

    def mining() -> Callable[[], object]:
        miner, exclude_NL = AnnMiner(), sp.csr_array((30_000, LABELS), dtype=bool)
        miner.index = Auto()
        view = View(0, vectors(30_000, 64), vectors(LABELS, 64), str(DEVICE))
        return lambda: miner.refresh(view, exclude_NL, 30, Keys(0))

    def choices() -> Callable[[], object]:
        x_ND, centroids_CD = vectors(200_000, 64), vectors(300, 64)
        return lambda: k_means._choices(x_ND, np.arange(len(x_ND)), centroids_CD)

    def clusters() -> Callable[[], object]:
        x_ND = vectors(30_000, 64)
        return lambda: balanced_clusters(x_ND, np.arange(len(x_ND)), 30, np.random.default_rng(0))

    yield "search", exact
    yield "build", building
    yield "heads", heads
    yield "mining", mining
    yield "two_means", clusters
    yield "k_means", choices


def measured(prepare: Callable[[], Callable[[], object]]) -> dict[str, Any]:
    meter = Certain()
    with pretended(meter), torch.inference_mode():
        work = prepare()
        held = meter.held
        meter.forget()
        work()
    peak = meter.peak - held
    return {
        "waits": dict(meter.waited),
        "copies": dict(meter.pageable),
        "launches": meter.launched.total(),
        "peak": peak,
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, prepare in cases():
        print(json.dumps({"case": name, **measured(prepare)}), flush=True)


if __name__ == "__main__":
    main()
