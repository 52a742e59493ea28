"""Folders of tensors that are whole or absent: written beside their place, flushed, described, then renamed.

manifest.json     format, versions, what the writer says about the folder; size and sha256 of each file; its own sha256
*.safetensors     tensors; those with rows per label (or word) in files of ranges of rows, so that several processes
                  can write theirs and another number of processes read them
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from xmclab import __version__
from xmclab.errors import Problem, StorageError
from xmclab.runs.store import damage_reported
from xmclab.system import manifests
from xmclab.system.files import synced
from xmclab.system.manifests import described, verify
from xmclab.system.tensors import write_tensors

MANIFEST, CHECKSUM, FORMAT = "manifest.json", "sha256", 1
TEMPORARY = ".tmp-"
HINT = "an earlier checkpoint may be intact"


def write_folder(root: Path, name: str, files: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> Path:
    """Write tensors by file name; the folder appears once it is complete, and replaces a damaged one.

    Args:
        root: exists.

    Raises:
        OSError: nothing appears.
    """
    temporary = root / f"{TEMPORARY}{name}-{os.getpid()}"
    try:
        temporary.mkdir()  # without parents: a run folder that was moved away must not come back in part
        for file, tensors in files.items():
            write_tensors(temporary / file, tensors)
        document = {"format": FORMAT, "xmclab": __version__, "torch": torch.__version__, "numpy": np.__version__}
        document |= {**about, "files": described(temporary)}
        document[CHECKSUM] = checksum(document)
        manifest = temporary / MANIFEST
        manifest.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        synced(manifest)
        synced(temporary)
        shutil.rmtree(root / name, ignore_errors=True)
        os.replace(temporary, root / name)
        synced(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return root / name


def checksum(document: Mapping[str, Any]) -> str:
    """The sha256 of a manifest without its own."""
    as_read = json.loads(json.dumps(document))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path, contents: bool = True) -> dict[str, Any]:
    """The manifest of a folder whose files are as they were written.

    Args:
        contents: compare checksums, not only sizes.

    Raises:
        StorageError: a file is missing or changed, or a newer xmclab wrote the folder.
    """
    manifest = manifests.read_manifest(folder / MANIFEST, FORMAT, HINT)
    if manifest.pop(CHECKSUM, None) != checksum(manifest):
        raise StorageError(Problem(str(folder / MANIFEST), "changed: its sha256 is another one", HINT))
    for name in manifest["files"]:
        verify(folder, name, manifest["files"], MANIFEST, HINT, contents)
    return manifest


def read_tensors(folder: Path, file: str) -> dict[str, Tensor]:
    """The tensors of a file."""
    with damage_reported(folder / file):
        tensors: dict[str, Tensor] = load_file(folder / file)
        return tensors


def read_rows(folder: Path, parts: Mapping[str, int], rows: int) -> dict[str, Tensor]:
    """The tensors of a table from files of ranges of rows, which must cover all of them.

    Args:
        parts: file -> its first row.
        rows: how many there are.
    """
    found: dict[str, list[Tensor]] = {}
    end = 0
    for file, first in sorted(parts.items(), key=lambda part: part[1]):
        tensors = read_tensors(folder, file)
        if first != end:
            raise StorageError(Problem(str(folder / file), f"damaged: starts at row {first:,}, not {end:,}", HINT))
        for key, tensor in tensors.items():
            found.setdefault(key, []).append(tensor)
        end += len(next(iter(tensors.values())))
    if end != rows or len({len(some) for some in found.values()}) > 1:
        raise StorageError(Problem(str(folder), f"damaged: {end:,} of {rows:,} rows of a table", HINT))
    return {key: some[0] if len(some) == 1 else torch.cat(some) for key, some in found.items()}
