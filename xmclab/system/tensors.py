"""Tensor files: safetensors that appear whole, with the permissions of other files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xmclab.system.files import permitted, synced

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of host memory, replacing an older file only once the new one is complete on disk.

    On a full disk the library raises an error of its own, which `storage_errors` knows.
    """
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(dict(tensors), temporary)
        permitted(temporary)
        synced(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
