"""Texts of the lengths asked for, and sets of the sizes asked for."""

from __future__ import annotations

from types import SimpleNamespace as Of

import numpy as np

from xmclab_doctor.bench.synthetic import Training, data, texts


def test_lengths_of_texts_are_as_asked() -> None:
    rng = np.random.default_rng(0)
    found = np.array([len(text.split()) + 2 for text in texts(4000, (13, 32), 500, rng)])  # both ends are tokens too
    assert abs(found.mean() - 13) < 0.5
    assert 4 <= found.min() < 8
    assert 24 < found.max() <= 32
    assert {len(text.split()) + 2 for text in texts(50, (48, 48), 500, rng)} == {48}


def test_sets_are_valid_and_labels_without_texts_are_alike() -> None:
    made = data(30, 200, (8, 16), None, 60)
    assert set(made.label_texts) == {"w0"}
    assert made.train.targets_NL.shape == (30, 200)
    assert set(np.diff(made.train.targets_NL.indptr)) == {5}
    assert made.train.targets_NL.has_canonical_format


def test_a_step_is_finished_once_the_next_has_begun_where_the_host_would_wait() -> None:
    for late, order in ((True, "b0 b1 e0 b2 e1 e2"), (False, "b0 e0 b1 e1 b2 e2")):
        done: list[str] = []

        def launch(number: int, prepared: object, done: list[str] = done) -> int:
            done.append(f"b{number}")
            return number

        training = Training(Of(late=late, launch=launch, finish=lambda number, done=done: done.append(f"e{number}")))
        for number in range(3):
            training.step(number, None)
        training.finish()
        assert " ".join(done) == order
