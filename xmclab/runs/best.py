"""The best epoch of a run, chosen by its validation queries."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from xmclab.errors import ConfigError, Problem, did_you_mean
from xmclab.evaluation.metrics import metrics_of
from xmclab.host.config import Config
from xmclab.host.schema import Settings, ValidateSettings
from xmclab.model.model import Model
from xmclab.training.loop import Evaluate

PATIENCE = 5


def check_choice(config: Config, num_labels: int) -> None:
    """Refuse a metric or search that the results will not have.

    Raises:
        ConfigError: with both problems, if there are two.
    """
    settings, measured = config.settings.validate, config.settings.evaluate
    ranked = config.make("search").names(config.heads)
    metrics = metrics_of(measured.depth, num_labels, measured.k, measured.recall_k)
    known = {"metric": list(metrics), "search": ["", *ranked]}
    chosen = {"metric": settings.metric, "search": settings.search}
    problems = [
        Problem(f"validate.{key}", f"there is no {key} {name!r}", did_you_mean(name, filter(None, known[key])))
        for key, name in chosen.items()
        if name not in known[key]
    ]
    if problems:
        raise ConfigError(*problems)


def patience_of(settings: Settings, by_default: bool) -> int:
    """The validations without a better one after which training stops; 0: it does not.

    Args:
        by_default: nobody asked for validation.
    """
    chosen = settings.stop.patience
    return chosen if chosen is not None else PATIENCE if by_default else 0


class BestEpoch:
    """Measures a model on the validation queries, and keeps the weights of its best epoch; of equals, the first."""

    def __init__(
        self, model: Model, evaluate: Evaluate, settings: ValidateSettings, queries: int, patience: int = 0
    ) -> None:
        """
        Args:
            evaluate: measures the current model on this many queries.
            patience: measurements in a row without a better one that are enough; 0: never enough.
        """
        self.model, self.evaluate, self.queries = model, evaluate, queries
        self.metric, self.search = settings.metric, settings.search
        self.patience = patience * settings.every  # in epochs
        self.epoch = self.last = 0
        self.metrics: dict[str, dict[str, float]] = {}  # of the best epoch
        self.seconds = 0.0
        self._weights: dict[str, Tensor] = {}

    def measure(self, epoch: int) -> dict[str, Any]:
        """The metrics of the current model, whose tables are settled, and whether it is the best so far."""
        started = time.perf_counter()
        metrics = {name: dict(row) for name, row in self.evaluate().items()}
        self.search = self.search or self._of_heads(metrics)
        self.last = epoch
        best = not self.epoch or self._value(metrics) > self._value(self.metrics)
        if best:
            self.epoch, self.metrics = epoch, metrics
            self._keep()
        self.seconds += time.perf_counter() - started
        return {"metrics": metrics, "best": best}

    def _of_heads(self, metrics: Mapping[str, Any]) -> str:
        """The search by all heads together: others may rank well before anything is learned."""
        together = "+".join(self.model.head_names)
        return together if together in metrics else list(metrics)[-1]

    @property
    def enough(self) -> bool:
        """Whether the model has not become better for so long that training may stop."""
        return 0 < self.patience <= self.last - self.epoch

    def _value(self, metrics: Mapping[str, Mapping[str, float]]) -> float:
        return metrics[self.search][self.metric]

    def _keep(self) -> None:
        """Copy the weights to host memory; the copy does not change, so a checkpoint may still be reading it."""
        self._weights = {name: weight.detach().to("cpu", copy=True) for name, weight in self.model.state_dict().items()}

    def state(self) -> tuple[dict[str, Any] | None, Mapping[str, Tensor]]:
        """What `load` needs: numbers, as JSON values (None before the first measurement), and weights."""
        if not self.epoch:
            return None, {}
        return {**self.document(), "seconds": self.seconds}, self._weights

    def load(self, numbers: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Continue with the best epoch of an earlier process."""
        self.epoch, self.search, self.metrics = int(numbers["epoch"]), str(numbers["search"]), dict(numbers["metrics"])
        self.last = int(numbers["last"])
        self.seconds, self._weights = float(numbers["seconds"]), dict(weights)

    def restore(self) -> int:
        """Give the model the weights of the best epoch, which is returned."""
        self.model.settle()  # rows are then their weights, with nothing to multiply
        self.model.load_state_dict(self._weights)
        self._weights = {}
        return self.epoch

    def document(self) -> dict[str, Any]:
        """What was chosen, and by what, as JSON values."""
        names = "metric", "search", "epoch", "last", "metrics", "queries"
        return {name: getattr(self, name) for name in names}
