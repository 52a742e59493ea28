"""What is around a run: plugins, the cache of models, the disk, variables of the environment."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from xmclab.host import Registry
from xmclab_doctor.facts import Machine
from xmclab_doctor.findings import Finding, note, ok, problem

GIB = 1024**3
LITTLE_DISK = 5 * GIB  # bytes; a run with a transformer and a large table keeps a few checkpoints
OFFLINE = "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"
EFFECT = {
    "XMCLAB_CACHE": "where tokens are kept between runs",
    "XMCLAB_LIMITS": "how much a file may make a command hold",
    "XMCLAB_PLUGINS": "only these plugins are loaded",
    "XMCLAB_STRICT": "a broken plugin is an error",
}


def surroundings(machine: Machine, registry: Registry, folder: Path) -> Iterator[Finding]:
    """Findings about what is around a run.

    Args:
        folder: where runs will be written.
    """
    yield from _plugins(registry)
    yield _models(machine)
    yield _disk(folder)
    yield from _variables(machine)


def _plugins(registry: Registry) -> Iterator[Finding]:
    """What the host says of the plugins that it loaded."""
    problems = list(registry.problems)
    for each in problems:
        fix = each.hint or "update or uninstall it"
        yield problem("surroundings", "plugins", f"{each.where}: {each.message}", "its parts cannot be used", fix)
    if not problems:
        names = sorted({origin.plugin for origin in registry.origins})
        yield ok("surroundings", "plugins", ", ".join(names))


def _models(machine: Machine) -> Finding:
    """The models of transformers that are in the cache."""
    where = hub_cache(machine)
    names = sorted(
        path.name.removeprefix("models--").replace("--", "/") for path in where.glob("models--*") if path.is_dir()
    )
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    offline = next((name for name in OFFLINE if machine.environment.get(name, "0") not in ("", "0")), None)
    if names:
        return ok(
            "surroundings", "models", f"in the cache: {listed}", f"{offline} is set: no others" if offline else ""
        )
    if offline:
        fix = f"unset {offline}, or give encoder.model a folder"
        return note("surroundings", "models", "none in the cache", f"{offline} is set: encoder=hf has no model", fix)
    return ok("surroundings", "models", "none in the cache; encoder=hf downloads its model")


def hub_cache(machine: Machine) -> Path:
    """Where transformers keeps models; as huggingface_hub decides it, without importing it."""
    given = machine.environment
    if given.get("HF_HUB_CACHE"):
        return Path(given["HF_HUB_CACHE"])
    default = Path(given.get("XDG_CACHE_HOME") or Path(given.get("HOME") or Path.home(), ".cache"), "huggingface")
    return Path(given.get("HF_HOME") or default) / "hub"


def _disk(folder: Path) -> Finding:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    what = f"{free / GIB:.1f} GiB free at {folder}/"
    if free < LITTLE_DISK:
        why = "weights and checkpoints of large runs do not fit; `xmclab plan` computes what one needs"
        return note("surroundings", "disk", what, why, "free some space, or write elsewhere: --out DIR")
    return ok("surroundings", "disk", what)


def _variables(machine: Machine) -> Iterator[Finding]:
    """What is set of our own variables; names that nothing reads are probably misspelt."""
    for name, value in sorted(machine.environment.items()):
        if name in EFFECT:
            yield ok("surroundings", name, value, EFFECT[name])
        elif name.startswith("XMCLAB_"):
            fix = f"known: {', '.join(EFFECT)}"
            yield note("surroundings", name, "is set, but nothing reads it", "misspelt, or of another program", fix)
