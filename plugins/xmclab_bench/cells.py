"""Where the run of a cell is cached: a folder named by everything that decides its numbers.

That is the resolved config, the bytes of the data, the source of the code that trains (xmclab's own and that of the
parts' plugins), the device, the versions of torch and of numba (which compiles loops, where it can be imported), and
the files that options name (such as a model's; by name, size and time). The number of threads is not included, though
it may change the last digits. Earlier runs are reused; any change makes a new folder.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import xmclab
from xmclab.data import open_data
from xmclab.host import Config
from xmclab.model.device import pick_device

SURROUNDINGS = ("cli", "serve")  # packages that no number depends on
WITHOUT_EFFECT = ("checkpoint", "profile", "resume", "tracker")


class Keys:
    """The names of cells' folders; data is read once for its fingerprint."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, str] = {}

    def key(self, config: Config) -> str:
        """The folder's name."""
        data = config.data_key()
        if data not in self._fingerprints:
            self._fingerprints[data] = open_data(config).fingerprint
        tree = {name: value for name, value in config.to_dict().items() if name not in WITHOUT_EFFECT}
        tree["data"] = {k: v for k, v in tree["data"].items() if k not in ("source", "cache", "verify")}
        decides = {
            "config": tree,
            "data": self._fingerprints[data],
            "code": [_package_hash(), *sorted({_module_hash(name) for name in _modules(config)})],
            "torch": importlib.metadata.version("torch"),
            "numba": _numba(),
            "device": str(pick_device(config.settings.device)),
            "files": _files(config),
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:20]


@cache
def _numba() -> str:
    """Its version; empty if it is not installed, or refuses this version of numpy."""
    try:
        return str(importlib.import_module("numba").__version__)
    except ImportError:
        return ""


def _modules(config: Config) -> set[str]:
    """The modules of the parts that a config uses."""
    classes: list[type[Any]] = [part.cls for slot, part in config.parts.items() if part and slot not in WITHOUT_EFFECT]
    for loss in config.losses.values():
        for term in loss.terms:
            classes.append(config.registry.get("loss", term.name))
            if term.reduction is not None:
                classes.append(config.registry.get("reduction", term.reduction))
    return {base.__module__ for cls in classes for base in cls.__mro__ if not _is_foreign(base)}


def _files(config: Config) -> list[tuple[str, int, int]]:
    """(name, bytes, time) of every file that an option of a part or `validate.file` names, itself or by its folder."""
    values = [value for part in config.parts.values() if part is not None for value in part.options.values()]
    named = {
        Path(value)
        for value in (*values, config.settings.validate.file)
        if isinstance(value, str) and value and Path(value).exists()
    }
    files = sorted(file for path in named for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _is_foreign(cls: type[Any]) -> bool:
    """Whether a class is Python's or torch's, whose version stands in for its source."""
    return cls.__module__.partition(".")[0] in ("abc", "builtins", "torch", "typing")


@cache
def _module_hash(name: str) -> str:
    """Of the source of a module, and of the package that it is in."""
    top = name.partition(".")[0]
    if top == xmclab.__name__:
        return ""
    file = inspect.getsourcefile(sys.modules[top if top in sys.modules else name])
    if file is None:
        return name
    path = Path(file)
    return _hash(sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path])


@cache
def _package_hash() -> str:
    root = Path(xmclab.__file__).parent
    return _hash(path for path in sorted(root.rglob("*.py")) if path.relative_to(root).parts[0] not in SURROUNDINGS)


def _hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
