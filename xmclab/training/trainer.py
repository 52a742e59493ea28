"""The trainer, for any choice of encoder, heads, sampler, miner, reductions and losses."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from xmclab.api import Batch, Dataset, Keys, Ragged, Tokens, View
from xmclab.data.propensity import inverse_propensity, propensity_parameters
from xmclab.data.tokens import Tokeniser
from xmclab.errors import DataError, DivergedError, Problem
from xmclab.host.config import Config
from xmclab.kernels.dispatch import compiled_by_torch
from xmclab.model.device import autocast_for, pick_device, to_device
from xmclab.model.model import Model
from xmclab.objectives.truth import Truth
from xmclab.plan.pool import build_batch
from xmclab.training.optim import Optimizers
from xmclab.training.step import DeviceBatch, HeadTerm, Part, forward_backward, unprofiled
from xmclab.training.streaming import LabelBlocks, streams_all_labels

Record = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Prepared(NamedTuple):
    """A batch on the host, with the tokens of its texts in chunks."""

    batch: Batch
    query_chunks: list[Tokens]
    label_chunks: list[Tokens]  # empty when no head reads label texts


class Trainer:
    """Everything a run trains with; its methods are what the loop calls, in order."""

    def __init__(
        self, config: Config, data: Dataset, tokeniser: Tokeniser | None = None, part: Part = unprofiled
    ) -> None:
        """`part`: context manager around each part of the work, such as `encode forward`, for timing."""
        self.config, self.data, self.part = config, data, part
        self.settings = config.settings
        self.keys = Keys(self.settings.seed)
        self.device = pick_device(self.settings.device)
        self.autocast = autocast_for(self.device, self.settings.precision)

        torch.manual_seed(self.keys.seed_for("parameters"))
        encoder = config.make("encoder")
        self.tokeniser = tokeniser or Tokeniser(self.settings.data)
        self.tokeniser.fit(encoder, data.train.texts, data.label_texts)
        heads = {name: config.make(f"head.{name}") for name in config.heads}
        self.model = Model(encoder, heads, data.num_labels).to(self.device)
        self.query_tokens = self.tokeniser.tokens(encoder, data.train.texts, "training queries")
        self.label_tokens = self.tokeniser.tokens(encoder, data.label_texts, "labels")

        chunk = self.settings.encode.search_chunk
        self.model.start_heads(self.query_tokens, self.label_tokens, data.train.targets_NL, chunk)
        self.sampler, self.miner = config.make("sampler"), config.make("miner")
        self.targets_NL, self.filter_NL = data.train.targets_NL, data.train.filter_NL
        self.exclude_NL = (self.targets_NL.astype(bool) + self.filter_NL.astype(bool)).tocsr()
        self.rows_N = np.flatnonzero(np.diff(self.targets_NL.indptr))
        if not len(self.rows_N):
            raise DataError(Problem(data.name, "no training query has a label"))
        de_share = self.settings.objective.de_share
        shares = {"de": de_share, "clf": 1 - de_share} if len(heads) > 1 else dict.fromkeys(heads, 1.0)
        weighted = self.settings.objective.label_weights != "none"
        self.terms = {
            name: HeadTerm(objective, shares[name], streams_all_labels(head, objective, weighted))
            for name, head in heads.items()
            for objective in [config.objective(name)]
        }
        self.all_labels = any(term.objective.needs_all for term in self.terms.values())
        self.streams = any(term.streams for term in self.terms.values())
        self.label_weight_L = self._label_weights()
        self.inverse_propensity_L = self._inverse_propensities()

        steps_per_epoch = len(self.plan(0, None))
        self.steps = self.settings.epochs * steps_per_epoch
        self.optimizers = Optimizers(self.model, self.settings.optim, self.steps, steps_per_epoch)
        if self.settings.compile:
            self.model.encoder.compile()

    def refresh_due(self, epoch: int) -> bool:
        """Whether to refresh clusters or negatives from a new view before this epoch."""
        wanted = self.sampler.needs_view or self._mines
        return wanted and epoch > 0 and epoch % self.settings.refresh_every == 0

    @property
    def _mines(self) -> bool:
        """Whether mined negatives are used; a pool of all labels already has them."""
        return self.miner.needs_view and self.settings.pool.eta > 0 and not self.all_labels

    def refresh(self, epoch: int) -> View:
        """Encode all queries and labels with the current model, and mine negatives from that view."""
        with self.part("refresh"):
            return self._refresh(epoch)

    def _refresh(self, epoch: int) -> View:
        chunk = self.settings.encode.search_chunk
        head = "de" if "de" in self.terms else self.model.head_names[0]
        queries = self.model.query_vectors(self.query_tokens, chunk, [head])[head]
        labels = self.model.label_vectors(self.label_tokens, chunk, [head])[head]
        view = View(epoch, queries.cpu().numpy(), labels.cpu().numpy(), str(self.device))
        if self._mines:
            depth = self.settings.pool.eta * self.settings.refresh_every
            self.miner.refresh(view, self.exclude_NL, depth, self.keys)
        return view

    def plan(self, epoch: int, view: View | None) -> list[NDArray[np.int64]]:
        """The batches of an epoch, as query ids."""
        batches: list[NDArray[np.int64]] = self.sampler.plan(self.rows_N, self.targets_NL, epoch, view, self.keys)
        return batches

    def batches(self, plan: list[NDArray[np.int64]], first_step: int) -> Iterator[Prepared]:
        """The batches of a plan, each prepared in a thread during the previous step."""
        return ahead(lambda item: self.prepare(*item), enumerate(plan, first_step), partial(self.part, "plan wait"))

    def prepare(self, step: int, rows: NDArray[np.int64]) -> Prepared:
        """On the host: the label pool of these queries, and the tokens of both sides in chunks."""
        pool = self.settings.pool
        with self.part("plan"):
            mined_QE = self.miner.sample(rows, pool.eta, self.exclude_NL, self.keys.rng("negatives", step))
            rng = self.keys.rng("pool", step)
            batch = build_batch(
                rows, self.targets_NL, self.filter_NL, mined_QE, pool.beta, pool.cap, rng, all_labels=self.all_labels
            )
        with self.part("collate"):
            label_chunks = self._chunks(self.label_tokens, batch.labels_P) if self.model.reads_label_texts else []
            return Prepared(batch, self._chunks(self.query_tokens, batch.rows_Q), label_chunks)

    def _chunks(self, tokens: Ragged, rows: NDArray[np.int64]) -> list[Tokens]:
        size = self.settings.encode.chunk or max(len(rows), 1)
        starts = range(0, len(rows), size)
        return [self.model.encoder.collate(tokens.take(rows[start : start + size])) for start in starts]

    def step(self, step: int, prepared: Prepared) -> Record:
        """Train on a prepared batch; returns its record."""
        batch = prepared.batch
        started = time.perf_counter()
        with self.part("to device"):
            tensors = self.on_device(prepared)
        with compiled_by_torch(self.settings.compile):
            loss, norm, values = self.train_step(step, batch, tensors)
        return {
            "loss": loss,
            "gradient_norm": norm,
            "terms": values,
            "queries": len(batch.rows_Q),
            "pool": len(batch.labels_P),
            "positives": len(batch.positives[0]) / max(len(batch.rows_Q), 1),
            "dropped": batch.dropped,
            "missing_negatives": batch.missing,
            "seconds": time.perf_counter() - started,
        }

    def on_device(self, prepared: Prepared) -> DeviceBatch:
        """The prepared batch as tensors on the device of the run."""
        batch = prepared.batch
        labels_P = torch.from_numpy(batch.labels_P).to(self.device)
        inverse_propensity_L = self.inverse_propensity_L
        inverse_propensity_P = None if inverse_propensity_L is None else inverse_propensity_L[labels_P]
        blocks = LabelBlocks.of_batch(batch, self.device) if self.streams else None
        return DeviceBatch(
            query_chunks=[to_device(chunk, self.device) for chunk in prepared.query_chunks],
            label_chunks=[to_device(chunk, self.device) for chunk in prepared.label_chunks],
            labels_P=labels_P,
            truth=Truth.of_batch(batch, self.device).with_propensities(inverse_propensity_P),
            label_weight_P=None if self.label_weight_L is None else self.label_weight_L[labels_P],
            blocks=blocks.with_propensities(inverse_propensity_L) if blocks else None,
        )

    def train_step(self, step: int, batch: Batch, tensors: DeviceBatch) -> tuple[float, float, dict[str, float]]:
        """Forward, backward and update; refuses to update from non-finite numbers."""
        if not len(batch.rows_Q):
            return 0.0, 0.0, {}
        loss, values = self.compute(step, tensors)
        with self.part("clip and check"):
            norm = self.optimizers.clip()
            numbers = torch.stack([loss, norm, *values.values()]).tolist()
        if not math.isfinite(numbers[0]) or not math.isfinite(numbers[1]):
            raise self._diverged(step, batch, dict(zip(("loss", "gradient norm", *values), numbers, strict=True)))
        self.optimizers.step(self.part)
        return numbers[0], numbers[1], dict(zip(values, numbers[2:], strict=True))

    def compute(self, step: int, tensors: DeviceBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a batch and its parts; leaves gradients in the parameters."""
        self.model.train()

        def seed_for(purpose: str, chunk: int) -> int:
            return self.keys.seed_for(purpose, step, chunk)

        return forward_backward(
            self.model, tensors, self.terms, seed_for, self.autocast, self.optimizers.rows, self.part
        )

    def _diverged(self, step: int, batch: Batch, numbers: Mapping[str, float]) -> DivergedError:
        bad = ", ".join(name for name, value in numbers.items() if not math.isfinite(value))
        where = f"queries {batch.rows_Q[:5].tolist()}..., {len(batch.labels_P)} labels in the pool"
        hint = "the update was skipped; try a smaller learning rate or a larger temperature, or check the loss"
        error = DivergedError(Problem(f"step {step}", f"{bad} not finite ({where})", hint))
        error.details = {
            "step": step,
            "values": {name: repr(value) for name, value in numbers.items()},
            "rows": batch.rows_Q.tolist(),
            "labels": batch.labels_P.tolist(),
        }
        return error

    def _label_weights(self) -> torch.Tensor | None:
        if self.settings.objective.label_weights == "none":
            return None
        weights_L = self._inverse_propensity_L()
        return torch.from_numpy(weights_L / weights_L.mean()).float().to(self.device)

    def _inverse_propensities(self) -> torch.Tensor | None:
        if not any(term.objective.needs_propensities for term in self.terms.values()):
            return None
        return torch.from_numpy(self._inverse_propensity_L()).float().to(self.device)

    def _inverse_propensity_L(self) -> NDArray[np.float64]:
        return inverse_propensity(self.targets_NL, *propensity_parameters(self.data.name))


def ahead(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    waiting: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Iterator[Result]:
    """`map`, with the next result computed in a thread while the current one is used.

    Args:
        waiting: context manager around waits for a result.
    """

    def awaited(future: Future[Result]) -> Result:
        with waiting():
            return future.result()

    with ThreadPoolExecutor(max_workers=1) as pool:
        pending: Future[Result] | None = None
        for item in items:
            following = pool.submit(function, item)
            if pending is not None:
                yield awaited(pending)
            pending = following
        if pending is not None:
            yield awaited(pending)
