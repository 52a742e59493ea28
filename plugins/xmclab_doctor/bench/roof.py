"""The least time that a step could take, from what it computes and moves: written once, for cards of any speed.

Formula:  t = 2·MACs / products + bytes / bandwidth
Products: a layer of a transformer has 12 w² weights; a token is multiplied with each, and with the l tokens of its text
          twice: 24 w² + 4 w l operations a layer, three times that with the backward pass. A head has scores S = q zᵀ,
          dq = G z and dz = Gᵀ q: 2 Q P d each.
Bytes:    between the products of a layer a token writes and reads 48 w numbers in half precision, if everything that
          can be fused is: forward 8 w around GELU, 8 w for dropout, sum and norm twice, 4 w in attention; backward
          12 w, 8 w and 8 w. AdamW moves 28 bytes per weight. Against all labels, G is written once and read twice,
          a row of the table is read twice and written, and its momentum read and written.
Left out: launches, waits, the host, what does not overlap. So a roof is reached by no program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xmclab.system.cards import Card

HALF, SINGLE = 2, 4  # bytes of a number
NUMBERS_OF_A_TOKEN = 48  # per layer, as multiples of its width
BYTES_OF_A_WEIGHT = 28  # gradient, weight and two moments read; weight and moments written
PASSES = 3  # forward, and a backward that costs two of it


@dataclass(frozen=True)
class Speeds:
    """What a device reaches: operations and bytes per second."""

    half: float  # products of bfloat16 or float16 operands
    single: float  # products of float32 operands
    bandwidth: float

    @staticmethod
    def of(card: Card) -> Speeds:
        """By its maker."""
        return Speeds(1e12 * card.half_tflops, 1e12 * card.float32_tflops, 1e12 * card.bandwidth_tbs)


@dataclass(frozen=True)
class Work:
    """What a step computes and moves."""

    half: float = 0.0  # operations with operands in half precision
    single: float = 0.0  # operations with operands in float32
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.half + other.half, self.single + other.single, self.bytes + other.bytes)

    def seconds(self, speeds: Speeds) -> float:
        """The roof."""
        return self.half / speeds.half + self.single / speeds.single + self.bytes / speeds.bandwidth

    def in_single(self) -> Work:
        """The same computed in float32 throughout, as on a CPU."""
        return Work(0.0, self.half + self.single, self.bytes * SINGLE / HALF)


@dataclass(frozen=True)
class Transformer:
    """A network as far as its cost is concerned."""

    layers: int
    width: int
    weights: int


DISTILBERT = Transformer(layers=6, width=768, weights=66_362_880)


def encoding(network: Transformer, lengths: Sequence[tuple[int, int]], passes: float = PASSES) -> Work:
    """Texts through the network.

    Args:
        lengths: (texts, tokens of each), padding included where it is computed.
        passes: 1 outside training.
    """
    tokens = sum(texts * length for texts, length in lengths)
    pairs = sum(texts * length**2 for texts, length in lengths)
    products = network.layers * (24 * network.width**2 * tokens + 4 * network.width * pairs)
    moved = HALF * NUMBERS_OF_A_TOKEN * network.layers * network.width * tokens
    return Work(half=passes * products, bytes=moved * passes / PASSES)


def optimizer(network: Transformer) -> Work:
    """AdamW on all weights."""
    return Work(bytes=BYTES_OF_A_WEIGHT * network.weights)


def pool_heads(queries: int, labels: int, width: int, heads: int = 2) -> Work:
    """Scores of a pool, forward and backward."""
    return Work(half=heads * 3 * 2 * queries * labels * width)


def all_labels(queries: int, labels: int, width: int, single: bool = False) -> Work:
    """Scores of a whole table with their gradients, and its update; the table and its momentum in half precision.

    Args:
        single: the products are in float32.
    """
    products = 3 * 2 * queries * labels * width
    moved = HALF * (3 * queries * labels + 5 * labels * width)
    return Work(single=products, bytes=moved) if single else Work(half=products, bytes=moved)
