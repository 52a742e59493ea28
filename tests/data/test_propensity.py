"""Propensities and groups of labels by how often they occur."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from xmclab.data import propensity


def test_label_bands_at_their_borders() -> None:
    counts = [101, 100, 11, 10, 1, 0]
    rows = np.concatenate([np.arange(count) for count in counts])
    columns = np.repeat(np.arange(len(counts)), counts)
    train = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(101, len(counts)))
    bands = propensity.frequency_bands(train)
    assert [bands.names[group] for group in bands.group_L] == ["head", "torso", "torso", "tail", "tail", "tail"]


def test_deciles_hold_equal_shares_of_the_pairs() -> None:
    rng = np.random.default_rng(0)
    train = sp.csr_array(rng.random((200, 300)) < rng.random(300) ** 3)
    deciles = propensity.frequency_deciles(train)
    frequency = propensity.label_frequencies(train)
    shares = np.bincount(deciles.group_L, weights=frequency, minlength=10) / frequency.sum()
    np.testing.assert_allclose(shares, 0.1, atol=frequency.max() / frequency.sum())
    lowest = [frequency[deciles.group_L == group].min() for group in range(9)]
    highest = [frequency[deciles.group_L == group].max() for group in range(1, 10)]
    assert all(low >= high for low, high in zip(lowest, highest, strict=True))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LF-AmazonTitles-131K", (0.6, 2.6)),
        ("Amazon-670K", (0.6, 2.6)),
        ("LF-WikiTitles-500K", (0.5, 0.4)),
        ("LF-Wikipedia-500K", (0.5, 0.4)),
        ("wikipedia_large_500k", (0.5, 0.4)),
        ("LF-WikiSeeAlso-320K", (0.55, 1.5)),
        ("LF-WikiSeeAlsoTitles-320K", (0.55, 1.5)),
        ("debian", (0.55, 1.5)),
    ],
)
def test_propensity_parameters(name: str, expected: tuple[float, float]) -> None:
    assert propensity.propensity_parameters(name) == expected
    found = propensity.propensity_of(name)
    assert (found.a, found.b) == expected
    assert str(found).endswith("(default)" if expected == (0.55, 1.5) else f"(from the name {name})")
    chosen = propensity.propensity_of(name, (0.7, 2.0))
    assert str(chosen) == "propensities A=0.7 B=2 (evaluate.propensity)"


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_inverse_propensities_are_finite_and_at_least_1_and_rare_labels_weigh_more(rows: int) -> None:
    train = sp.csr_array(np.tril(np.ones((rows, 3))))
    weights = propensity.inverse_propensity(sp.csr_array(sp.hstack([train, sp.csr_array((rows, 1))])), 0.55, 1.5)
    assert np.isfinite(weights).all()
    assert (weights >= 1).all()
    assert (np.diff(weights) >= 0).all()
