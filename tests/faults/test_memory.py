"""Out of memory: recognised wherever it happens, said with what to lower, and avoided by `encode.chunk=auto`.

53  memory that runs out in a step: exit 6 with what the step was made of; with `encode.chunk=auto` the same losses
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xmclab.errors import ConfigError, MemoryLimitError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.system.memory import out_of_memory
from xmclab.training.trainer import Trainer

Call = Callable[..., tuple[int, str, str]]


# 53


@pytest.mark.parametrize(("error", "reason"), [
    (MemoryError(), "allocation failed"),
    (torch.OutOfMemoryError("CUDA out of memory. 12 GiB\nmore"), "CUDA out of memory. 12 GiB"),
    (RuntimeError("[fail] DefaultCPUAllocator: can't"), "[fail] DefaultCPUAllocator: can't"),
    (OSError(12, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
    (RuntimeError("something else"), None),
    (OSError(2, "No such file"), None),
    (ValueError("Cannot allocate memory"), None),
])  # fmt: skip
def test_out_of_memory_is_recognised(error: Exception, reason: str | None) -> None:
    assert out_of_memory(error) == reason


def test_what_libraries_raise_is_recognised() -> None:
    for allocate in (lambda: np.empty(1 << 50), lambda: torch.empty(1 << 50)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert out_of_memory(caught.value)


@pytest.mark.parametrize(("arguments", "where"), [
    (["predict", "RUN", "--text", "plot"], "xmclab.serve.predictor.Predictor.rank_all"),
    (["eval", "RUN"], "xmclab.serve.predictor.Predictor.rank_all"),
    (["export", "RUN", "--to", "OUT"], "xmclab.serve.export.write_export"),
    (["score", "--pred", "P", "--truth", "P", "--train", "P"], "xmclab_datatools.score.score.__globals__"),
    (["data", "check", "tiny"], "xmclab.data.open_data"),
    (["run", "recipe=none", "data=tiny", "--out", "OUT"], "xmclab.runs.run.open_with_validation"),
    (["report", "RUN", "--out", "OUT"], "xmclab_bench.report.compare_folders"),
    (["bench", "losses", "--dry-run"], "xmclab_bench.spec.load_spec"),
])  # fmt: skip
def test_out_of_memory_anywhere_exits_6(
    arguments: list[str], where: str, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    if "__globals__" in where:
        monkeypatch.setattr("xmclab_datatools.rankings.read_matrix", fail)
        monkeypatch.setattr("xmclab.data.sparse.read_matrix", fail)
    else:
        monkeypatch.setattr(where, fail)
    words = [{"RUN": small_run, "OUT": tmp_path / "out"}.get(word, word) for word in arguments]
    code, _, err = call(*words)
    assert code == 6, err
    assert re.fullmatch(r"error: out of memory: Unable to allocate 2 PiB \(.+\)", err.splitlines()[-1])
    assert "Traceback" not in err


def test_out_of_memory_in_a_plugin_is_not_its_fault(tmp_path: Path, call: Call) -> None:
    (tmp_path / "hungry.py").write_text(
        "from dataclasses import dataclass\nfrom xmclab import hookimpl, part\nfrom xmclab.api import Reader\n"
        "@dataclass\nclass Hungry(Reader):\n    '''Reads nothing.'''\n"
        "    def matches(self, folder):\n        return False\n"
        "    def read(self, folder):\n        raise MemoryError('2 PiB')\n"
        "@hookimpl\ndef xmclab_parts():\n    return [part('reader', 'hungry', Hungry)]\n"
    )
    code, _, err = call("run", "recipe=none", f"plugin={tmp_path / 'hungry.py'}", "reader=hungry", f"data={tmp_path}")
    assert (code, err.count("\n")) == (6, 1)
    assert err.startswith("error: out of memory: 2 PiB (lower ")


# encode.chunk=auto

AUTO = ("encode.chunk=auto", "head.de.dropout=0", "head.clf.dropout=0", "encoder.feature_dropout=0")


class Scarce:
    """Memory for this many texts at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, texts: int) -> None:
        self.texts, self.refused = texts, 0
        from xmclab.model.encoders.bag import Bag

        forward = Bag.forward

        def scarce(encoder: Any, tokens: Any, side: Any = "query") -> Any:
            x_BD = forward(encoder, tokens, side)
            if torch.is_grad_enabled() and len(x_BD) > self.texts:
                self.refused += 1
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
            return x_BD

        monkeypatch.setattr(Bag, "forward", scarce)


def losses_of(trainer: Trainer, steps: int = 3) -> list[float]:
    return [
        trainer.step(step, batch)["loss"]
        for step, batch in zip(range(steps), trainer.batches(trainer.plan(0)[:steps], 0), strict=True)
    ]


@pytest.mark.parametrize("more", [[], ["reduction.clf=pal_n"]])
def test_the_chunk_is_lowered_until_memory_suffices(
    small_trainer: Callable[..., Trainer],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = losses_of(small_trainer(*AUTO, "encode.chunk=0", *more))
    scarce = Scarce(monkeypatch, 50)
    trainer = small_trainer(*AUTO, *more)
    with caplog.at_level("INFO", "xmclab.training"):
        found = losses_of(trainer)
    assert scarce.refused >= 2
    assert 25 <= trainer.chunk <= 50
    assert found == pytest.approx(expected, rel=1e-6)
    assert f"encode.chunk=auto goes on with {trainer.chunk} texts at once" in caplog.messages[-1]


def test_a_step_that_has_updated_a_table_is_not_repeated(
    small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer(*AUTO, "optim.clip=0", "reduction.clf=pal_n")
    batch = next(iter(trainer.batches(trainer.plan(0)[:1], 0)))
    table = trainer.model.head("clf").label_rows
    before = table.weight.clone()  # type: ignore[union-attr]
    monkeypatch.setattr("xmclab.training.trainer.ChunkedEncoding.backward", fail)
    with pytest.raises(MemoryLimitError):
        trainer.step(0, batch)
    assert trainer.optimizers.rows is not None
    assert len(trainer.optimizers.rows.steps) == 1
    assert not torch.equal(before, table.weight)  # type: ignore[union-attr]


def fail(*_: Any, **__: Any) -> Any:
    raise MemoryError("Unable to allocate 2 PiB")


def test_it_gives_up_at_one_text(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    Scarce(monkeypatch, 0)
    with pytest.raises(MemoryLimitError) as caught:
        losses_of(small_trainer(*AUTO, "sampler.batch_size=32"))
    (problem,) = caught.value.problems
    assert problem.where == "out of memory in step 0"
    numbers = r"[\d,]+ queries, [\d,]+ labels in the pool, [\d,]+ tokens, chunk 1, float32"
    assert re.fullmatch(rf"DefaultCPUAllocator: .*allocate 99 bytes; {numbers}", problem.message)
    assert "encode.chunk" in problem.hint


def test_a_fixed_chunk_is_kept(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = Scarce(monkeypatch, 50)
    with pytest.raises(MemoryLimitError, match="chunk 100, float32"):
        losses_of(small_trainer(*AUTO, "encode.chunk=100"))
    assert scarce.refused == 1


@pytest.mark.parametrize("chunk", ["-1", "many", "1.5"])
def test_a_chunk_is_a_number_or_auto(chunk: str) -> None:
    with pytest.raises(ConfigError, match=r"encode\.chunk: "):
        resolve([f"encode.chunk={chunk}"], default_registry())
    assert resolve(["encode.chunk=auto"], default_registry()).settings.encode.chunk == "auto"
    assert resolve(["encode.chunk=7"], default_registry()).settings.encode.chunk == 7
