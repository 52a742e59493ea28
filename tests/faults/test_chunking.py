"""`encode.chunk` changes the memory of a step, and none of its numbers, whatever is dropped.

Accumulation of gradients has no setting of its own: chunks are what accumulates, over one loss of the whole batch.

36  chunks of 1, 3 and all texts: the same losses and gradients, with dropout
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from xmclab.data import open_dataset
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.model.dropout import KeyedDropout, key_dropouts, keyed, text_keys
from xmclab.training.trainer import Trainer

# 36

HEADS = ["head.de.dim=8", "head.clf.dim=8", "head.de.dropout=0.3", "head.clf.dropout=0.3", "head.clf.row_dropout=0.2"]
BAG = ["encoder=bag", "encoder.dim=16", "encoder.hidden=8", "encoder.feature_dropout=0.4"]
SMALL = ["recipe=none", "data=tiny", "epochs=1", "baseline=none", "pool.cap=60", *HEADS]
ROWS = 23
CHUNKS = [1, 3, ROWS, 1000]


@pytest.fixture(scope="module")
def bert(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_bert` with more dropout, everywhere."""
    from transformers import AutoModel, AutoTokenizer

    folder = tmp_path_factory.mktemp("dropping")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    rates = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    AutoModel.from_pretrained(tiny_bert, **rates).save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(request: pytest.FixtureRequest, bert: Path) -> list[str]:
    hf = ["encoder=hf", f"encoder.model={bert}", "encoder.max_length=12"]
    return {
        "bag": BAG,
        "packed": hf,
        "padded": [*hf, "encoder.packing=off"],
        "towers": [*hf, "encoder.towers=separate"],
    }[request.param]


def trainer(*overrides: str) -> Trainer:
    return Trainer(resolve([*SMALL, *overrides], default_registry()), open_dataset("tiny", "title", default_registry()))


def step(made: Trainer, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a step, and its gradients by parameter."""
    made.model.to(dtype)
    loss, _ = made.backward(4, made.prepare(4, made.rows_N[5 : 5 + ROWS]))
    found = {name: p.grad.to_dense() for name, p in made.model.named_parameters() if p.grad is not None}
    return loss, found


ENCODERS = ["bag", "packed", "padded", "towers"]
WHERE = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", WHERE)
@pytest.mark.parametrize("encoder", ENCODERS, indirect=True)
def test_losses_and_gradients_are_those_of_one_chunk(encoder: list[str], dtype: torch.dtype) -> None:
    whole, expected = step(trainer(*encoder), dtype)
    for chunk in CHUNKS:
        loss, found = step(trainer(*encoder, f"encode.chunk={chunk}"), dtype)
        assert loss.item() == pytest.approx(whole.item(), rel=min(WHERE[dtype], 1e-6))
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            scale = gradient.abs().max().clamp(min=1e-3)
            torch.testing.assert_close(found[name] / scale, gradient / scale, rtol=0, atol=WHERE[dtype], msg=name)


@pytest.mark.parametrize("encoder", ENCODERS, indirect=True)
def test_something_is_dropped_and_something_else_at_the_next_step(encoder: list[str]) -> None:
    made = trainer(*encoder)
    rows = made.rows_N[5 : 5 + ROWS]
    prepared = made.prepare(4, rows)
    losses = [made.backward(4, prepared)[0].item()]
    later = made.prepare(5, rows)
    moved = [chunk._replace(key_B=other.key_B) for chunk, other in zip(prepared.queries, later.queries, strict=True)]
    prepared.queries[:] = moved
    losses.append(made.backward(4, prepared)[0].item())
    for module in made.model.modules():
        if isinstance(module, KeyedDropout):
            module.p = 0.0
    losses.append(made.backward(4, prepared)[0].item())
    assert len(set(losses)) == 3


def test_packed_and_padded_texts_drop_the_same(bert: Path) -> None:
    """Attention weights too."""
    hf = ["encoder=hf", f"encoder.model={bert}", "encoder.max_length=12"]
    packed, expected = step(trainer(*hf), torch.float64)
    padded, found = step(trainer(*hf, "encoder.packing=off", "encode.chunk=5"), torch.float64)
    assert padded.item() == pytest.approx(packed.item(), rel=1e-12)
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-3)
        torch.testing.assert_close(found[name] / scale, gradient / scale, rtol=0, atol=1e-12, msg=name)


def test_an_encoder_of_a_plugin_with_torchs_dropout_is_exact_too(letters: Any) -> None:
    """Its nn.Dropout sees padded texts [B, T, D]."""
    texts = ["alpha beta", "gamma", "delta epsilon zeta", "eta"]
    key_dropouts(letters)
    key_B = text_keys(3, torch.arange(4))

    def encode(rows: list[int]) -> torch.Tensor:
        with keyed(key_B[rows]):
            x_BD: torch.Tensor = letters.train()(letters.collate(letters.tokenise([texts[row] for row in rows])))
        return x_BD

    whole = encode([0, 1, 2, 3])
    assert not torch.allclose(whole, letters.eval()(letters.collate(letters.tokenise(texts))))
    parts = torch.cat([encode([0]), encode([1, 3]), encode([2])])
    torch.testing.assert_close(parts[[0, 1, 3, 2]], whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("encoder", "parts"),
    [
        ("bag", ["head.clf.table_dtype=bfloat16"]),
        ("bag", ["head.clf.table_dtype=bfloat16", "reduction.clf=pal_n", "optim.clip=0"]),
        ("bag", ["reduction=pol"]),
        ("packed", []),
    ],
    indirect=["encoder"],
)
def test_a_run_gives_the_same_losses(
    encoder: list[str], parts: list[str], tmp_path: Path, call: Callable[..., Any]
) -> None:
    """All steps of two epochs, with the updates between them, and what else draws: rounding, and picking a label."""

    def losses(chunk: int) -> list[float]:
        out = tmp_path / str(chunk)
        more = ["epochs=2", "sampler.batch_size=300", f"encode.chunk={chunk}", "keep_model=false"]
        assert call("run", *SMALL, *encoder, *parts, *more, "--out", out)[0] == 0
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [record["loss"] for record in records if record["event"] == "step"]

    whole = losses(0)
    assert len(whole) > 4
    for chunk in (37, 128):
        assert losses(chunk) == pytest.approx(whole, rel=1e-5)
