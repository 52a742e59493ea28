"""The training loop: one, for any choice of encoder, heads, sampler, miner, reductions and losses."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from xmclab.accelerator import compiled_by_torch
from xmclab.api import Batch, Dataset, Keys, Ragged, Tokens, View
from xmclab.batch.pool import build_batch
from xmclab.config import Config
from xmclab.data.tokens import Tokeniser
from xmclab.errors import ConfigError, DataError, DivergedError, Problem
from xmclab.evaluate.metrics import inverse_propensity, propensity_parameters
from xmclab.train.display import Display
from xmclab.train.model import Model, to_device
from xmclab.train.optim import Optimizers
from xmclab.train.profile import PLAN_WAIT, STEP, Profile
from xmclab.train.step import DeviceBatch, HeadTerm, forward_backward
from xmclab.train.streaming import LabelBlocks, streams_all_labels
from xmclab.truth import Truth

Record = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Trainer:
    """Everything a run trains with. `fit` runs the loop; the other methods are its steps, in order."""

    def __init__(self, config: Config, data: Dataset, tokeniser: Tokeniser | None = None) -> None:
        self.config, self.data = config, data
        self.settings = config.settings
        self.keys = Keys(self.settings.seed)
        self.device = pick_device(self.settings.device)
        self.autocast = autocast_for(self.device, self.settings.precision)
        self.profile = Profile(self.device, self.settings.profile)
        self.seconds = 0.0  # of training so far, evaluations left out

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

        steps_per_epoch = len(self.sampler.plan(self.rows_N, 0, None, self.keys))
        self.steps = self.settings.epochs * steps_per_epoch
        self.optimizers = Optimizers(self.model, self.settings.optim, self.steps, steps_per_epoch)
        if self.settings.compile:
            self.model.encoder.compile()

    def fit(self, log: Callable[[Record], None], display: Display, after_epoch: Callable[[int], None]) -> None:
        """Train; `log` takes the record of every step, `after_epoch` is called with the number of epochs done."""
        step = 0
        view: View | None = None
        for epoch in range(self.settings.epochs):
            epoch_started = time.perf_counter()
            if self._refresh_due(epoch):
                display.note(f"epoch {epoch + 1}: refreshing clusters and negatives")
                started = time.perf_counter()
                with self.profile.part("refresh"):
                    view = self.refresh(epoch)
                seconds = time.perf_counter() - started
                log({"event": "refresh", "epoch": epoch, "seconds": seconds, **self.miner.report()})
            plan = self.sampler.plan(self.rows_N, epoch, view, self.keys)
            waiting = partial(self.profile.part, PLAN_WAIT)
            prepared = ahead(lambda item: self.prepare(*item), enumerate(plan, start=step), waiting)
            for number, chunks in enumerate(prepared, start=1):
                with self.profile.part(STEP):
                    record = {"event": "step", "epoch": epoch, "step": step, "last_of_epoch": number == len(plan)}
                    record |= self.step(step, *chunks)
                    log(record)
                    display.step(record)
                step += 1
            self.seconds += time.perf_counter() - epoch_started
            after_epoch(epoch + 1)
        self.model.settle()

    def step(self, step: int, batch: Batch, query_chunks: list[Tokens], label_chunks: list[Tokens]) -> Record:
        """Train on a prepared batch; returns what there is to say about it."""
        started = time.perf_counter()
        with self.profile.part("to device"):
            tensors = self.on_device(batch, query_chunks, label_chunks)
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

    def _refresh_due(self, epoch: int) -> bool:
        wanted = self.sampler.needs_view or self._mines
        return wanted and epoch > 0 and epoch % self.settings.refresh_every == 0

    @property
    def _mines(self) -> bool:
        """Whether mined negatives are of any use: a pool of all labels has them already."""
        return self.miner.needs_view and self.settings.pool.eta > 0 and not self.all_labels

    def refresh(self, epoch: int) -> View:
        """Look at all queries and labels with the current model; mine negatives from what it sees."""
        chunk = self.settings.encode.search_chunk
        head = "de" if "de" in self.terms else self.model.head_names[0]
        queries = self.model.query_vectors(self.query_tokens, chunk, [head])[head]
        labels = self.model.label_vectors(self.label_tokens, chunk, [head])[head]
        view = View(epoch, queries.cpu().numpy(), labels.cpu().numpy(), str(self.device))
        if self._mines:
            depth = self.settings.pool.eta * self.settings.refresh_every
            self.miner.refresh(view, self.exclude_NL, depth, self.keys)
        return view

    def prepare(self, step: int, rows: NDArray[np.int64]) -> tuple[Batch, list[Tokens], list[Tokens]]:
        """On the host: the label pool of these queries, and the tokens of both sides in chunks."""
        pool = self.settings.pool
        with self.profile.part("plan"):
            mined_QE = self.miner.sample(rows, pool.eta, self.exclude_NL, self.keys.rng("negatives", step))
            rng = self.keys.rng("pool", step)
            batch = build_batch(
                rows, self.targets_NL, self.filter_NL, mined_QE, pool.beta, pool.cap, rng, all_labels=self.all_labels
            )
        with self.profile.part("collate"):
            label_chunks = self._chunks(self.label_tokens, batch.labels_P) if self.model.reads_label_texts else []
            return batch, self._chunks(self.query_tokens, batch.rows_Q), label_chunks

    def _chunks(self, tokens: Ragged, rows: NDArray[np.int64]) -> list[Tokens]:
        size = self.settings.encode.chunk or max(len(rows), 1)
        starts = range(0, len(rows), size)
        return [self.model.encoder.collate(tokens.take(rows[start : start + size])) for start in starts]

    def on_device(self, batch: Batch, query_chunks: list[Tokens], label_chunks: list[Tokens]) -> DeviceBatch:
        """The prepared batch as tensors on the device of the run."""
        labels_P = torch.from_numpy(batch.labels_P).to(self.device)
        inverse_propensity_L = self.inverse_propensity_L
        inverse_propensity_P = None if inverse_propensity_L is None else inverse_propensity_L[labels_P]
        blocks = LabelBlocks.of_batch(batch, self.device) if self.streams else None
        return DeviceBatch(
            query_chunks=[to_device(chunk, self.device) for chunk in query_chunks],
            label_chunks=[to_device(chunk, self.device) for chunk in label_chunks],
            labels_P=labels_P,
            truth=Truth.of_batch(batch, self.device).with_propensities(inverse_propensity_P),
            label_weight_P=None if self.label_weight_L is None else self.label_weight_L[labels_P],
            blocks=blocks.with_propensities(inverse_propensity_L) if blocks else None,
        )

    def train_step(self, step: int, batch: Batch, tensors: DeviceBatch) -> tuple[float, float, dict[str, float]]:
        """Forward, backward and update; refuses to update from a number that is not finite."""
        if not len(batch.rows_Q):
            return 0.0, 0.0, {}
        loss, values = self.compute(step, tensors)
        with self.profile.part("clip and check"):
            norm = self.optimizers.clip()
            numbers = torch.stack([loss, norm, *values.values()]).tolist()
        if not math.isfinite(numbers[0]) or not math.isfinite(numbers[1]):
            raise self._diverged(step, batch, dict(zip(("loss", "gradient norm", *values), numbers, strict=True)))
        self.optimizers.step(self.profile.part)
        return numbers[0], numbers[1], dict(zip(values, numbers[2:], strict=True))

    def compute(self, step: int, tensors: DeviceBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a batch and its parts, gradients left in the parameters."""
        self.model.train()

        def seed_for(purpose: str, chunk: int) -> int:
            return self.keys.seed_for(purpose, step, chunk)

        return forward_backward(
            self.model, tensors, self.terms, seed_for, self.autocast, self.optimizers.rows, self.profile.part
        )

    def _diverged(self, step: int, batch: Batch, numbers: Mapping[str, float]) -> DivergedError:
        bad = ", ".join(name for name, value in numbers.items() if not math.isfinite(value))
        where = f"queries {batch.rows_Q[:5].tolist()}..., {len(batch.labels_P)} labels in the pool"
        hint = "weights are those of the step before; a smaller learning rate, a larger temperature, or the loss itself"
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
        waiting: the context in which a result that is not there yet is waited for.
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


def pick_device(name: str) -> torch.device:
    """`auto` is cuda where there is one, else the cpu; a device that is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(Problem(f"device={name}", "no such device", "use auto, cpu, cuda or cuda:N")) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA devices found"
        raise ConfigError(Problem(f"device={name}", found, "use device=cpu or device=auto"))
    return device


def autocast_for(device: torch.device, precision: str) -> Callable[[], contextlib.AbstractContextManager[object]]:
    """The context that the products of a step run in."""
    if precision == "float32" or (precision == "auto" and device.type != "cuda"):
        return contextlib.nullcontext
    return partial(torch.autocast, device.type, dtype=torch.bfloat16)
