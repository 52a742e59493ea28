"""What a run will hold on a card that is not here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from xmclab.data import with_reader
from xmclab.data.tokens import OFF, Tokeniser
from xmclab.data.validation import open_with_validation
from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.host.config import Config
from xmclab.runs import presets, sizes
from xmclab.runs.plan import Plan, files_of
from xmclab.runs.sizes import Part
from xmclab.runs.step_memory import USABLE, fitting_chunk, parts_on_card
from xmclab.system import usage
from xmclab.system.cards import CARDS, Card
from xmclab.system.console import Console
from xmclab.training.trainer import Trainer

GIB = 1 << 30


def card_of(name: str) -> Card:
    """A known card.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in CARDS:
        raise ConfigError(Problem(f"--device {name}", "unknown card", did_you_mean(name, CARDS)))
    return CARDS[name]


def plan_for(config: Config, card: Card, console: Console | None = None, folder: Path | None = None) -> Plan:
    """Memory and disk of a run on a card; its time would have to be measured there.

    Args:
        console: where progress goes; nowhere by default.
        folder: the run folder to come, for the disk that it is on; `runs/...` by default.
    """
    folder = folder or Path("runs")
    config = with_reader(dataclasses.replace(config, settings=dataclasses.replace(config.settings, device="cpu")))
    opened = open_with_validation(config)
    presets.refuse_other_sizes(config, opened.whole)
    tokeniser = Tokeniser(dataclasses.replace(config.settings.data, cache=OFF), console)
    trainer = Trainer(config, opened.training, tokeniser, prepares=False)
    parts = parts_on_card(trainer, opened.validation is not None)
    disk = files_of(trainer)
    room = {"host": usage.free(), "device": round(card.memory_gib * GIB), "disk": sizes.disk_free(folder)}
    warnings = [
        verdict(trainer, parts, card),
        sizes.missing_disk(sum(file.bytes for file in disk), room["disk"], folder),
    ]
    data = opened.whole
    return Plan(
        recipe=config.recipe,
        data={
            "name": data.name,
            "train": len(opened.training.train),
            "test": len(data.test),
            "labels": data.num_labels,
        },
        device=card.name,
        epochs=config.settings.epochs,
        steps=trainer.steps,
        memory=tuple(parts),
        free=room,
        training=(),
        others=(),
        disk=tuple(disk),
        folder=folder,
        warnings=tuple(filter(None, warnings)),
        texts_at_once=sizes.texts_at_once(trainer),
    )


def verdict(trainer: Trainer, parts: list[Part], card: Card) -> str:
    """A warning if the run does not fit on the card, with what does; else nothing."""
    needed, room = sizes.peak(parts, "device"), card.memory_gib * GIB
    if needed <= USABLE * room:
        return ""
    fitting = fitting_chunk(trainer, USABLE * room)
    lower = (
        sizes.remedies(parts, "device") if fitting is None else f"encode.chunk={fitting} fits (gradients stay exact)"
    )
    what = f"{sizes.size(needed)} is needed at the peak, of {sizes.size(room)} about {USABLE:.0%} can be used"
    return f"{card.name}: {what}; " + (f"lower {lower}" if fitting is None else lower)
