"""Writes the records of a run to its folder."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.api import Tracker


@dataclass
class JsonLines(Tracker):
    """Writes a JSON line per record to `metrics.jsonl` in the run folder. Every run has it."""

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._file = (folder / "metrics.jsonl").open("ab", buffering=0)

    def log(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record) + "\n").encode()
        start = self._file.tell()
        if self._file.write(line) < len(line):  # the disk is full: better no line than a partial one
            self._file.truncate(start)
            raise OSError(errno.ENOSPC, "no room for another line", self._file.name)

    def end(self) -> None:
        self._file.close()
