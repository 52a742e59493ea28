"""Faiss against exact search, on the GPU of the labels if it can, and what to install without it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

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


class OnGpu(torch.Tensor):
    """Says that it is on the second GPU."""

    device = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("kind", "gpus", "like", "moved"),
    [
        ("flat", 2, OnGpu, [1]),
        ("ivf", 2, OnGpu, [1]),
        ("hnsw", 2, OnGpu, []),
        ("flat", 0, OnGpu, []),
        ("flat", 2, torch.Tensor, []),
    ],
)
def test_faiss_uses_the_gpu_of_the_labels_if_it_can(
    kind: Literal["flat", "hnsw", "ivf"], gpus: int, like: type, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for faiss built for GPUs notes where an index goes and leaves it where it is."""
    devices: list[int] = []
    index = Faiss(type=kind)
    monkeypatch.setattr(index._faiss, "get_num_gpus", lambda: gpus)
    monkeypatch.setattr(index._faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(
        index._faiss, "index_cpu_to_gpu", lambda gpu, device, cpu: devices.append(device) or cpu, raising=False
    )
    monkeypatch.setattr(faiss, "GPU_MOST", 3)
    z = torch.arange(1.0, 6.0)[:, None]
    index.build(z.as_subclass(like))
    assert devices == moved
    found = [[4, 3, 2, -1, -1]] if moved else [[4, 3, 2, 1, 0]]
    assert index.search(torch.ones(1, 1), 5)[0].tolist() == found


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
