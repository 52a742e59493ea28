"""Folders of work done once: named by what they were made from, whole or absent, built by one process at a time.

A folder holds the files of its builder and `manifest.json`: the key, what the builder says of them, and the name, bytes
and sha256 of each file.
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
from xmclab.system.files import new_folder, sha256_of, storage_errors

SCHEMA = 1  # of all folders: raised when the same key would have other files
MANIFEST = "manifest.json"
DIGEST = 64  # letters of a sha256

Key = Mapping[str, Any]  # in terms of JSON


@dataclass(frozen=True)
class Entry:
    """A folder that was checked."""

    folder: Path
    about: dict[str, Any]  # what the builder said of it


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
            origin: whose work it is, no part of the key: tells a first time from a change.
            build: fills a folder and says what is worth knowing about it, in terms of JSON.

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
                self.note(f"{what}: {self._reason(origin, key)}; kept in {path}")
            except Damaged as damage:
                self.note(f"{what}: made again, {path} is damaged ({damage})")
                with storage_errors(self._where):
                    shutil.rmtree(path)
            with new_folder(path, self._where) as folder:
                about = build(folder)
                files = [_described(file) for file in sorted(folder.iterdir())]
                manifest = {"key": key, "origin": origin, "about": about, "files": files, "xmclab": __version__}
                (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            return Entry(path, about)

    def _open(self, path: Path, key: Key) -> Entry:
        """A sound folder; `FileNotFoundError` if there is none, `Damaged` if it is not what was built."""
        if not path.is_dir():
            raise FileNotFoundError(path)
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if manifest["key"] != key:
                raise Damaged(f"{MANIFEST} is about something else")
            for wanted in manifest["files"]:
                file = path / wanted["name"]
                if (size := file.stat().st_size) != wanted["bytes"]:
                    raise Damaged(f"{file.name} has {size:,} bytes instead of {wanted['bytes']:,}")
                if self.verify and _described(file) != wanted:
                    raise Damaged(f"{file.name} has other bytes than were written")
            return Entry(path, manifest["about"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(str(error) or type(error).__name__) from error

    @contextlib.contextmanager
    def _alone(self, path: Path, what: str) -> Iterator[None]:
        """Wait for whoever builds this folder; then nobody else does, and what a killed one left is swept away."""
        with storage_errors(self._where):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path.with_suffix(".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.note(f"{what}: another process is building {path}, waiting for it")
                lock.acquire()
        try:
            for left in self.folder.glob(f".{path.name}.*"):
                shutil.rmtree(left, ignore_errors=True)
            yield
        finally:
            lock.release()

    def _reason(self, origin: str, key: Key) -> str:
        """Why nothing that is there can be used: what changed since the most similar folder was built."""
        changes = [
            [_change(name, old[name]) for name in key if name in old and old[name] != key[name]]
            for old in self._keys(origin)
        ]
        return ", ".join(sorted(changes, key=len)[0]) if changes else "for the first time"

    def _keys(self, origin: str) -> Iterator[dict[str, Any]]:
        """The keys of what was built before for the same origin."""
        for file in sorted(self.folder.glob(f"[!.]*/{MANIFEST}")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                manifest = json.loads(file.read_text(encoding="utf-8"))
                if manifest["origin"] == origin:
                    yield dict(manifest["key"])


def _change(name: str, old: Any) -> str:
    """A part of a key that is not what it was; a digest means nothing to anybody."""
    return f"{name} changed" if isinstance(old, str) and len(old) == DIGEST else f"{name} was {old}"


def _described(file: Path) -> dict[str, Any]:
    return {"name": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)}
