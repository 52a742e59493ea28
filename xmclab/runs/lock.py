"""The lock of a run folder: one process trains in it. The system drops the lock of a dead process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from xmclab.errors import Problem, StorageError
from xmclab.system.files import storage_errors

LOCK, HOLDER = ".lock", ".lock.json"  # the locked file; who holds it


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
