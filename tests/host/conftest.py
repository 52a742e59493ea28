"""What the tests of the host share: registries and plugins in a string."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xmclab.host.registry import Registry, load_registry

LOSS = """
from dataclasses import dataclass
import xmclab
from xmclab.api import MultiClassLoss

@dataclass
class Mine(MultiClassLoss):
    '''A loss of mine.

    Formula: nothing.
    '''
    sharpness: int = xmclab.option(3, "how sharp", ge=1, lt=10)

    def terms(self, s_QP, y_QP):
        return -s_QP

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("loss", "NAME", Mine)]
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry({})


def loss_called(name: str) -> str:
    """The source of a plugin with one loss."""
    return LOSS.replace("NAME", name)


@pytest.fixture(scope="session", name="loss_called")
def loss_called_fixture() -> Callable[..., Any]:
    return loss_called


def load(**environment: str) -> Registry:
    """The registry under these environment variables."""
    return load_registry(environment)


@pytest.fixture(scope="session", name="load")
def load_fixture() -> Callable[..., Any]:
    return load
