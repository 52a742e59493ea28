"""The consoles of all commands."""

from __future__ import annotations

from typing import Any

import rich.console
from rich.text import Text

from xmclab.system.terminal import printable


class Console(rich.console.Console):
    """A console that shows control characters instead of obeying them, and leaves `:words:` as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string comes through here, those in cells and titles of tables included."""
        return super().render_str(printable(text, lines=True), **options)
