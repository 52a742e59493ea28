"""The contract kit: the laws of every kind of part, as tests; and `xmclab new`. Commands `check` and `new`.

    from xmclab_kit import loss_contract
    from my_loss import Mine

    test_contract = loss_contract(Mine, margin=0.5)

Each `*_contract` returns a pytest test with a case per law; `xmclab check loss:mine` prints the same. They need
`pip install "xmclab[testing]"`; these names are imported lazily.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import xmclab

if TYPE_CHECKING:
    from xmclab_kit.contracts import (
        encoder_contract,
        examine,
        head_contract,
        laws_of,
        loss_contract,
        miner_contract,
        reduction_contract,
        sampler_contract,
        search_contract,
        transform_contract,
    )
    from xmclab_kit.core import Broken, Examination, Law, Subject, Verdict, Violation

__all__ = [
    "Broken",
    "Examination",
    "Law",
    "Subject",
    "Verdict",
    "Violation",
    "encoder_contract",
    "examine",
    "head_contract",
    "laws_of",
    "loss_contract",
    "miner_contract",
    "reduction_contract",
    "sampler_contract",
    "search_contract",
    "transform_contract",
]


@xmclab.hookimpl
def xmclab_commands() -> list[xmclab.CommandRef]:
    write = "Create a working part to start from: xmclab new loss mine --file"
    hold = "Check parts against the laws of their kind: xmclab check loss:mine plugin=./mine.py"
    return [
        xmclab.command("new", "xmclab_kit.new:new", help=write),
        xmclab.command("check", "xmclab_kit.check:check", help=hold),
    ]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "core" if name[0].isupper() else "contracts"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
