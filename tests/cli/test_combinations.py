"""Every reduction with every loss: those that make sense train, the others are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run

LOSSES = ["ds", "supcon", "bce", "ds+bce"]
BINARY_ONLY = ["ova", "ova_n"]
MULTICLASS = ["pol", "pal", "pal_n", "psl"]
SMALL = ["data=tiny", "epochs=1", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=16", "sampler.batch_size=512"]
SMALL += ["baseline=none", "encoder.chars_from=0"]


@pytest.mark.parametrize(
    ("reduction", "loss"),
    [(reduction, "bce") for reduction in BINARY_ONLY] + [(r, loss) for r in MULTICLASS for loss in LOSSES],
)
def test_combinations_that_make_sense_train(reduction: str, loss: str, tmp_path: Path) -> None:
    overrides = [f"reduction={reduction}", f"loss.de={loss}", f"loss.clf={loss}"]
    config = resolve(["recipe=unidec", *SMALL, *overrides], default_registry())
    result = run(config, tmp_path / "out", Console(quiet=True))
    assert list(result.metrics) == ["de", "clf", "de+clf", "nn", "de+clf+nn"]
    assert all(0 <= value <= 100 for metrics in result.metrics.values() for value in metrics.values())


@pytest.mark.parametrize("reduction", BINARY_ONLY)
@pytest.mark.parametrize("loss", ["ds", "supcon", "ds+bce"])
def test_the_others_are_refused_with_the_reason(reduction: str, loss: str) -> None:
    with pytest.raises(ConfigError, match="binary losses") as caught:
        resolve(
            ["recipe=unidec", *SMALL, f"reduction={reduction}", f"loss.clf={loss}", "loss.de=bce"], default_registry()
        )
    (problem,) = caught.value.problems
    assert "loss.clf" in problem.where
    assert loss.split("+")[0] in problem.message


def test_parts_are_swapped_as_the_recipe_page_says(tmp_path: Path) -> None:
    overrides = ["sampler=random", "miner=none", "reduction=pol", "loss.de=supcon", "head.clf=none"]
    config = resolve(["recipe=unidec", *SMALL[:3], *SMALL[5:], "head.de.dim=16", *overrides], default_registry())
    result = run(config, tmp_path / "out", Console(quiet=True))
    assert list(result.metrics) == ["de", "nn", "de+nn"]
