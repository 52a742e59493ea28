"""Tensor files: safetensors that appear whole, with the permissions of other files and plain errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xmclab.system.files import permitted, synced

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of host memory, replacing an older file only once the new one is complete on disk.

    Raises:
        OSError: as of any file; the library has an error of its own for a full disk.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(dict(tensors), temporary)
        permitted(temporary)
        synced(temporary)
        os.replace(temporary, path)
    except SafetensorError as error:
        raise as_os_error(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def as_os_error(error: Exception, path: Path) -> OSError:
    """The error of the system behind one of the library, which only quotes it."""
    found = re.search(r"os error (\d+)", str(error))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number) if found else str(error), str(path))
