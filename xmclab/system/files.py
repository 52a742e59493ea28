"""Atomic writes: files and folders are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, BinaryIO

from xmclab.errors import Problem, StorageError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, a quota, a limit on the size of files


@contextlib.contextmanager
def new_file(path: Path, where: str) -> Iterator[IO[str]]:
    """A text file that appears, replacing an older one, only if the block succeeds.

    Args:
        where: what the user typed, for errors.
    """
    with new_binary(path, where) as raw:
        stream = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        try:
            yield stream
            stream.flush()
        finally:
            with contextlib.suppress(OSError):  # what is left to write is thrown away with the file
                stream.detach()


@contextlib.contextmanager
def new_binary(path: Path, where: str) -> Iterator[BinaryIO]:
    """The same for bytes."""
    with storage_errors(where, path.parent):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            permitted(Path(temporary))
            os.replace(temporary, path)
            synced(path.parent)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def refuse_existing(path: Path, where: str) -> None:
    """Raise `StorageError` if there is something of this name that a new file would replace."""
    if path.exists():
        raise StorageError(Problem(where, "exists", "choose another file, or use --overwrite"))


@contextlib.contextmanager
def new_folder(path: Path, where: str = "") -> Iterator[Path]:
    """A folder to fill that appears only if the block succeeds.

    Args:
        path: must not exist or be an empty folder.
        where: what the user typed, for errors; the path by default.
    """
    where = where or str(path)
    with storage_errors(where, path.parent):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StorageError(Problem(where, "exists and is not an empty folder", "choose a new folder"))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            yield temporary
            for path_inside in (temporary, *temporary.rglob("*")):
                permitted(path_inside)
                synced(path_inside)
            os.replace(temporary, path)
            synced(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextlib.contextmanager
def storage_errors(where: str, folder: Path | None = None, needed: int = 0) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` about what the user typed.

    Args:
        folder: where the block writes, if known; with the bytes it needs, for a full disk.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        if (found := as_os_error(error)) is None:
            raise
        raise StorageError(_problem(where, found, folder, needed)) from error


def _problem(where: str, error: OSError, folder: Path | None, needed: int) -> Problem:
    reason = f"cannot be written: {error.strerror or error}"
    if error.errno not in NO_ROOM or folder is None:
        return Problem(where, reason)
    sizes = f"{needed:,} bytes needed, " if needed else ""
    free = f"{shutil.disk_usage(folder).free:,} bytes free"
    return Problem(where, f"{reason} ({sizes}{free})", "free some space, or raise the quota")


def as_os_error(error: Exception) -> OSError | None:
    """The error of the system: itself, or the one that an error of safetensors quotes; otherwise None."""
    if isinstance(error, OSError):
        return error
    if type(error).__name__ != "SafetensorError" or not (found := re.search(r"os error (\d+)", str(error))):
        return None
    return OSError(int(found[1]), os.strerror(int(found[1])))


def path_inside(folder: Path, name: str) -> Path:
    """A file of a folder, or of a folder in it, by a name that something else wrote.

    Raises:
        ValueError: the name leads out of the folder, by itself or through a symbolic link; says how.
    """
    if "\0" in name or not name:
        raise ValueError("is not a file name")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or ".." in re.split(r"[/\\]", name):
        raise ValueError("leads out of its folder")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError("is a link out of its folder")
    return path


def sha256_of(path: Path) -> str:
    """The hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def permitted(path: Path) -> None:
    """Give a temporary file or folder the permissions of any other new one."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())


def synced(path: Path) -> None:
    """Flush a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _umask() -> int:
    """The umask of the process, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
