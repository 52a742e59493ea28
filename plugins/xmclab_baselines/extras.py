"""Baselines over packages that xmclab does not require."""

from __future__ import annotations

from importlib.util import find_spec

from xmclab.errors import ConfigError, Problem


def require(module: str, baseline: str, extra: str) -> None:
    """Refuse a baseline whose package is not installed, before anything trains."""
    if find_spec(module) is None:
        raise ConfigError(Problem(f"baseline {baseline}", f"needs {module}", f'pip install "xmclab[{extra}]"'))
