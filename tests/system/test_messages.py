"""Notes and warnings of the library, as a command prints them."""

from __future__ import annotations

import logging

import pytest

from xmclab.system import messages


def test_a_message_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A command may read the same table for many runs."""
    logger = logging.getLogger("xmclab.some")
    for _ in range(2):
        with messages.shown():
            for name in ("a.csv", "a.csv", "b.csv", "a.csv"):
                logger.info("%s: labels are separated", name)
            logger.warning("a.csv: labels are separated")
    expected = ["note: a.csv: labels are separated", "note: b.csv: labels are separated"]
    expected.append("warning: a.csv: labels are separated")
    assert capsys.readouterr().err.splitlines() == expected * 2


def test_a_message_breaks_at_blanks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    with messages.shown():
        logging.getLogger("xmclab.some").info("no label is left for all queries")
    assert capsys.readouterr().err.splitlines() == ["note: no label is", "left for all queries"]
