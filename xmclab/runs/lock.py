"""A run folder is claimed by the one process that trains in it. The system drops the lock of a dead process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from xmclab.errors import Problem, StorageError
from xmclab.runs import store
from xmclab.system.files import storage_errors

LOCK, HOLDER = ".lock", ".lock.json"  # the locked file; who holds it
WRITTEN = (store.MANIFEST, store.ENVIRONMENT, store.CONFIG, store.WEIGHTS, store.RESULT, store.LABELS, store.INDEXES)
BEFORE = {
    store.ENCODER,
    store.LABELS,
    store.ENVIRONMENT,
    store.CONFIG,
    store.STAGES,
    store.DATA,
}  # written before the manifest
TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, WRITTEN))})\.([a-z0-9_]{{8}}|\d+)")  # before it is renamed


@contextlib.contextmanager
def claimed(out: Path | None, name: str, resume: bool = False) -> Iterator[Path]:
    """A run folder to write to, `runs/NAME-TIME` by default, locked within the block.

    A folder that the block leaves empty is removed.

    Args:
        resume: accept the folder of an earlier run.

    Raises:
        StorageError: it cannot be written, is in use, or has other files.
    """
    where = f"--out {out or 'runs'}"
    with storage_errors(where):
        created = out is None or not out.exists()
        folder = out or _new_folder(Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        folder.mkdir(parents=True, exist_ok=True)
        if _contents(folder) and not resume and not (folder / LOCK).exists():
            raise _refusal(folder, where)
    with locked(folder, where):
        if resume:
            _sweep(folder)
        contents = set(_contents(folder))
        begun = resume and (store.MANIFEST in contents or contents <= BEFORE)
        if contents and not begun:
            if resume and store.CONFIG in contents:
                raise StorageError(Problem(str(folder / store.MANIFEST), "missing", store.CHANGED))
            raise _refusal(folder, where)
        try:
            yield folder
        finally:
            if created and folder.is_dir() and not _contents(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _contents(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in (LOCK, HOLDER)]


def _sweep(folder: Path) -> None:
    """Delete the temporary files of a process that was killed."""
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _refusal(folder: Path, where: str) -> StorageError:
    if (folder / store.CONFIG).is_file() and not (folder / store.RESULT).is_file():
        hint = f"resume it with: xmclab run --resume {shlex.quote(str(folder))}; or choose a new folder"
        return StorageError(Problem(where, "the folder holds an unfinished run", hint))
    return StorageError(Problem(where, "the folder is not empty", "choose a new folder, or empty it"))


def _new_folder(wanted: Path) -> Path:
    """Create this folder, or the first free one with `-2`, `-3`, ... appended to its name."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always a next number")


@contextlib.contextmanager
def locked(folder: Path, where: str) -> Iterator[None]:
    """Hold the lock of a folder.

    Args:
        where: what the user typed, for errors.

    Raises:
        StorageError: another process holds it; names its pid and host.
    """
    with storage_errors(where):
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            hint = "wait for it, stop it, or choose another folder"
            raise StorageError(Problem(where, f"the folder is in use by {_holder(folder)}", hint)) from None
    try:
        with storage_errors(where):
            holder = {"pid": os.getpid(), "host": socket.gethostname()}
            (folder / HOLDER).write_text(json.dumps(holder) + "\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return f"process {int(holder['pid'])} on {holder['host']!s:.100}"
    except (OSError, ValueError, KeyError, TypeError):  # it is only just starting
        return "another process"
