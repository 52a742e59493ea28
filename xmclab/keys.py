"""Stateless randomness: every draw comes from a key (seed, purpose, counters), so there is no state to save."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Keys:
    """The source of all randomness in a run; the same key gives the same draw in any process.

    >>> Keys(0).rng("pool", 7).integers(100) == Keys(0).rng("pool", 7).integers(100)
    True
    """

    seed: int

    def seed_for(self, purpose: str, *counters: int) -> int:
        """A 63-bit seed for torch's generators."""
        text = ":".join(map(str, (self.seed, purpose, *counters)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def rng(self, purpose: str, *counters: int) -> np.random.Generator:
        """A numpy generator for planning on the host."""
        return np.random.Generator(np.random.Philox(self.seed_for(purpose, *counters)))
