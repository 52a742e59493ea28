"""Faiss against exact search, on the GPU of the labels if it can, and what to install without it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from xmclab.errors import PluginError
from xmclab.plan.indexes import faiss
from xmclab.plan.indexes.exact import Exact
from xmclab.plan.indexes.faiss import Faiss


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_faiss_agrees_with_exact_search(kind: Literal["flat", "hnsw", "ivf"]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, z = (torch.randn(n, 16, generator=generator) for n in (30, 200))
    exact, approximate = Exact(), Faiss(type=kind, probes=1000)
    for index in (exact, approximate):
        index.build(z)
    (ids, scores), (faiss_ids, faiss_scores) = exact.search(q, 10), approximate.search(q, 10)
    assert (ids == faiss_ids).float().mean() > (0.99 if kind == "hnsw" else 0.9999)
    torch.testing.assert_close(scores, faiss_scores, rtol=0, atol=1e-5 if kind != "hnsw" else 1.0)


def test_faiss_orders_equal_scores_by_id() -> None:
    index = Faiss()
    index.build(torch.tensor([[1.0], [2.0], [1.0], [2.0]]))
    assert index.search(torch.ones(1, 1), 4)[0].tolist() == [[1, 3, 0, 2]]


def test_missing_faiss_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(PluginError) as caught:
        Faiss()
    assert 'pip install "xmclab[cpu]"' in str(caught.value)
    assert caught.value.exit_code == 4


GPU = torch.device("cuda", 1)


class OnGpu(torch.Tensor):
    """Says that it is on the second GPU, and knows no other way to the host than `to`."""

    device = GPU

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:  # type: ignore[override]
        return self if device == GPU else self.as_subclass(torch.Tensor)

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        raise AssertionError("copied to the host")

    numpy = cpu  # type: ignore[assignment]


class GpuIndex:
    """An index of faiss that takes and returns tensors of its GPU alone, once faiss's tools for torch are imported."""

    def __init__(self, index: Any) -> None:
        vars(self).update(index=index, calls=[])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.index, name, value)

    def train(self, x: torch.Tensor) -> None:
        self.index.train(self._seen("train", x))

    def add(self, x: torch.Tensor) -> None:
        self.index.add(self._seen("add", x))

    def search(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        found = self.index.search(self._seen("search", x), k)
        return tuple(torch.from_numpy(each).as_subclass(OnGpu) for each in found)

    def _seen(self, call: str, x: torch.Tensor) -> np.ndarray:
        assert type(x) is OnGpu
        assert (x.dtype, x.is_contiguous()) == (torch.float32, True)
        self.calls.append(call)
        return x.as_subclass(torch.Tensor).numpy()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, GpuIndex]]:
    """A stand-in for faiss built for two GPUs: where indexes go, and the indexes."""
    moved: list[tuple[int, GpuIndex]] = []
    imported: list[str] = []
    module = faiss.load_faiss()

    def to_gpu(resources: object, device: int, index: Any) -> GpuIndex:
        assert imported == ["faiss.contrib.torch_utils"]
        moved.append((device, GpuIndex(index)))
        return moved[-1][1]

    monkeypatch.setattr(faiss, "import_module", imported.append)
    monkeypatch.setattr(module, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(module, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(module, "index_cpu_to_gpu", to_gpu, raising=False)
    monkeypatch.setattr(module, "index_gpu_to_cpu", lambda index: index.index, raising=False)
    monkeypatch.setattr(faiss, "GPU_MOST", 3)
    return moved


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_vectors_and_results_stay_on_the_gpu(
    kind: Literal["flat", "ivf"], gpus: list[tuple[int, GpuIndex]], tmp_path: Path
) -> None:
    index, again = Faiss(type=kind), Faiss(type=kind)
    index.build(torch.arange(1.0, 6.0)[:, None].as_subclass(OnGpu))
    ids, scores = index.search(torch.ones(2, 2).as_subclass(OnGpu)[:, :1], 5)
    (device, moved), *more = gpus
    assert (device, more) == (1, [])
    assert moved.calls == ["train", "add", "search"]
    assert type(ids) is type(scores) is OnGpu
    assert (ids.tolist(), scores.tolist()) == ([[4, 3, 2, -1, -1]] * 2, [[5, 4, 3, -torch.inf, -torch.inf]] * 2)
    index.write(tmp_path / "index")
    again.read(tmp_path / "index")
    assert again.search(torch.ones(1, 1), 2)[0].tolist() == [[4, 3]]


@pytest.mark.parametrize(
    ("kind", "number", "like"), [("hnsw", 2, OnGpu), ("flat", 0, OnGpu), ("flat", 2, torch.Tensor)]
)
def test_other_indexes_stay_on_the_host(
    kind: Literal["flat", "hnsw"],
    number: int,
    like: type,
    gpus: list[tuple[int, GpuIndex]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faiss.load_faiss(), "get_num_gpus", lambda: number)
    index = Faiss(type=kind)
    index.build(torch.arange(1.0, 6.0)[:, None].as_subclass(like))
    assert gpus == []
    assert index.search(torch.ones(1, 1), 5)[0].tolist() == [[4, 3, 2, 1, 0]]


@pytest.mark.parametrize("where", [torch.float32, torch.float64])
def test_vectors_of_the_host_are_not_copied(where: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    index, places = Faiss(), []
    index.build(torch.eye(3))
    search = index._index.search
    monkeypatch.setattr(index._index, "search", lambda x, k: places.append(x.ctypes.data) or search(x, k))
    q = torch.eye(3, dtype=where)
    index.search(q, 1)
    assert (places == [q.data_ptr()]) == (where == torch.float32)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_what_was_written_is_read_with_its_shape(kind: Literal["flat", "hnsw", "ivf"], tmp_path: Path) -> None:
    index, again = Faiss(type=kind), Faiss(type=kind)
    assert again.shape is None
    index.build(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)))
    index.write(tmp_path / "index")
    again.read(tmp_path / "index")
    assert again.shape == index.shape == (64, 8)
    others = {"flat", "hnsw", "ivf"} - {kind}
    for other in others:
        with pytest.raises(ValueError, match=f"not a {other} index"):
            Faiss(type=other).read(tmp_path / "index")


def test_an_index_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    """The lists of an inverted index may be in another file: only one beside it is looked for."""
    module = faiss.load_faiss()
    (tmp_path / "inside").mkdir()
    quantizer = module.IndexFlatIP(8)
    index = module.IndexIVFFlat(quantizer, 8, 2, module.METRIC_INNER_PRODUCT)
    z_LD = torch.randn(100, 8, generator=torch.Generator().manual_seed(0)).numpy()
    index.train(z_LD)
    lists = module.OnDiskInvertedLists(index.nlist, index.code_size, str(tmp_path / "elsewhere"))
    index.replace_invlists(lists)
    index.add(z_LD)
    module.write_index(index, str(tmp_path / "inside" / "index"))
    assert (tmp_path / "elsewhere").exists()
    with pytest.raises(RuntimeError, match="inside"):
        Faiss(type="ivf").read(tmp_path / "inside" / "index")
