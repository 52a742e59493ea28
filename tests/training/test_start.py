"""Weights to begin with, and parts that keep theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.data import open_dataset
from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.training.start import Start
from xmclab.training.trainer import Trainer


def weights(trainer: Trainer, prefix: str) -> dict[str, torch.Tensor]:
    state = trainer.model.state_dict()
    return {name: tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}


def changed(trainer: Trainer, before: dict[str, torch.Tensor]) -> bool:
    trainer.model.settle()
    return any(not torch.equal(tensor, trainer.model.state_dict()[name]) for name, tensor in before.items())


def train(trainer: Trainer, steps: int = 2) -> list[dict[str, Any]]:
    batches = trainer.batches(trainer.plan(0)[:steps], 0)
    return [trainer.step(step, batch) for step, batch in enumerate(batches)]


@pytest.mark.parametrize(
    "extra",
    [
        [],
        ["reduction.clf=pal_n", "loss.clf=ds"],
        ["reduction.clf=pal_n", "loss.clf=ds", "head.clf.projection=none"],
        ["head.clf.projection=none", "head.clf.table=sgd"],
    ],
)
def test_frozen_parts_keep_their_weights_and_have_no_loss(
    small_trainer: Callable[..., Trainer], extra: list[str]
) -> None:
    """The pool, and all labels in blocks; rows alone are trained where nothing is projected."""
    trainer = small_trainer("freeze=encoder,head.de", *extra)
    kept, trained = weights(trainer, "encoder."), weights(trainer, "heads.clf.")
    kept |= weights(trainer, "heads.de.")
    records = train(trainer)
    assert {name.partition("/")[0] for record in records for name in record["terms"]} == {"clf"}
    assert all(record["gradient_norm"] > 0 for record in records)
    assert not changed(trainer, kept)
    assert changed(trainer, trained)


def test_a_frozen_encoder_is_encoded_once(small_trainer: Callable[..., Trainer]) -> None:
    trainer = small_trainer("freeze=encoder", "head.de.dropout=0", "head.clf.dropout=0", "head.clf.row_dropout=0")
    passes: list[int] = []
    trainer.model.encoder.register_forward_hook(lambda *_: passes.append(1))
    train(trainer, 4)
    texts = len(trainer.data.train) + trainer.data.num_labels
    assert len(passes) <= texts / trainer.settings.encode.search_chunk + 2
    trainer.ready()
    assert len(passes) <= texts / trainer.settings.encode.search_chunk + 2


def test_a_frozen_encoder_changes_no_gradient_of_the_heads(small_trainer: Callable[..., Trainer]) -> None:
    """Without dropout, the vectors that were computed once are those of every step."""
    plain = ["encoder.feature_dropout=0", "optim.clip=0"]
    frozen, whole = small_trainer("freeze=encoder", *plain), small_trainer(*plain)
    for trainer in (frozen, whole):
        trainer.backward(0, trainer.prepare(0, trainer.rows_N[:64]))
    for name in ("de", "clf"):
        for (key, ours), theirs in zip(
            frozen.model.head(name).named_parameters(), whole.model.head(name).parameters(), strict=True
        ):
            if key != "psi.weight":
                assert ours.grad is not None, key
                assert torch.allclose(ours.grad, theirs.grad, atol=1e-6), key
    (ids_P, ours_PD), (same_P, theirs_PD) = (each.model.head("clf").psi.gradient() for each in (frozen, whole))
    assert torch.equal(ids_P, same_P)
    assert torch.allclose(ours_PD, theirs_PD, atol=1e-6)
    assert all(parameter.grad is None for parameter in frozen.model.encoder.parameters())


def test_rows_start_from_the_texts_of_the_encoder_that_was_taken(small_trainer: Callable[..., Trainer]) -> None:
    first = small_trainer("seed=5")
    taken = Start("start=a", ("encoder",), weights(first, "encoder."))
    plain = ["head.clf.rows=texts", "head.clf.projection=none", "head.clf.dim=0"]
    config = small_trainer(*plain)
    second = Trainer(config.config, config.data, start=taken)
    assert not changed(second, weights(first, "encoder."))
    x_LD = first.model.encode_all(first.label_tokens, "label", 1024, torch.device("cpu"))
    rows = second.model.state_dict()["heads.clf.psi.weight"]
    assert torch.allclose(rows, torch.nn.functional.normalize(x_LD, dim=-1), atol=1e-6)


def test_weights_that_do_not_fit_are_refused(small_trainer: Callable[..., Trainer]) -> None:
    first, other = small_trainer(), small_trainer("encoder.dim=24")
    start = Start("start=runs/a", ("encoder",), weights(first, "encoder."))
    with pytest.raises(ConfigError, match=r"start=runs/a: does not fit: .* is \[\d+, 16\] there, \[\d+, 24\] here"):
        start.load(other.model)
    less = Start("start=runs/a", ("head.de",), {})
    with pytest.raises(ConfigError, match=r"is absent there, \[\d+, \d+\] here"):
        less.load(other.model)


@pytest.mark.parametrize(
    ("freeze", "extra", "problem"),
    [
        ("head.de,head.clf", [], "no head is left to train"),
    ],
)
def test_freezing_what_cannot_be_frozen_is_refused(
    small_trainer: Callable[..., Trainer], freeze: str, extra: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        small_trainer(f"freeze={freeze}", *extra)


def test_freezing_a_head_that_is_not_there_is_refused() -> None:
    config = resolve(["data=tiny", "head.clf=none", "freeze=head.clf"], default_registry())
    with pytest.raises(ConfigError, match=r"freeze=head\.clf: there is no head\.clf"):
        Trainer(config, open_dataset("tiny", "title", default_registry()))
