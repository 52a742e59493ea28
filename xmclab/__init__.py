"""xmclab: a pluggable loss-and-sampler toolkit for extreme multi-label classification.

Importing this package is cheap; its names, and torch, are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmclab.host.compose import objective
    from xmclab.host.hookspecs import API_VERSION, CommandRef, PartRef, command, hookimpl, part
    from xmclab.objectives.objective import Objective
    from xmclab.options import option

__version__ = "0.1.0"
__all__ = [
    "API_VERSION",
    "CommandRef",
    "Objective",
    "PartRef",
    "__version__",
    "command",
    "hookimpl",
    "objective",
    "option",
    "part",
]

_LAZY = {
    **dict.fromkeys(("API_VERSION", "CommandRef", "PartRef", "command", "hookimpl", "part"), "xmclab.host.hookspecs"),
    "option": "xmclab.options",
    "objective": "xmclab.host.compose",
    "Objective": "xmclab.objectives.objective",
    "api": "xmclab.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xmclab' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    return module if name == "api" else getattr(module, name)
