"""TensorBoard: the numbers of a run as scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.api import Tracker
from xmclab_trackers.records import installed, numbers


@dataclass
class TensorBoard(Tracker):
    """The numbers of all records as TensorBoard scalars, in `tensorboard/` of the run folder."""

    def __post_init__(self) -> None:
        self._module = installed("torch.utils.tensorboard", "tensorboard")
        self._step = 0

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = str(folder / "tensorboard")
        self._writer: Any = None

    def log(self, record: Mapping[str, Any]) -> None:
        if self._writer is None:  # steps that are done again replace those of an earlier process
            again = record["step"] if record["event"] == "resume" else None
            self._writer = self._module.SummaryWriter(self._folder, purge_step=again)
        self._step = record.get("step", self._step)
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, self._step)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
