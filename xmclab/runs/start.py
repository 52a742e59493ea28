"""Where a run begins: with the weights of an earlier stage, of another run, or of an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from xmclab.api import Dataset
from xmclab.errors import ConfigError, DataError, Problem, did_you_mean
from xmclab.host.config import Config
from xmclab.host.resolver import resolve
from xmclab.host.schema import Place
from xmclab.runs import store
from xmclab.system.manifests import read_manifest, verify
from xmclab.training.start import ENCODER, Start, check_freeze, in_stage, prefix_of

# What only training needs is replaced by built-in parts, so that its plugins need not be installed.
WITHOUT_TRAINING = (
    *("loss=ds", "reduction=psl", "sampler=random", "miner=none", "transform=none", "tracker=none", "baseline=none"),
    "kernels=none",
)
NETWORK = "encoder.network."  # weights that an export of a transformer keeps in a format of its own


def check_starts(config: Config, out: Path | None) -> None:
    """Refuse what no stage can begin with, before the first one is trained.

    Args:
        out: the run folder, if its run is continued: stages that have begun need no start any more.

    Raises:
        ConfigError: there is no such run or earlier stage, it has no such part, or none would be left to train.
    """
    earlier: dict[str, Config] = {}
    for stage in (*config.earlier.values(), config):
        name = stage.settings.start.run
        folder = out if stage is config or not out else out / store.STAGES / stage.stage
        check_freeze(stage)
        if name and not (folder and (folder / store.MANIFEST).is_file()):
            _taken(stage, earlier.get(name) or _config_of(_run_folder(name, earlier, stage), stage))
        earlier[stage.stage] = stage


def read_start(config: Config, folder: Path, data: Dataset) -> Start | None:
    """What the run of a folder begins with; None: with new weights.

    Raises:
        ConfigError: there is no such run, or it has no such part.
        DataError: it has rows for other labels.
        StorageError: its files are damaged.
    """
    if not config.settings.start.run:
        return None
    run = _folder(config, folder)
    where = in_stage(config, f"start={config.settings.start.run}")
    exported = (run / store.EXPORT).is_file()
    state = _weights(run, exported)
    parts = _taken(config, _config_of(run, config))
    taken = {name: weight for name, weight in state.items() if name.startswith(tuple(map(prefix_of, parts)))}
    labels = store.load_labels(run)
    if any(part != ENCODER for part in parts) and list(labels.names) != list(data.label_names):
        counts = f"its {len(labels):,} labels are not the {data.num_labels:,} of {data.name}"
        raise DataError(Problem(where, counts, "take its encoder alone: start.parts=encoder"))
    if ENCODER not in parts:
        return Start(where, parts, taken)
    assets = store.encoder_of_export(run) if exported else run / store.ENCODER
    return Start(where, parts, taken, assets, NETWORK if assets == run else "")


def _folder(config: Config, folder: Path) -> Path:
    """The folder of the earlier stage, run or export that `start` names."""
    name = config.settings.start.run
    for stage in (folder / store.STAGES / name, folder.parent / name):
        if (stage / store.CONFIG).is_file() and stage.parent.name == store.STAGES:
            return stage
    return _run_folder(name, config.earlier, config)


def _run_folder(name: str, earlier: Mapping[str, Config], config: Config) -> Path:
    """The folder of a run or export, which is not an earlier stage."""
    run = Path(name).expanduser()
    if not (run / store.CONFIG).is_file():
        known = did_you_mean(name, earlier) if earlier else ""
        what = "not a run folder or an export" + (", nor an earlier stage" if config.stage else "")
        raise ConfigError(Problem(in_stage(config, f"start={name}"), what, known or f"it has no {store.CONFIG}"))
    return run


def _config_of(run: Path, config: Config) -> Config:
    """What a run or export was made with."""
    return resolve([f"recipe={run / store.CONFIG}", *WITHOUT_TRAINING], config.registry)


def _taken(config: Config, theirs: Config) -> tuple[Place, ...]:
    """The parts that a config takes from what was made with another one."""
    where = in_stage(config, f"start={config.settings.start.run}")
    parts = config.settings.start.parts or _common(config, theirs)
    if ENCODER in parts and config.choice(ENCODER) != theirs.choice(ENCODER):
        there, here = theirs.choice(ENCODER), config.choice(ENCODER)
        raise ConfigError(Problem(where, f"its encoder is {there}, this one is {here}", f"set encoder={there}"))
    missing = [part for part in parts if part not in _parts(config) or part not in _parts(theirs)]
    if missing:
        there = "it has" if missing[0] not in _parts(theirs) else "this config has"
        raise ConfigError(Problem(where, f"{there} no {missing[0]}", f"known: {', '.join(_common(config, theirs))}"))
    return parts


def _weights(run: Path, exported: bool) -> Mapping[str, Tensor]:
    """All weights of a run or an export, after a look at its checksums."""
    name = store.EXPORT_WEIGHTS if exported else store.WEIGHTS
    if not (run / name).is_file():
        raise store.without(run, name)
    if exported:
        files = read_manifest(run / store.EXPORT, store.EXPORT_FORMAT, store.EXPORT_AGAIN)["files"]
        for file in [file for file in files if file != store.CARD]:
            verify(run, file, files, store.EXPORT, store.EXPORT_AGAIN)
    else:
        store.verify_run(run)
    with store.damage_reported(run / name):
        state: dict[str, Tensor] = load_file(run / name)
    return state


def _parts(config: Config) -> list[Place]:
    places: dict[str, Place] = {"de": "head.de", "clf": "head.clf"}
    return ["encoder", *(places[head] for head in config.heads)]


def _common(config: Config, theirs: Config) -> tuple[Place, ...]:
    return tuple(part for part in _parts(config) if part in _parts(theirs))
