"""Values and gradients computed by an independent program, to 1e-9 in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import xmclab

pytestmark = pytest.mark.usefixtures("way")
GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "losses.npz", allow_pickle=False)


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize(
    ("golden", "loss", "reduction"),
    [
        ("ds", "ds", "psl"),
        ("ds", "ds", "pal_n"),
        ("supcon", "supcon", "psl"),
        ("softmax_sum", "softmax", "pal"),
        ("bce_mean", "bce", "ova"),
        ("bce_mean", "bce", "psl"),
    ],
)
def test_value_and_gradients(case, golden, loss, reduction):
    def stored(name: str) -> torch.Tensor:
        return torch.from_numpy(np.asarray(GOLDEN[f"case{case}_{name}"]))

    x_QD, z_PD = stored("x").requires_grad_(), stored("z").requires_grad_()
    objective = xmclab.objective(loss, reduction=reduction, temperature=float(stored("tau")))
    value = objective(x_QD @ z_PD.T, stored("y"))
    gradients = torch.autograd.grad(value, (x_QD, z_PD))
    expected = [stored(f"{golden}_{part}") for part in ("loss", "gx", "gz")]
    for found, wanted in zip((value, *gradients), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
