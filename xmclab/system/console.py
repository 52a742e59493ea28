"""The consoles of all commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from xmclab.system.terminal import broken, printable


def plain(text: str) -> str:
    """A text for a line or a cell: printable, and without markup of its own."""
    return escape(printable(text))


TRAILING = re.compile(r" +(?=\n)")


class Console(rich.console.Console):
    """A console that shows control characters instead of obeying them, and leaves `:words:` as they are.

    In files and pipes, lines end where their text ends. On a terminal, lines without markup that are printed with
    `soft_wrap` break at blanks; elsewhere they stay whole.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def print(self, *objects: Any, markup: bool | None = None, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does; see above for `soft_wrap`."""
        if soft_wrap and markup is False and self.is_terminal:
            objects = tuple(broken(each, self.width) if isinstance(each, str) else each for each in objects)
        super().print(*objects, markup=markup, soft_wrap=soft_wrap, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string comes through here, those in cells and titles of tables included."""
        return super().render_str(printable(text, lines=True), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """What is about to be written."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else TRAILING.sub("", text)
