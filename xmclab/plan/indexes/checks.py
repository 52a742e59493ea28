"""What every index refuses."""

from __future__ import annotations

import torch
from torch import Tensor

from xmclab.errors import DataError, Problem

SHOWN = 5


def refuse_non_finite(x_BD: Tensor, what: str, first: int = 0) -> None:
    """Raise `DataError` that names the rows holding a NaN or an infinity; the first row is called `first`."""
    if torch.isfinite(x_BD.sum()):  # one quick pass; a sum that overflows is looked at again
        return
    bad = torch.nonzero(~torch.isfinite(x_BD).all(dim=1))[:, 0].tolist()
    if bad:
        ids = ", ".join(str(first + row) for row in bad[:SHOWN]) + (", ..." if len(bad) > SHOWN else "")
        raise DataError(
            Problem(f"{what} {ids}", f"{len(bad)} of {len(x_BD)} vectors are not finite", "the model may have diverged")
        )
