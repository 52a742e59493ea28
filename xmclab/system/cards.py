"""Cards to compare with and to plan for; numbers of their makers, for dense products."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU."""

    name: str
    memory_gib: float  # that programs can use, a little less than the name says
    half_tflops: float  # peak of products in bfloat16 or float16, accumulated in float32
    float32_tflops: float  # peak of products in float32, without TF32
    bandwidth_tbs: float  # of its memory, TB/s
    capability: tuple[int, int]  # of CUDA; bfloat16 is native from (8, 0) on


CARDS = {
    card.name: card
    for card in (
        Card("a100-40", 39.4, 312, 19.5, 1.56, (8, 0)),
        Card("a100-80", 79.3, 312, 19.5, 2.04, (8, 0)),
        Card("h100-80", 79.2, 989, 67, 3.35, (9, 0)),
        Card("l4-24", 22.2, 121, 30, 0.30, (8, 9)),
        Card("rtx4090-24", 23.6, 165, 83, 1.01, (8, 9)),
        Card("v100-32", 31.7, 125, 15.7, 0.90, (7, 0)),
    )
}
