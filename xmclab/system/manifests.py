"""Manifests: the size and sha256 of the files of a folder, checked before a file is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xmclab import __version__
from xmclab.errors import Problem, StorageError
from xmclab.system.files import sha256_of

Files = Mapping[str, Mapping[str, Any]]  # name, relative to the folder -> bytes and sha256


def digest(path: Path) -> dict[str, Any]:
    """The size and sha256 of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def described(folder: Path, paths: Iterable[Path] | None = None) -> dict[str, dict[str, Any]]:
    """The entries of these files; by default of all files in the folder and below it."""
    found = folder.rglob("*") if paths is None else paths
    return {path.relative_to(folder).as_posix(): digest(path) for path in sorted(found) if path.is_file()}


def refuse_newer(folder: Path, version: int, known: int, writer: str) -> None:
    """Refuse a folder in a format of the future.

    Args:
        version, writer: its format, and the version of xmclab that wrote it.
        known: the newest format that can be read.
    """
    if version > known:
        found = f"written by xmclab {writer}, format {version}; this is {__version__}, format {known}"
        raise StorageError(Problem(str(folder), found, "use a newer xmclab"))


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
