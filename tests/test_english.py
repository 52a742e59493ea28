"""English in messages, help and docs: patterns that read as translated do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *(file for folder in ("xmclab", "plugins", "examples") for file in sorted((ROOT / folder).rglob("*.py"))),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]
PATTERNS = {
    "is no X": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|better\b|worse\b|need\b)[a-z]+",
    "anew": r"\banew\b",
    "at the most": r"\bat the (?:most|least)\b",
    "is told": r"\b(?:is|are|was|be) told\b(?! apart)",
    "to be had": r"\bto be had\b",
    "by its nature": r"\bby (?:its|their) nature\b",
    "help that begins with 'of'": r"""(?:option\([^"\n]*|help=)"[Oo]f """,
    "in terms of JSON": r"\bin terms of JSON\b",
}


def found(text: str) -> Iterator[tuple[int, str]]:
    """(line, name of the pattern)"""
    for number, line in enumerate(text.splitlines(), start=1):
        yield from ((number, name) for name, pattern in PATTERNS.items() if re.search(pattern, line))


def test_nothing_reads_as_translated() -> None:
    lines = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in FILES
        for line, name in found(file.read_text(encoding="utf-8"))
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("focal is no term of loss.clf", "is no X"),
        ("there is no such file", None),
        ("it is no longer there", None),
        ('seed: int = option(0, "of every random draw", ge=0)', "help that begins with 'of'"),
        ('typer.Option("--seed", help="Of the draws.")', "help that begins with 'of'"),
        ("10 labels of a row at the most", "at the most"),
        ("clusters are made anew", "anew"),
    ],
)
def test_a_foreign_line_is_found(line: str, name: str | None) -> None:
    assert [pattern for _, pattern in found(line)] == ([name] if name else [])
