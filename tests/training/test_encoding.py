"""Texts as vectors: how many graphs are kept changes no gradient, only what is encoded twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.model.device import Precision
from xmclab.training.batches import Chunk
from xmclab.training.encoding import ChunkedEncoding, graphs_kept
from xmclab.training.trainer import Trainer

TEXTS = ["red", "green shoes", "a", "blue", "warm hat", "sandals", "x y z"]


@pytest.mark.parametrize(("keep", "passes"), [(0, 8), (1, 7), (3, 5), (4, 4), (9, 4)])
def test_chunks_whose_graph_is_kept_are_encoded_once(letters: Any, keep: int, passes: int) -> None:
    letters.train()
    chunks = [
        Chunk(letters.collate(letters.tokenise(TEXTS[start : start + 2])), seed=start)
        for start in range(0, len(TEXTS), 2)
    ]
    target = torch.randn(len(TEXTS), letters.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def gradients(keep: int) -> tuple[list[torch.Tensor], int]:
        calls: list[int] = []
        hook = letters.register_forward_hook(lambda *_: calls.append(1))
        letters.zero_grad()
        encoding = ChunkedEncoding(letters, chunks, "query", Precision(torch.device("cpu")), keep)
        (encoding.x_BD * target).square().sum().backward()
        encoding.backward()
        hook.remove()
        return [p.grad.clone() for p in letters.parameters()], len(calls)

    expected, _ = gradients(1)
    found, calls = gradients(keep)
    assert calls == passes
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("chunk", "room", "expected"),
    [
        ("0", None, (1, 1)),  # whole sides need no second pass
        ("16", None, (0, 1)),
        ("16", 1.0, (0, 1)),
        ("16", 3.5, (0, 3)),
        ("16", 1e9, "all"),
    ],
)
def test_as_many_graphs_are_kept_as_there_is_room_for(
    chunk: str, room: float | None, expected: Any, small_trainer: Callable[..., Trainer], monkeypatch: Any
) -> None:
    """Each takes a byte, in this test."""
    made = small_trainer(f"encode.chunk={chunk}")
    prepared = made.prepare(0, made.rows_N[:64])
    assert all(each.length > 0 for each in (*prepared.queries, *prepared.labels))
    if expected == "all":
        expected = len(prepared.queries), len(prepared.labels)
        assert expected[0] == 4
    monkeypatch.setattr(made.model.encoder, "graph_bytes", lambda tokens, half: 1)
    assert graphs_kept(made.model.encoder, prepared, room, half=False) == expected


def test_without_an_estimate_of_the_encoder_few_graphs_are_kept(small_trainer: Callable[..., Trainer]) -> None:
    made = small_trainer("encode.chunk=16")
    assert made.model.encoder.graph_bytes(100, half=False) == 0
    assert graphs_kept(made.model.encoder, made.prepare(0, made.rows_N[:64]), 1e9, half=False) == (0, 1)
