"""Manifests: the size and sha256 of the files of a folder, checked before a file is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xmclab import __version__
from xmclab.errors import Problem, StorageError
from xmclab.system.files import path_inside, sha256_of
from xmclab.system.limits import BeyondLimit
from xmclab.system.reading import read_json
from xmclab.system.terminal import printable

Files = Mapping[str, Mapping[str, Any]]  # name, relative to the folder -> bytes and sha256


def digest(path: Path) -> dict[str, Any]:
    """The size and sha256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def described(folder: Path, paths: Iterable[Path] | None = None) -> dict[str, dict[str, Any]]:
    """The entries of these files; by default of all files in the folder and below it."""
    found = folder.rglob("*") if paths is None else paths
    return {path.relative_to(folder).as_posix(): digest(path) for path in sorted(found) if path.is_file()}


def read_manifest(path: Path, known: int, hint: str) -> dict[str, Any]:
    """A manifest in JSON whose `files` are inside its folder.

    Args:
        known: the newest `format` that can be read.
        hint: what to do if it is damaged.

    Raises:
        StorageError: it cannot be read, or is of a newer format.
    """
    try:
        manifest = read_json(path)
        if not isinstance(manifest, dict) or not isinstance(version := manifest.get("format"), int):
            raise ValueError("no format version")
        if version <= known:
            _check_files(path.parent, manifest.get("files"))
    except BeyondLimit as error:
        raise StorageError(error.at(str(path))) from error
    except FileNotFoundError as error:
        raise StorageError(Problem(str(path), "missing", hint)) from error
    except (OSError, ValueError) as error:
        raise StorageError(Problem(str(path), f"damaged: {error}", hint)) from error
    if version > known:
        writer = printable(str(manifest.get("xmclab")))
        found = f"written by xmclab {writer}, format {version}; this is {__version__}, format {known}"
        raise StorageError(Problem(str(path.parent), found, "use a newer xmclab"))
    return manifest


def _check_files(folder: Path, files: Any) -> None:
    if not isinstance(files, dict):
        raise ValueError("'files' is missing or invalid")
    for name, entry in files.items():
        try:
            path_inside(folder, name)
        except ValueError as error:
            raise ValueError(f"the file name {name!r} {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("bytes"), int):
            raise ValueError(f"the entry of {name} is invalid")


def verify(folder: Path, name: str, files: Files, manifest: str, hint: str, contents: bool = True) -> None:
    """Refuse a file that changed since it was written.

    Args:
        manifest: name of the file that has the entries, for errors.
        contents: compare the sha256, not only the size.

    Raises:
        StorageError: the file is missing or changed.
    """
    path = folder / name
    if not path.is_file():
        raise StorageError(Problem(str(path), "missing", hint))
    expected, size = files.get(name, {}), path.stat().st_size
    if size != expected.get("bytes"):
        found = f"has {size:,} bytes, {manifest} says {expected.get('bytes', 0):,}"
        raise StorageError(Problem(str(path), f"truncated or changed: {found}", hint))
    if contents and sha256_of(path) != expected.get("sha256"):
        raise StorageError(Problem(str(path), f"changed: its sha256 does not match {manifest}", hint))
