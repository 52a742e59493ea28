"""A pluggable loss-and-sampler toolkit for extreme multi-label classification.

    import xmclab as xl

    data = xl.read("mine.csv")                       # a name, a folder, a file, a DataFrame or rows
    run = xl.train("unidec", data, "loss.clf=ds+bce", epochs=5)
    run.predict(["some text"], k=5)

read        data for the other functions
train       train and evaluate; a `Run` with metrics and predictions
resume      continue a run that was stopped
replay      repeat a single step of a run
load        a `Model` from a run folder or an export: predict, rank, export
evaluate    measure a model on a data set
compare     compare runs by a paired test
objective   the loss of an expression such as `ds+bce`, for a loop of your own
api         every interface that a part of your own can implement

Mistakes raise `XmclabError`, with what the command line would print.
Importing this package is cheap; its names, and torch, are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmclab.errors import XmclabError
    from xmclab.host.compose import objective
    from xmclab.host.hookspecs import API_VERSION, CommandRef, PartRef, command, hookimpl, part
    from xmclab.objectives.objective import Objective
    from xmclab.options import option
    from xmclab.python.data import Data, read
    from xmclab.python.measure import compare, evaluate
    from xmclab.python.model import Model, load
    from xmclab.python.run import Run, replay, resume, train
    from xmclab.python.sentence_loss import SentenceTransformerLoss

__version__ = "0.1.0"
__all__ = [
    "API_VERSION",
    "CommandRef",
    "Data",
    "Model",
    "Objective",
    "PartRef",
    "Run",
    "SentenceTransformerLoss",
    "XmclabError",
    "__version__",
    "command",
    "compare",
    "evaluate",
    "hookimpl",
    "load",
    "objective",
    "option",
    "part",
    "read",
    "replay",
    "resume",
    "train",
]

_LAZY = {
    **dict.fromkeys(("API_VERSION", "CommandRef", "PartRef", "command", "hookimpl", "part"), "xmclab.host.hookspecs"),
    "option": "xmclab.options",
    "XmclabError": "xmclab.errors",
    "objective": "xmclab.host.compose",
    "Objective": "xmclab.objectives.objective",
    **dict.fromkeys(("Data", "read"), "xmclab.python.data"),
    **dict.fromkeys(("compare", "evaluate"), "xmclab.python.measure"),
    **dict.fromkeys(("Model", "load"), "xmclab.python.model"),
    **dict.fromkeys(("Run", "replay", "resume", "train"), "xmclab.python.run"),
    "SentenceTransformerLoss": "xmclab.python.sentence_loss",
    "api": "xmclab.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'xmclab' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    return module if name == "api" else getattr(module, name)


def __dir__() -> list[str]:
    """The names above, imported or not."""
    return sorted({*__all__, *_LAZY, *(name for name in globals() if name.startswith("__"))})
