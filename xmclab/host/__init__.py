"""Finds parts, recipes, data sets and commands in plugins, and resolves overrides to one config.

Does not import torch. Plugins may use the names below; each is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmclab.host.compose import build_objective
    from xmclab.host.config import Config
    from xmclab.host.hookspecs import KINDS
    from xmclab.host.load import exception_line, fault_of_class
    from xmclab.host.options import make_part, options_of, read_options
    from xmclab.host.registry import Registry, default_registry
    from xmclab.host.resolver import resolve
    from xmclab.host.schema import SHORTHANDS

__all__ = [
    "KINDS",
    "SHORTHANDS",
    "Config",
    "Registry",
    "build_objective",
    "default_registry",
    "exception_line",
    "fault_of_class",
    "make_part",
    "options_of",
    "read_options",
    "resolve",
]

_MODULES = {
    "compose": ("build_objective",),
    "config": ("Config",),
    "hookspecs": ("KINDS",),
    "options": ("make_part", "options_of", "read_options"),
    "load": ("exception_line", "fault_of_class"),
    "registry": ("Registry", "default_registry"),
    "resolver": ("resolve",),
    "schema": ("SHORTHANDS",),
}
_LAZY = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
