"""The baselines beside a bench: measured once per data set, and cached beside its cells."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from xmclab.data import open_data
from xmclab.evaluation.scoring import Evaluator
from xmclab.host import Config
from xmclab.system.files import new_file
from xmclab_bench.cells import Keys
from xmclab_bench.document import Baselines

SLOT = "baseline"


def measured(configs: Iterable[Config], keys: Keys, cells: Path) -> list[Baselines]:
    """The baselines that these configs ask for, on the data of each.

    Args:
        cells: the folder of cached runs, in which the numbers are kept.
    """
    apart = {(config.data_key(), config.settings.evaluate): config for config in configs}
    return [_of_data(config, keys, cells) for config in apart.values()]


def _of_data(config: Config, keys: Keys, cells: Path) -> Baselines:
    found: dict[str, dict[str, float]] = {}
    sha256 = ""
    for each in _apart(config):
        file = cells / f"{keys.key(each)}.baseline.json"
        if not file.is_file():
            _measure(each, file)
        kept = json.loads(file.read_text(encoding="utf-8"))
        found |= kept["metrics"]
        sha256 = kept["data"]
    return Baselines(sha256, found)


def _apart(config: Config) -> list[Config]:
    """A config for every baseline, with nothing else in it that its numbers do not depend on."""
    settings, chosen = config.settings, config.parts.get(SLOT)
    kept = replace(
        type(settings)(), data=settings.data, evaluate=replace(settings.evaluate, every=0), device=settings.device
    )
    bare = replace(config, recipe="", settings=kept, losses={}, parts={"reader": config.parts.get("reader")})
    return [bare.with_part(SLOT, replace(each, others=())) for each in (chosen.all if chosen else ())]


def _measure(config: Config, file: Path) -> None:
    data = open_data(config)
    evaluator, depth = Evaluator.of_data(data, config.settings.evaluate), config.settings.evaluate.depth
    metrics = {name: evaluator.metrics(each.rank(data, depth)) for name, each in config.make_all(SLOT).items()}
    with new_file(file, str(file)) as stream:
        json.dump({"data": data.fingerprint, "metrics": metrics}, stream, indent=1)
