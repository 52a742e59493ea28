"""Findings on a terminal of 80 columns."""

from __future__ import annotations

import io

from xmclab.system.console import Console
from xmclab_doctor.findings import exit_code, note, ok, problem
from xmclab_doctor.show import show

FIX = "pip install --force-reinstall torch --index-url URL, with the URL for cu126 from pytorch.org"
FOUND = [
    ok("software", "torch", "2.13.0, for CUDA 12.8"),
    note("optional", "triton", "is not installed", "compile=true fails without it; " * 5, "pip install triton"),
    problem("hardware", "driver", "[red]none[/red]\x1b[2J", "no run can use the card", FIX),
]


def text() -> str:
    stream = io.StringIO()
    show(Console(file=stream, width=80, highlight=False), FOUND)
    return stream.getvalue()


def test_lines_fit_except_those_to_be_copied() -> None:
    lines = text().splitlines()
    assert max(len(line) for line in lines if "-> " not in line) <= 80
    assert f"         -> {FIX}" in lines
    assert lines[:2] == ["Software", "ok       torch: 2.13.0, for CUDA 12.8"]
    assert lines[-1] == "1 problem, 1 note"


def test_areas_come_in_one_order_and_nothing_steers_the_terminal() -> None:
    lines = text().splitlines()
    assert [line for line in lines if line in ("Software", "Hardware", "Optional packages")] == [
        "Software",
        "Hardware",
        "Optional packages",
    ]
    assert any(line.startswith("problem  driver: [red]none[/red]") for line in lines)
    assert "\x1b" not in text()


def test_only_problems_have_an_exit_code() -> None:
    assert (exit_code(FOUND[:2]), exit_code(FOUND)) == (0, 4)
