"""Features of texts against a naive count, and the laws of the vocabulary and the weights."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmclab.model.encoders import features as text_module
from xmclab.model.encoders.features import Featuriser

TEXTS = [
    "python3-schroot: set of Python 3 bindings to schroot chroots",
    "librust-pretty-env-logger-dev: Visually pretty env_logger - Rust source code",
    "stk: Sound Synthesis Toolkit (example applications)",
    "python python PYTHON",
    "",
    "  ... - ",
    "Straße — naïve café 東京",
]
EVERYTHING: dict[str, Any] = {
    "compounds": True,
    "pairs": True,
    "chars_from": 2,
    "chars_to": 4,
}


def naive_features(text: str, f: Featuriser) -> Counter[str]:
    """Every feature of a text by its definition."""
    text = text.lower() if f.lowercase else text
    words = re.findall(r"[^\W_]+", text)
    found: list[str] = []
    if f.words:
        found += [f"w {word}" for word in words]
    for token in text.split():
        inner = re.sub(r"^[\W_]+|[\W_]+$", "", token)
        if f.compounds and re.search(r"[\W_]", inner):
            found.append(f"k {inner}")
    if f.pairs:
        found += [f"b {words[at]} {words[at + 1]}" for at in range(len(words) - 1)]
    if f.chars_from:
        for word in words:
            for n in range(f.chars_from, max(f.chars_to, f.chars_from) + 1):
                found += [f"c {f'<{word}>'[at : at + n]}" for at in range(len(word) + 3 - n)]
    return Counter(found)


def naive_rows(fitted: list[str], texts: list[str], f: Featuriser) -> tuple[list[str], list[dict[str, float]]]:
    """The vocabulary in its order, and the weights of every text."""
    frequency: Counter[str] = Counter()
    for text in fitted:
        frequency.update(set(naive_features(text, f)))
    kept = [name for name in frequency if frequency[name] >= f.min_frequency]
    vocabulary = sorted(kept, key=lambda name: (-frequency[name], name))[: f.max_features or None]
    rows = []
    for text in texts:
        row = {}
        for name, count in naive_features(text, f).items():
            if name in vocabulary:
                tf = 1 + math.log(count) if f.sublinear else count
                idf = math.log((1 + len(fitted)) / (1 + frequency[name])) + 1
                row[name] = tf * idf**f.idf_power
        norm = math.sqrt(sum(weight**2 for weight in row.values()))
        rows.append({name: weight / norm for name, weight in row.items()})
    return vocabulary, rows


def named_rows(f: Featuriser, texts: list[str]) -> list[dict[str, float]]:
    names = list(f.vocabulary)
    features = f.transform(texts)
    assert features.weights is not None
    starts = features.offsets
    return [
        {names[at]: float(weight) for at, weight in zip(features.ids[a:b], features.weights[a:b], strict=True)}
        for a, b in pairwise(starts)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        EVERYTHING,
        {"words": False, "chars_from": 4},
        {"pairs": True, "sublinear": True},
        {"pairs": True, "idf_power": 0.0},
        {**EVERYTHING, "idf_power": 0.5, "lowercase": False},
        {**EVERYTHING, "min_frequency": 2},
        {**EVERYTHING, "max_features": 9},
    ],
)
def test_features_are_their_definition(options: dict[str, Any]) -> None:
    f = Featuriser(**options).fit(TEXTS)
    unseen = [*TEXTS, "pretty new rust code"]
    vocabulary, rows = naive_rows(TEXTS, unseen, f)
    assert list(f.vocabulary) == vocabulary
    assert f.width == len(vocabulary)
    assert len(rows) == len(named_rows(f, unseen))
    for ours, expected in zip(named_rows(f, unseen), rows, strict=True):
        assert ours == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.text(alphabet="aB1-_ é.", max_size=12), max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_is_handled_like_the_definition(texts: list[str], sublinear: bool) -> None:
    f = Featuriser(**EVERYTHING, sublinear=sublinear).fit(texts)
    vocabulary, rows = naive_rows(texts, texts, f)
    assert list(f.vocabulary) == vocabulary
    for ours, expected in zip(named_rows(f, texts), rows, strict=True):
        assert ours == pytest.approx(expected, abs=1e-6)


def test_rows_are_sorted_and_of_unit_length_and_typed_for_encoders() -> None:
    f = Featuriser(**EVERYTHING).fit(TEXTS)
    features = f.transform(TEXTS)
    assert features.weights is not None
    assert (features.ids.dtype, features.offsets.dtype, features.weights.dtype) == (np.int32, np.int64, np.float32)
    matrix = f.to_csr(features)
    assert matrix.shape == (len(TEXTS), f.width)
    assert matrix.has_canonical_format
    lengths = np.sqrt((matrix.toarray() ** 2).sum(axis=1))
    np.testing.assert_allclose(lengths, [1, 1, 1, 1, 0, 0, 1], atol=1e-6)


def test_compound_tokens_give_the_whole_and_their_words() -> None:
    f = Featuriser(compounds=True).fit(["(python3-schroot): tool"])
    assert set(f.vocabulary) == {"k python3-schroot", "w python3", "w schroot", "w tool"}


@pytest.mark.parametrize("buckets", [0, 64])
def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, buckets: int) -> None:
    whole = Featuriser(**EVERYTHING, buckets=buckets).fit(TEXTS)
    expected = whole.transform(TEXTS)
    monkeypatch.setattr(text_module, "CHUNK", 2)
    f = Featuriser(**EVERYTHING, buckets=buckets).fit(TEXTS)
    assert f.vocabulary == whole.vocabulary
    features = f.transform(TEXTS)
    for name in ("ids", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(features, name), getattr(expected, name))


def test_enough_buckets_weigh_like_a_vocabulary() -> None:
    options = {**EVERYTHING, "min_frequency": 2}
    by_name = Featuriser(**options).fit(TEXTS)
    hashed = Featuriser(**options, buckets=1 << 22).fit(TEXTS)
    assert hashed.vocabulary == {}
    assert hashed.width == 1 << 22
    similarity = [
        (rows @ rows.T).toarray() for rows in (f.to_csr(f.transform([*TEXTS, "unseen"])) for f in (by_name, hashed))
    ]
    np.testing.assert_allclose(similarity[0], similarity[1], atol=1e-6)


def test_colliding_features_add_up() -> None:
    f = Featuriser(buckets=1).fit(["a b", "c"])
    features = f.transform(["a b c d", "", "x"])
    assert features.ids.tolist() == [0, 0]
    assert features.offsets.tolist() == [0, 1, 1, 2]


def test_hashed_ids_never_change() -> None:
    f = Featuriser(pairs=True, buckets=997).fit(["b a", "a c"])
    assert f.transform(["a b a c"]).ids.tolist() == [354, 821, 829, 910, 953]
    assert Featuriser(buckets=997).fit(["a"]).transform(["A"]).ids.tolist() == [zlib.crc32(b"w a") % 997]


@pytest.mark.parametrize("options", [EVERYTHING, {"buckets": 50, "chars_from": 3}])
def test_state_survives_json(options: dict[str, Any]) -> None:
    f = Featuriser(**options, sublinear=True).fit(TEXTS)
    state, idf = f.state()
    again = Featuriser.from_state(json.loads(json.dumps(state)), idf)
    assert again == f
    expected, features = f.transform(TEXTS), again.transform(TEXTS)
    for name in ("ids", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(features, name), getattr(expected, name))


def test_no_texts() -> None:
    f = Featuriser(**EVERYTHING).fit([])
    assert f.width == 0
    assert len(f.transform([])) == 0
    assert f.transform(["a"]).offsets.tolist() == [0, 0]
