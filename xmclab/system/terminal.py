"""Texts on a terminal: control characters are made visible, so that data cannot steer it."""

from __future__ import annotations

import json
import re
from typing import IO, Any

# C0 and C1 but tab and newline, line separators, the controls that turn the direction of text, lone surrogates.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
SURROGATES = re.compile(r"[\ud800-\udfff]")
WORD = re.compile(r" *[^ ]+")  # and the blanks before it
NAMES = {"\n": "\\n", "\r": "\\r"}


def printable(text: str, lines: bool = False) -> str:
    """The text with its control characters as escapes: ESC becomes the four characters `\\x1b`.

    Args:
        lines: keep line breaks; otherwise the result is one line.
    """
    text = CONTROLS.sub(_escaped, text)
    return text if lines else text.replace("\n", NAMES["\n"])


def shown(text: str, stream: IO[str]) -> str:
    """The text as it is, but on a terminal printable: files and pipes get the bytes of the data."""
    return printable(text, lines=True) if stream.isatty() else text


def in_lines(text: str, stream: IO[str]) -> str:
    """The text as it is, but broken at blanks for a terminal."""
    if not stream.isatty():
        return text
    from rich.console import Console  # only a terminal needs it

    return broken(text, Console(file=stream).width)


def broken(text: str, width: int) -> str:
    """The text in lines of at most this width, which end at blanks; a word that does not fit stays whole."""
    from rich.cells import cell_len

    lines = []
    for line in text.split("\n"):
        current = ""
        for word in WORD.findall(line):
            if current.strip() and cell_len(current + word) > width:
                lines.append(current)
                current = word.lstrip(" ")
            else:
                current += word
        lines.append(current)
    return "\n".join(lines)


def json_text(document: Any, stream: IO[str], indent: int | None = None) -> str:
    """A JSON document for this stream: the same value on a terminal, where control characters are escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    pattern = CONTROLS if stream.isatty() else SURROGATES  # a lone surrogate cannot be encoded
    return pattern.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return NAMES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
