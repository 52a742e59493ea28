"""Continuing the run of a folder: what it must have in common with the command that continues it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from xmclab.data.candidates import candidates_file
from xmclab.data.validation import Opened
from xmclab.errors import ConfigError, DataError, Problem, did_you_mean
from xmclab.host.config import LONG, Config
from xmclab.host.recipes import STAGES, below, stage_of
from xmclab.host.resolver import resolve
from xmclab.host.schema import SHORT
from xmclab.runs import store
from xmclab.runs.checkpoints import Found, newest
from xmclab.system.reading import read_json

logger = logging.getLogger(__name__)

# Keys that may change: at most last digits of the run depend on them.
HARMLESS = (
    "device",
    "profile",
    "keep_model",
    "data.source",  # the files are compared
    "data.cache",
    "data.verify",
    "encode",
    "checkpoint",
    "resume",
    "tracker",
    "baseline",
    "kernels",
)


def overrides_of(folder: Path) -> list[str]:
    """The overrides that continue the run of a folder.

    Raises:
        StorageError: it is not a run folder.
    """
    if not (folder / store.CONFIG).is_file():
        raise store.without(folder, store.CONFIG)
    return [f"recipe={folder / store.CONFIG}"]


def earlier_run(folder: Path, config: Config, opened: Opened, strict: bool) -> tuple[Config, Found | None]:
    """The config with the name of the recipe that the run of a folder began with, and its newest checkpoint.

    Args:
        strict: do not fall back to an older checkpoint.

    Raises:
        ConfigError: the config differs in keys that matter.
        DataError: the data changed.
        StorageError: the folder is damaged.
    """
    store.verify_run(folder)
    found = newest(folder, strict)
    if found:
        theirs, fingerprint = found.manifest["config"], found.manifest["data"]
    else:
        theirs = config_of(folder, config)
        with store.damage_reported(folder / store.ENVIRONMENT):
            fingerprint = read_json(folder / store.ENVIRONMENT)["data"]["sha256"]
    refuse_other(folder, config, theirs)
    if fingerprint != opened.whole.fingerprint:
        raise DataError(_other_data(config.settings.data.source, theirs["data"]["source"]))
    listed = found.manifest.get("candidates") if found and theirs["miner"] == config.to_dict()["miner"] else ""
    if listed and opened.candidates and listed != opened.candidates:
        hint = "restore it, or train in a new folder"
        raise DataError(Problem(str(candidates_file(config)), "the file changed since the run began", hint))
    if found and found.at.epoch >= config.settings.epochs:
        done = f"the run is in its epoch {found.at.epoch + 1} already"
        raise ConfigError(Problem(f"epochs={config.settings.epochs}", done, "choose as many or more"))
    if found and found.manifest["torch"] != torch.__version__:
        logger.warning(
            "the run began with torch %s, this is %s: last digits may differ",
            found.manifest["torch"],
            torch.__version__,
        )
    return dataclasses.replace(config, recipe=store.recipe_of(folder) or config.recipe), found


def _other_data(source: str, theirs: str) -> Problem:
    if source == theirs:
        hint = "restore them, or train in a new folder"
        return Problem(f"data={source}", "the files changed since the run began", hint)
    hint = "leave it out, or train in a new folder"
    return Problem(f"data={source}", f"not the data of the run, which began with data={theirs}", hint)


def config_of(folder: Path, config: Config) -> dict[str, Any]:
    """The config of the run of a folder, with the plugins of this one."""
    return resolve(overrides_of(folder), config.registry).to_dict()


def refuse_other(folder: Path, config: Config, theirs: Mapping[str, Any], ended: bool = False) -> None:
    """Refuse a config that differs from that of the run of a folder in keys that matter.

    Args:
        ended: the run cannot be continued, so nothing can be allowed.

    Raises:
        ConfigError: with every key.
    """
    if problems := list(differences(theirs, config)):
        problems += _unknown(theirs, config)
        reason, hint = "the run has another config", "start in a new folder, or allow it with resume.allow=KEY,KEY"
        if ended:
            reason, hint = "the run has ended", f"to train on, start a new one from its weights: start={folder}"
            raise ConfigError(Problem(f"resume {folder}", reason, hint), *problems)
        raise ConfigError(*problems, Problem(f"resume {folder}", reason, hint))


def _unknown(theirs: Mapping[str, Any], config: Config) -> Iterator[Problem]:
    """The names in `resume.allow` that neither config has as a key or group."""
    keys = [key for key, _ in (*flat(theirs), *flat(config.to_dict()))]
    for name in config.settings.resume.allow:
        if not any(_within(key, name) or _within(_plain(key), _plain(name)) for key in keys):
            yield Problem("resume.allow", f"unknown key {name!r}", did_you_mean(name, keys))


def without_effect(folder: Path, config: Config) -> list[Problem]:
    """The keys of a command that differ from those of a run that has ended."""
    ended = config_of(folder, config)
    quiet = [name for name in HARMLESS if name != "data.source"]
    return list(differences(ended, config, quiet))


def _within(key: str, name: str) -> bool:
    """Whether this is the key of that name, or of its group."""
    return key in (name, SHORT.get(name)) or key.startswith(f"{name}.")


def _plain(key: str) -> str:
    """A key without the stage that it belongs to."""
    stage = stage_of(key)
    return below(key, f"{STAGES}.{stage}") if stage else key


def _covers(name: str, key: str, stage: str) -> bool:
    """Whether a name is that of a key, or of its group; a name without a stage is one of all stages.

    Args:
        stage: that of keys that name none.
    """
    if _within(key, name):
        return True
    return stage_of(name) in ("", stage_of(key) or stage) and _within(_plain(key), _plain(name))


def differences(theirs: Mapping[str, Any], config: Config, allowed: Sequence[str] | None = None) -> Iterator[Problem]:
    """The keys that matter and differ.

    Args:
        allowed: keys and groups that may differ; by default the harmless ones and `resume.allow`.
    """
    if allowed is None:
        allowed = (*HARMLESS, *config.settings.resume.allow)
    old, new = dict(flat(theirs)), dict(flat(config.to_dict()))
    for key in dict.fromkeys((*old, *new)):
        if config.stage and stage_of(key) == config.stage:  # said of the last stage once more, to name it
            continue
        harmless = any(_covers(name, key, config.stage) for name in allowed)
        if not harmless and old.get(key) != new.get(key):
            yield Problem(LONG.get(key, key), f"{old.get(key)} in the run, {new.get(key)} in this command")


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested values."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
