"""Losses and metrics as a CSV file beside the other files of the run.

Columns:  event, step or epoch, name, value
Use when: a spreadsheet should follow the run; docs/plugins.md lists what records hold
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xmclab
from xmclab.api import Tracker


@dataclass
class PartName(Tracker):
    """Writes the loss of every step and the metrics of every evaluation as CSV."""

    file: str = xmclab.option("curves.csv", "name of the file in the run folder")

    def __post_init__(self) -> None:
        self._stream: IO[str] | None = None

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Open the file; a run that is resumed goes on in it."""
        self._stream = (folder / self.file).open("a", newline="", encoding="utf-8")

    def log(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record, if it has any of interest."""
        assert self._stream is not None, "a run starts its trackers first"
        rows = csv.writer(self._stream)
        if record["event"] == "step":
            rows.writerow(["step", record["step"], "loss", record["loss"]])
        elif record["event"] == "eval":
            for search, metrics in record["metrics"].items():
                for metric, value in metrics.items():
                    name = f"{search} {metric}"
                    rows.writerow([record["split"], record["epoch"], name, value])

    def end(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()
