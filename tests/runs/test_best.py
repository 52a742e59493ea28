"""The best epoch: which one it is, and that its weights come back bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import Settings, StopSettings, ValidateSettings
from xmclab.runs.best import PATIENCE, BestEpoch, check_choice, patience_of


def following(made: Any, values: list[float], patience: int = 0, **settings: Any) -> BestEpoch:
    """With these numbers, one after the other, as P@1 of `clf`; those of `de` and PSP@1 fall."""
    numbers = iter(values)

    def evaluate() -> dict[str, dict[str, float]]:
        value = next(numbers)
        return {"de": {"P@1": -value, "PSP@1": 0.0}, "clf": {"P@1": value, "PSP@1": -value}}

    return BestEpoch(made.model, evaluate, ValidateSettings(**settings), 9, patience)


@pytest.mark.parametrize("overrides", [[], ["head.clf.table=sgd", "encoder.table=adagrad"]])
def test_the_weights_of_the_best_epoch_come_back(small_trainer: Callable[..., Any], overrides: list[str]) -> None:
    made = small_trainer("epochs=4", "optim.decay=0.5", *overrides)
    best = following(made, [1.0, 3.0, 2.0])
    states, rankings = [], []
    for epoch in range(3):
        for step, batch in enumerate(made.batches(made.plan(epoch), epoch * 5)):
            made.step(epoch * 5 + step, batch)
        made.model.settle()
        best.measure(epoch + 1)
        states.append({name: weight.clone() for name, weight in made.model.state_dict().items()})
        rankings.append(rank(made))
    made.step(15, made.prepare(15, made.rows_N[:64]))  # its tables are not settled
    assert any(table.scale != 1 for table in made.model.tables())
    assert best.restore() == 2
    assert all(table.scale == 1 for table in made.model.tables())
    for name, weight in made.model.state_dict().items():
        assert torch.equal(weight, states[1][name])
    assert any(not torch.equal(states[2][name], weight) for name, weight in states[1].items())
    assert (rank(made) == rankings[1]).all()


def rank(made: Any) -> Any:
    queries = made.model.query_vectors(made.model.encoder.tokenise(made.data.test.texts), 1024, ["de"])["de"]
    labels = made.model.label_vectors(made.label_tokens, 1024, ["de"])["de"]
    return (queries @ labels.T).topk(5).indices.numpy()


def test_of_equal_epochs_the_first_is_kept(small_trainer: Callable[..., Any]) -> None:
    best = following(small_trainer(), [1.0, 2.0, 2.0])
    assert [best.measure(epoch)["best"] for epoch in (2, 4, 5)] == [True, True, False]
    assert best.restore() == 4
    assert best.document() == {
        "metric": "P@1",
        "search": "clf",  # the last one
        "epoch": 4,
        "last": 5,
        "metrics": {"de": {"P@1": -2.0, "PSP@1": 0.0}, "clf": {"P@1": 2.0, "PSP@1": -2.0}},
        "queries": 9,
    }
    assert best.seconds > 0


@pytest.mark.parametrize(
    ("settings", "epoch"),
    [({"search": "de"}, 1), ({"search": "clf"}, 3), ({"metric": "PSP@1"}, 1), ({"metric": "PSP@1", "search": "de"}, 1)],
)
def test_the_metric_and_the_search_decide(
    small_trainer: Callable[..., Any], settings: dict[str, str], epoch: int
) -> None:
    best = following(small_trainer(), [1.0, 2.0, 3.0], **settings)
    for done in (1, 2, 3):
        best.measure(done)
    assert best.restore() == epoch


def test_unknown_metrics_and_searches_are_refused(small_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_choice(small_config("validate.metric=PSP@4", "validate.search=de+cls"), 922)
    assert str(caught.value).splitlines() == [
        "validate.metric: there is no metric 'PSP@4' (did you mean 'PSP@5'?)",
        "validate.search: there is no search 'de+cls' (did you mean 'de+clf'?)",
    ]
    with pytest.raises(ConfigError, match=r"validate\.search: there is no search 'clf'"):
        check_choice(resolve(["validate.search=clf", "head.clf=none"], default_registry()), 922)
    with pytest.raises(ConfigError, match=r"validate\.metric: there is no metric 'R@100'"):
        check_choice(small_config("validate.metric=R@100", "evaluate.depth=50"), 922)
    check_choice(small_config("validate.metric=R@100", "evaluate.depth=50"), 50)
    check_choice(small_config("validate.metric=PSR@10", "validate.search=de+clf"), 922)


@pytest.mark.parametrize(
    ("patience", "every", "enough"),
    [
        (0, 1, [False] * 6),
        (2, 1, [False, False, False, False, True, True]),
        (3, 1, [False] * 5 + [True]),
        (2, 5, [False, False, False, False, True, True]),  # counts validations, whatever lies between them
    ],
)
def test_training_may_stop_once_validations_are_no_better(
    small_trainer: Callable[..., Any], patience: int, every: int, enough: list[bool]
) -> None:
    best = following(small_trainer(), [1.0, 0.5, 2.0, 2.0, 1.0, 0.0], patience, every=every)
    found = []
    for number in range(6):
        best.measure((number + 1) * every)
        found.append(best.enough)
    assert found == enough


def test_a_resumed_process_stops_where_the_first_would_have(small_trainer: Callable[..., Any]) -> None:
    made = small_trainer()
    first, second = following(made, [2.0, 1.0], patience=2), following(made, [1.0], patience=2)
    for epoch in (1, 2):
        first.measure(epoch)
    second.load(*first.state())
    assert not second.enough
    second.measure(3)
    assert second.enough


@pytest.mark.parametrize(
    ("searches", "chosen"),
    [(["de", "clf", "de+clf", "nn", "de+clf+nn"], "de+clf"), (["de", "clf"], "clf"), (["other"], "other")],
)
def test_without_a_choice_it_is_the_search_by_all_heads(
    small_trainer: Callable[..., Any], searches: list[str], chosen: str
) -> None:
    """The vote of neighbours may be at its best before anything is learned."""
    best = BestEpoch(
        small_trainer().model, lambda: {name: {"P@1": 1.0} for name in searches}, ValidateSettings(), queries=9
    )
    best.measure(1)
    assert best.search == chosen


def test_patience_is_on_where_nobody_asked_for_validation() -> None:
    assert patience_of(Settings(), by_default=True) == PATIENCE
    assert patience_of(Settings(), by_default=False) == 0
    for by_default in (True, False):
        assert patience_of(Settings(stop=StopSettings(patience=0)), by_default) == 0
        assert patience_of(Settings(stop=StopSettings(patience=7)), by_default) == 7
