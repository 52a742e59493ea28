"""Where the records of a run go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from xmclab.api import Tracker


@dataclass
class JsonLines(Tracker):
    """A line of JSON per record, in `metrics.jsonl` of the run folder."""

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._file: TextIO = (folder / "metrics.jsonl").open("w", encoding="utf-8", buffering=1)

    def log(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")

    def end(self) -> None:
        self._file.close()
