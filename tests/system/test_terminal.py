"""Texts for a terminal: every control character is visible, everything else is as it was."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest

from xmclab.system.terminal import in_lines, json_text, printable, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plot \t functions", "plot \t functions"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\x08\x7f\x9b\x85", r"a\nb\r\x08\x7f\x9b\x85"),
        ("\u202eexe\u2066\u2028", r"\u202eexe\u2066\u2028"),
        ("\ud800", r"\ud800"),
        ("שלום é 漢字 👩\u200d🔬 \\x1b", "שלום é 漢字 👩\u200d🔬 \\x1b"),
    ],
)
def test_controls_become_escapes(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_every_control_of_unicode_is_escaped() -> None:
    controls = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp")]
    assert [each for each in controls if each != "\t" and printable(each) == each] == []


def test_lines_are_kept_where_they_are_wanted() -> None:
    assert printable("a\nb\x1b", lines=True) == "a\nb\\x1b"


def test_only_a_terminal_gets_another_text() -> None:
    assert shown("a\n\x1b", io.StringIO()) == "a\n\x1b"
    assert shown("a\n\x1b", Terminal()) == "a\n\\x1b"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_json_keeps_its_value(stream: io.StringIO) -> None:
    document = {"\x9b": ["\x1b\u202e\n", "é\ud800"]}
    text = json_text(document, stream, indent=1)
    assert json.loads(text) == document
    assert ("\x9b" in text, "\u202e" in text) == (not stream.isatty(), not stream.isatty())
    assert "é" in text
    text.encode()


def test_lines_of_a_terminal_end_at_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("TERM", "xterm")
    text = "note: validation is on, so [bold]the best epoch is kept"
    assert in_lines(text, io.StringIO()) == text
    assert in_lines(text, Terminal()).splitlines() == ["note: validation is on,", "so [bold]the best epoch", "is kept"]
