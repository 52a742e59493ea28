"""Weights that a run begins with, taken from another one, and parts that keep theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from xmclab.errors import ConfigError, Problem
from xmclab.host.config import Config
from xmclab.host.recipes import STAGES
from xmclab.host.schema import Place
from xmclab.model.model import Model

ENCODER, FEW = "encoder", 3  # as many differences are listed


@dataclass(frozen=True)
class Start:
    """What is taken from another run."""

    where: str  # for messages: `start=runs/a`
    parts: tuple[Place, ...]
    state: Mapping[str, Tensor]  # of the parts, by the names that the model gives them
    assets: Path | None = None  # vocabulary or tokenizer files of the encoder, if it is among the parts
    in_assets: str = ""  # prefix of the weights that come with these files

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the heads among the parts."""
        return tuple(part.removeprefix("head.") for part in self.parts if part != ENCODER)

    def load(self, model: Model) -> None:
        """Give the model these weights.

        Raises:
            ConfigError: they do not fit.
        """
        own = model.state_dict()
        wanted = {name for part in self.parts for name in own if name.startswith(prefix_of(part))}
        if self.in_assets:
            wanted -= {name for name in wanted if name.startswith(self.in_assets)}
        problems = [
            f"{name} is {_shape(self.state.get(name))} there, {_shape(own.get(name))} here"
            for name in sorted(wanted | self.state.keys())
            if _shape(self.state.get(name)) != _shape(own.get(name))
        ]
        if problems:
            more = f", and {len(problems) - FEW} more" if len(problems) > FEW else ""
            hint = "set the same encoder and heads, with the same options, or take less: start.parts=encoder"
            raise ConfigError(Problem(self.where, f"does not fit: {'; '.join(problems[:FEW])}{more}", hint))
        model.load_state_dict(dict(self.state), strict=False)


def in_stage(config: Config, override: str) -> str:
    """The override as one would type it for this stage alone, if it is one."""
    return f"{STAGES}.{config.stage}.{override}" if config.stage else override


def prefix_of(part: Place) -> str:
    """How the names of its weights begin."""
    return "encoder." if part == ENCODER else f"{part.replace('head.', 'heads.')}."


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else str(list(tensor.shape))


def freeze(model: Model, config: Config) -> None:
    """Let the frozen parts of a config keep their weights.

    Raises:
        ConfigError: there is no such part, or nothing would be left to train.
    """
    check_freeze(config)
    for part in config.settings.freeze:
        module: nn.Module = model.encoder if part == ENCODER else model.head(part.removeprefix("head."))
        module.requires_grad_(False)


def check_freeze(config: Config) -> None:
    """Refuse to freeze parts that are not there, or all heads.

    Raises:
        ConfigError: with the reason.
    """
    frozen = config.settings.freeze
    where = in_stage(config, f"freeze={','.join(frozen)}")
    absent = [part for part in frozen if part != ENCODER and part.removeprefix("head.") not in config.heads]
    if absent:
        raise ConfigError(Problem(where, f"there is no {' and no '.join(absent)}"))
    if frozen and not trained_heads(config):
        raise ConfigError(Problem(where, "no head is left to train", "leave out head.de or head.clf"))


def trained_heads(config: Config) -> tuple[str, ...]:
    """The heads that are not frozen: only they have a loss."""
    return tuple(name for name in config.heads if f"head.{name}" not in config.settings.freeze)
