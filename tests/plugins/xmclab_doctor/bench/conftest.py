"""The smallest report that has everything, made once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xmclab_doctor.bench import peaks, report
from xmclab_doctor.bench.equality import Steps
from xmclab_doctor.bench.rows import Row, Size
from xmclab_doctor.bench.synthetic import Network

NETWORK = Network(1, 16, 2, 60, 32)
TINY = Size(
    NETWORK,
    (
        Row("titles", 16, (8, 16), 40, (8, 16), 100, 8),
        Row("all labels", 16, (8, 16), 0, None, 200, 8),
    ),
    steps=1,
    product=64,
    losses=("ds", "bce"),
    tables=("adamw",),
    trained=2,
)


@pytest.fixture(scope="session")
def tiny_report() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peaks, "SECONDS", 0.01)
        patch.setattr(report, "COMPARED", NETWORK)
        return report.bench(TINY)


@pytest.fixture(scope="session")
def small_steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    return Steps(tmp_path_factory.mktemp("equality"), torch.device("cpu"), NETWORK, trained=2)
