"""Search with faiss: exact (flat), or approximate for label sets too large to compare with every query."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xmclab.api import Index, option
from xmclab.errors import PluginError, Problem
from xmclab.plan.indexes.checks import refuse_non_finite
from xmclab.plan.indexes.order import best

if TYPE_CHECKING:
    from numpy.typing import NDArray

POINTS_PER_LIST = 16  # to train the lists from; more cost time and find little
FEWEST_PROBES = 4  # so that the lists hold more labels than the nearest, some of which the caller may exclude
GPU_MOST = 2048  # most results of a query, and most lists searched, that faiss allows on a GPU
TRAINING_ROUNDS = 4  # of the k-means that makes the lists


def load_faiss() -> Any:
    """The faiss module, or an error with the command that installs it."""
    try:
        import faiss
    except ImportError as error:
        raise PluginError(
            Problem("index faiss", f"faiss cannot be imported: {error}", 'pip install "xmclab[cpu]"')
        ) from error
    return faiss


@dataclass
class Faiss(Index):
    """A faiss index: on the GPU of the label vectors if faiss was built for GPUs (flat and ivf), else on the host.

    hnsw is built by several threads, so two builds of it may differ slightly.
    """

    can_write: ClassVar[bool] = True

    type: Literal["flat", "hnsw", "ivf"] = option("flat", "flat: exact; hnsw: a graph; ivf: inverted lists")
    links: int = option(32, "hnsw: links per label", ge=2)
    ef_build: int = option(100, "hnsw: candidates considered while building", ge=1)
    ef_search: int = option(128, "hnsw: candidates considered while searching", ge=1)
    lists: int = option(0, "ivf: number of lists; 0: about 4 · sqrt(L)", ge=0)
    probes: int = option(16, "ivf: lists searched per query", ge=1)

    def __post_init__(self) -> None:
        self._faiss = load_faiss()
        self._index: Any = None
        self._gpu: Any = None  # faiss's memory there, which must live as long as the index
        self._device = torch.device("cpu")  # that of the index

    def build(self, z_LD: Tensor) -> None:
        """Copy the label vectors into the index."""
        self.train(z_LD)
        self.fill(z_LD)

    def train(self, z_LD: Tensor) -> None:
        """Make the lists (ivf), still without labels."""
        refuse_non_finite(z_LD, "label")
        self._index = self._on_gpu(self._empty(*z_LD.shape), z_LD.device)
        self._index.train(self._taken(z_LD))

    def fill(self, z_LD: Tensor) -> None:
        """Add the labels."""
        self._index.add(self._taken(z_LD))

    def probe_for(self, q_SD: Tensor, nearest_SK: Tensor, z_LD: Tensor, recall: float, most: float) -> float:
        """Set `probes` to as many lists as hold this share of the nearest labels, or to the most (ivf, once trained).

        Args:
            most: share of the lists.

        Returns:
            The recall with these probes.
        """
        quantizer = self._index.quantizer
        _, lists_SP = quantizer.search(_host(q_SD), max(1, int(most * self._index.nlist)))
        _, list_E = quantizer.search(_host(z_LD[nearest_SK.flatten()]), 1)
        found_SPK = lists_SP[:, :, None] == list_E.reshape(len(q_SD), 1, -1)
        recall_P = found_SPK.sum(axis=(0, 2)).cumsum() / list_E.size
        self.probes = min(max(FEWEST_PROBES, int(np.searchsorted(recall_P, recall)) + 1), len(recall_P))
        return float(recall_P[self.probes - 1])

    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(ids_QK, scores_QK) on the device of the queries; -1 and -inf where faiss finds fewer.

        Equal scores are ordered by label id among the results; which of them faiss lets in at rank k is its choice.
        """
        if self._index is None:
            raise RuntimeError("build the index before searching it")
        refuse_non_finite(q_QD, "query")
        most = GPU_MOST if self._device.type == "cuda" else sys.maxsize
        if self.type == "hnsw":
            self._index.hnsw.efSearch = max(self.ef_search, k)
        if self.type == "ivf":
            self._index.nprobe = min(self.probes, most)
        found = self._index.search(self._taken(q_QD), min(k, most))
        scores_QK, ids_QK = (torch.as_tensor(each) for each in found)
        ids_QK, scores_QK = best(ids_QK, scores_QK, k)
        missing = 0, k - ids_QK.shape[1]
        ids_QK, scores_QK = F.pad(ids_QK, missing, value=-1), F.pad(scores_QK, missing, value=-torch.inf)
        return ids_QK.to(q_QD.device), scores_QK.to(q_QD.device)

    def write(self, path: Path) -> None:
        """Write the index to a file, with what a program that reads it needs to search it alike."""
        on_gpu = self._device.type == "cuda"
        index = self._faiss.index_gpu_to_cpu(self._index) if on_gpu else self._index
        if self.type == "hnsw":
            index.hnsw.efSearch = self.ef_search
        if self.type == "ivf":
            index.nprobe = self.probes
        self._faiss.write_index(index, str(path))

    def read(self, path: Path) -> None:
        """Read an index that `write` wrote; the caller has checked that the file is intact."""
        # An index can name another file for its lists: only one beside it is read, and none is written to.
        flags = self._faiss.IO_FLAG_READ_ONLY | self._faiss.IO_FLAG_ONDISK_SAME_DIR
        index = self._faiss.read_index(str(path), flags)
        kinds = {"flat": "IndexFlatIP", "hnsw": "IndexHNSWFlat", "ivf": "IndexIVFFlat"}
        if type(index).__name__ != kinds[self.type] or index.metric_type != self._faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"holds a {type(index).__name__}, not a {self.type} index of inner products")
        self._index = index

    @property
    def shape(self) -> tuple[int, int] | None:
        """(L, D), once built."""
        return None if self._index is None else (int(self._index.ntotal), int(self._index.d))

    @property
    def count(self) -> int:
        """The number of lists (ivf), once trained."""
        return int(self._index.nlist)

    def _empty(self, labels: int, width: int) -> Any:
        faiss = self._faiss
        if self.type == "flat":
            return faiss.IndexFlatIP(width)
        if self.type == "hnsw":
            index = faiss.IndexHNSWFlat(width, self.links, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = self.ef_build
            return index
        lists = self.lists or max(1, min(round(4 * math.sqrt(labels)), labels // POINTS_PER_LIST))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, min(lists, labels), faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.max_points_per_centroid = TRAINING_ROUNDS, POINTS_PER_LIST
        index.cp.min_points_per_centroid = 1  # fewer are not worth a warning
        return index

    def _on_gpu(self, index: Any, device: torch.device) -> Any:
        """The index, moved to a GPU if there is one for it."""
        self._device = torch.device("cpu")
        if device.type != "cuda" or self.type == "hnsw" or self._faiss.get_num_gpus() == 0:
            return index
        if self._gpu is None:
            self._gpu = self._faiss.StandardGpuResources()
            import_module("faiss.contrib.torch_utils")  # indexes take and return tensors from then on
        self._device = device
        return self._faiss.index_cpu_to_gpu(self._gpu, device.index or 0, index)

    def _taken(self, x_BD: Tensor) -> Any:
        """Vectors as the index takes them: a tensor on its GPU, or an array of the host."""
        x_BD = x_BD.detach().to(self._device, torch.float32).contiguous()
        return x_BD if self._device.type == "cuda" else x_BD.numpy()


def _host(x_BD: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(x_BD.detach().float().cpu().numpy())
