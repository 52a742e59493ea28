"""A comparison made by hand; and `planted`, which tests of this folder import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from xmclab_bench.document import Document, completed

sys.path.append(str(Path(__file__).parent))

METRICS = {"P@1": (40.0, 30.0), "PSP@1": (20.0, 25.0)}
BASELINE = {"mean": 35.0, "sd": None, "values": [35.0], "best": False}
APART = {"value": 1.0, "low": 0.5, "high": 1.75, "p": 0.01}
BEHIND = {"value": -5.0, "low": -6.0, "high": -4.0, "p": 0.01}


def _row(name: str, search: str, at: int) -> dict[str, Any]:
    metrics = {
        metric: {"mean": values[at], "sd": 0.5, "values": [values[at] - 0.5, values[at] + 0.5], "best": at == 0}
        for metric, values in METRICS.items()
    }
    bands = {"head": {"P@1": 10.0, "PSP@1": 2.0}, "torso": {"P@1": 15.0, "PSP@1": 8.0}, "tail": {"P@1": 5.0}}
    return {"name": name, "column": "", "search": search, "metrics": metrics, "bands": bands, "target": None}


def _group(name: str, at: int) -> dict[str, Any]:
    curve = [
        {
            "seed": 0,
            "split": "validation" if at else "test",
            "epoch": epoch,
            "seconds": 10.0 * epoch,
            "metrics": {search: {"P@1": 20.0 + epoch + at} for search in ("de", "clf")},
        }
        for epoch in (1, 2, 3)
    ]
    pool = [
        {"epoch": e, "queries": 512.0, "pool": 900.0 + at, "positives": 2.5 + at, "loss": 3.0 / e} for e in (1, 2, 3)
    ]
    return {
        "name": name,
        "column": "",
        "seeds": [0, 1],
        "epochs": 3 + at,
        "state": "finished" if at == 0 else "training, 1 of 4 epochs done",
        "measures": {"train": {"mean": 12.0 + at, "sd": 1.0, "values": [11.0, 13.0]}, "memory": None},
        "curves": [curve],
        "pool": pool,
        "differs": {"loss.de.expression": name},
    }


@pytest.fixture
def document() -> Document:
    names = ("A & B", "</script><b>x</b> | 50 %_")
    made = {
        "name": "by_hand",
        "title": "Two <rows> & more",
        "metrics": list(METRICS),
        "searches": ["de", "clf"],
        "measures": ["train", "memory"],
        "target": ["P@1", 30.0],
        "budget": "steps",
        "columns": "",
        "seeds": [0, 1],
        "data": [{"name": "tiny", "sha256": "0", "train": 1262, "test": 399, "labels": 922}],
        "environment": {"python": "3.11", "packages": {"torch": "2"}},
        "rows": [_row(name, search, at) for at, name in enumerate(names) for search in ("de", "clf")],
        "groups": [_group(name, at) for at, name in enumerate(names)],
        "tests": [
            {"search": search, "column": "", "metric": metric, "a": names[0], "b": names[1], **found}
            for search in ("de", "clf")
            for metric, found in zip(METRICS, (APART, BEHIND), strict=True)
        ],
        "heads": [
            {"name": name, "column": "", "metric": metric, "a": "de", "b": "clf", **APART}
            for name in names
            for metric in METRICS
        ],
        "left_out": [{"name": "C", "column": "", "seed": 3, "reason": "not <possible>"}],
        "baselines": [{"name": "tfidf", "data": "0", "metrics": {"P@1": BASELINE}}],
        "fingerprint": "by hand",
        "command": "xmclab bench 'by hand.yaml' seed=0,1",
        "date": "2025-01-31T12:00:00+00:00",
    }
    return completed(made)
