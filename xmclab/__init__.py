"""xmclab: a pluggable loss-and-sampler toolkit for extreme multi-label classification.

Importing this package is cheap; torch is imported on first use of a name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xmclab.host.hookspecs import API_VERSION, CommandRef, PartRef, command, hookimpl, part
from xmclab.options import option

if TYPE_CHECKING:
    from xmclab.host.compose import objective
    from xmclab.objectives.objective import Objective

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

_LAZY = {"objective": "xmclab.host.compose", "Objective": "xmclab.objectives.objective", "api": "xmclab.api"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xmclab' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    return module if name == "api" else getattr(module, name)
