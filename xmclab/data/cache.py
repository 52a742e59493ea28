"""Cached folders: named by what they were made from, complete or absent, built by one process at a time.

A folder holds the files of its builder and `manifest.json`: the key, what the builder says about them, and the name,
bytes and sha256 of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from xmclab import __version__
from xmclab.system.files import new_folder, storage_errors
from xmclab.system.manifests import digest

SCHEMA = 1  # format version: raised when the same key would give different files
MANIFEST = "manifest.json"
DIGEST = 64  # hex digits of a sha256

Key = Mapping[str, Any]  # JSON values


@dataclass(frozen=True)
class Entry:
    """A verified folder."""

    folder: Path
    about: dict[str, Any]  # what the builder said about it


class Damaged(Exception):
    """What is wrong with a folder."""


class Cache:
    """The folders below one folder.

    Args:
        verify: compare the sha256 of all files whenever a folder is opened; sizes are always compared.
        note: takes a line for the user.
    """

    def __init__(self, folder: Path, verify: bool, note: Callable[[str], None]) -> None:
        self.folder, self.verify, self.note = folder, verify, note
        self._where = f"data.cache={folder}"

    def get(self, what: str, origin: str, key: Key, build: Callable[[Path], dict[str, Any]]) -> Entry:
        """The folder of a key, built if there is none or if it is damaged.

        Args:
            what: the work, for the user.
            origin: whose work it is; not part of the key, but tells a first build from a rebuild.
            build: fills a folder and returns what is worth recording about it, as JSON values.

        Raises:
            StorageError: the folder cannot be written.
        """
        key = json.loads(json.dumps({"schema": SCHEMA, **key}))
        path = self.folder / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
        with contextlib.suppress(Damaged, FileNotFoundError):
            return self._open(path, key)
        with self._alone(path, what):
            try:
                return self._open(path, key)
            except FileNotFoundError:
                self.note(f"{what}: {self._reason(origin, key)}; cached in {path}")
            except Damaged as damage:
                self.note(f"{what}: rebuilding, {path} is damaged ({damage})")
                with storage_errors(self._where):
                    shutil.rmtree(path)
            with new_folder(path, self._where) as folder:
                about = build(folder)
                files = [_described(file) for file in sorted(folder.iterdir())]
                manifest = {"key": key, "origin": origin, "about": about, "files": files, "xmclab": __version__}
                (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            return Entry(path, about)

    def _open(self, path: Path, key: Key) -> Entry:
        """An intact folder; `FileNotFoundError` if there is none, `Damaged` if it is not what was built."""
        if not path.is_dir():
            raise FileNotFoundError(path)
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if manifest["key"] != key:
                raise Damaged(f"{MANIFEST} is for another key")
            for wanted in manifest["files"]:
                file = path / wanted["name"]
                if (size := file.stat().st_size) != wanted["bytes"]:
                    raise Damaged(f"{file.name} has {size:,} bytes instead of {wanted['bytes']:,}")
                if self.verify and _described(file) != wanted:
                    raise Damaged(f"{file.name}: checksum mismatch")
            return Entry(path, manifest["about"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(str(error) or type(error).__name__) from error

    @contextlib.contextmanager
    def _alone(self, path: Path, what: str) -> Iterator[None]:
        """Wait until no other process builds this folder, lock it, and sweep away what a killed process left."""
        with storage_errors(self._where):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path.with_suffix(".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.note(f"{what}: another process is building {path}; waiting for it")
                lock.acquire()
        try:
            for left in self.folder.glob(f".{path.name}.*"):
                shutil.rmtree(left, ignore_errors=True)
            yield
        finally:
            lock.release()

    def _reason(self, origin: str, key: Key) -> str:
        """Why no existing folder can be used: what changed since the most similar one was built."""
        changes = [
            [_change(name, old[name]) for name in key if name in old and old[name] != key[name]]
            for old in self._keys(origin)
        ]
        return "rebuilding, " + ", ".join(sorted(changes, key=len)[0]) if changes else "first build"

    def _keys(self, origin: str) -> Iterator[dict[str, Any]]:
        """The keys of earlier builds of the same origin."""
        for file in sorted(self.folder.glob(f"[!.]*/{MANIFEST}")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                manifest = json.loads(file.read_text(encoding="utf-8"))
                if manifest["origin"] == origin:
                    yield dict(manifest["key"])


def _change(name: str, old: Any) -> str:
    """A changed part of a key, in words; digests are not shown."""
    return f"{name} changed" if isinstance(old, str) and len(old) == DIGEST else f"{name} was {old}"


def _described(file: Path) -> dict[str, Any]:
    return {"name": file.name, **digest(file)}
