"""The mathematics: expressions, terms under reductions, values and gradients. Imports only api, errors and kernels.

Losses are in plugins/xmclab_losses; `curves.py` has the base of binary losses that are two curves. Plugins may use the
names below; each is imported on first use, since most need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmclab.objectives.engine import divisor
    from xmclab.objectives.expr import TermSpec, parse_expression
    from xmclab.objectives.objective import Objective, Term
    from xmclab.objectives.reductions.psl import Psl

__all__ = ["Objective", "Psl", "Term", "TermSpec", "divisor", "parse_expression"]

_LAZY = {
    "Objective": "objective",
    "Psl": "reductions.psl",
    "Term": "objective",
    "TermSpec": "expr",
    "divisor": "engine",
    "parse_expression": "expr",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
