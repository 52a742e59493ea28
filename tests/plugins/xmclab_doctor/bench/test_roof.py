"""The roof against numbers that were computed before it, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmclab.system.cards import CARDS
from xmclab_doctor.bench.roof import DISTILBERT, Speeds, Work, all_labels, encoding, optimizer, pool_heads

PAGE = Path(__file__).parents[4] / "docs" / "gpu.md"
NAMES = ("a100-80", "h100-80", "l4-24", "rtx4090-24", "v100-32")
WHOLE = optimizer(DISTILBERT)
STEPS: dict[str, tuple[Work, float, tuple[float, ...]]] = {  # work, TFLOP, ms on each card
    "1098 titles and 3000 labels, 13 tokens each, packed": (
        encoding(DISTILBERT, [(1098 + 3000, 13)]) + pool_heads(1098, 3000, 768) + WHOLE,
        13.6,
        (56, 22, 199, 108, 138),
    ),
    "the same padded to 32": (
        encoding(DISTILBERT, [(1098 + 3000, 32)]) + pool_heads(1098, 3000, 768) + WHOLE,
        33.6,
        (138, 52, 480, 264, 336),
    ),
    "576 queries of 128 tokens, 3000 labels of 13": (
        encoding(DISTILBERT, [(576, 128), (3000, 13)]) + WHOLE,
        28.8,
        (118, 45, 412, 226, 288),
    ),
    "576 and 3000, all of 128": (encoding(DISTILBERT, [(3576, 128)]) + WHOLE, 120, (485, 182, 1674, 930, 1187)),
    "1024 titles against a table of 1.3M x 768, BCE": (
        encoding(DISTILBERT, [(1024, 13)]) + all_labels(1024, 1_305_265, 768) + WHOLE,
        9.6,
        (42, 17, 159, 82, 103),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_are_as_computed_by_hand(name: str) -> None:
    work, tera, milliseconds = STEPS[name]
    assert work.half / 1e12 == pytest.approx(tera, rel=0.1)
    found = [1e3 * work.seconds(Speeds.of(CARDS[card])) for card in NAMES]
    assert found == pytest.approx(milliseconds, rel=0.1)


def page_rows() -> list[str]:
    """The lines of the table of docs/gpu.md: cards without bfloat16 train in float32."""

    def milliseconds(work: Work, name: str) -> float:
        card = CARDS[name]
        return 1e3 * (work if card.capability >= (8, 0) else work.in_single()).seconds(Speeds.of(card))

    return [
        f"| {name} | " + " | ".join(f"{milliseconds(work, card):.0f}" for card in NAMES) + " |"
        for name, (work, _, _) in STEPS.items()
    ]


def test_the_table_of_the_page_is_that_of_the_model() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("<!-- computed -->")[2].partition("<!-- /computed -->")[0]
    assert text.strip().splitlines()[2:] == page_rows()


def test_products_in_float32() -> None:
    products = Work(single=all_labels(1024, 1_305_265, 768, single=True).single)
    found = [1e3 * products.seconds(Speeds.of(CARDS[card])) for card in NAMES]
    assert found == pytest.approx((316, 92, 203, 75, 392), rel=0.1)


def test_shares_of_a_step_of_titles() -> None:
    """77 % encoder products, 20 % between them, 2 % AdamW on an A100."""
    speeds, (whole, _, _) = Speeds.of(CARDS["a100-80"]), next(iter(STEPS.values()))
    encoder = encoding(DISTILBERT, [(4098, 13)])
    parts = Work(half=encoder.half), Work(bytes=encoder.bytes), WHOLE
    shares = [100 * part.seconds(speeds) / whole.seconds(speeds) for part in parts]
    assert shares == pytest.approx((77, 20, 2), abs=1)


def test_a_step_in_float32_moves_twice_the_bytes() -> None:
    work = Work(half=4.0, single=1.0, bytes=6.0).in_single()
    assert work == Work(half=0.0, single=5.0, bytes=12.0)
    assert work.seconds(Speeds(half=1.0, single=5.0, bandwidth=4.0)) == 4.0
