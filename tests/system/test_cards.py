"""The table of cards."""

from __future__ import annotations

import pytest

from xmclab.system.cards import CARDS, Card


def test_names_say_the_memory_that_is_sold() -> None:
    for name, card in CARDS.items():
        assert card.name == name
        assert 0.9 * int(name.rpartition("-")[2]) < card.memory_gib < int(name.rpartition("-")[2])


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_products_in_half_precision_are_what_a_card_is_bought_for(card: Card) -> None:
    assert card.half_tflops > 1.9 * card.float32_tflops
    assert card.bandwidth_tbs < 4


def test_only_the_oldest_card_lacks_bfloat16() -> None:
    assert [card.name for card in CARDS.values() if card.capability < (8, 0)] == ["v100-32"]
