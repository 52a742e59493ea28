"""Records as named numbers; a package that is missing."""

from __future__ import annotations

import sys

import pytest

from xmclab.errors import PluginError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab_trackers.records import numbers

STEP = {"event": "step", "epoch": 0, "step": 3, "last_of_epoch": True, "loss": 0.5, "terms": {"de/ds/q2l": 0.25}}
EVAL = {"event": "eval", "epoch": 1, "metrics": {"de+clf": {"P@1": 12.5}}}
END = {"event": "end", "error": "", "message": "", "seconds": 2.0}


def test_numbers_have_the_path_to_them_as_a_name() -> None:
    assert dict(numbers(STEP)) == {"step/epoch": 0, "step/loss": 0.5, "step/terms/de/ds/q2l": 0.25}
    assert dict(numbers(EVAL)) == {"eval/epoch": 1, "eval/metrics/de+clf/P@1": 12.5}
    validation = {**EVAL, "split": "validation", "best": True}
    assert dict(numbers(validation)) == {"validation/epoch": 1, "validation/metrics/de+clf/P@1": 12.5}
    assert dict(numbers({**EVAL, "split": "test"})) == dict(numbers(EVAL))
    assert dict(numbers(END)) == {"end/seconds": 2.0}


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_said_before_training(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError, match=rf'tracker {name}: .*pip install "xmclab\[{name}\]"') as caught:
        resolve([f"tracker={name}"], default_registry())
    assert caught.value.exit_code == 4
