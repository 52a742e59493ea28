"""The console: texts cannot steer it, wherever they stand."""

from __future__ import annotations

import io

from rich.table import Table

from xmclab.system.console import Console, plain

EVIL = "\x1b[2Jx\u202e :bomb:"


def test_strings_are_printable_in_lines_titles_headings_and_cells() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    table = Table(EVIL, title=EVIL, caption=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, EVIL, markup=False)
    written = stream.getvalue()
    assert "\x1b[2J" not in written
    assert "\u202e" not in written
    assert written.count(r"\x1b[2Jx\u202e :bomb:") == 6


def test_a_plain_text_has_no_markup_and_one_line() -> None:
    stream = io.StringIO()
    Console(file=stream).print(plain("[bold]a[/x]\nb\x1b"))
    assert stream.getvalue() == "[bold]a[/x]\\nb\\x1b\n"


def test_only_a_terminal_gets_blanks_at_the_ends_of_lines() -> None:
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, width=40, force_terminal=terminal, color_system=None)
        table = Table("name", "what", box=None, title="A title", title_justify="left")
        table.add_row("a", "b")
        table.add_row("longer", "longer than the others")
        console.print(table)
        assert any(line.endswith(" ") for line in stream.getvalue().splitlines()) is terminal


def test_long_lines_break_at_blanks_on_a_terminal_and_nowhere_else() -> None:
    text = f"red is ahead of blue on all queries: {'x' * 30} and so on"
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, width=20, force_terminal=terminal, color_system=None)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        lines = [line.rstrip() for line in stream.getvalue().splitlines()]
        if terminal:
            assert lines == ["red is ahead of blue", "on all queries:", "x" * 30, "and so on"]
        else:
            assert lines == [text]
