"""The trainer, for any choice of encoder, heads, sampler, miner, reductions and losses. A step, top to bottom:

encode    queries and unique labels, in chunks; both heads share that pass
scores    s_QP = <q, z> of each head, to the gradient of its objective (`objectives/engine.py`)
total     L = lambda L_de + (1 - lambda) L_clf, each over both directions
back      to the encoder's outputs, then through the encoder chunk by chunk
update    if loss and gradient are finite
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Batch, Dataset, Head, Keys, Ragged, Side, View
from xmclab.data.propensity import frequency_bands
from xmclab.data.tokens import Tokeniser
from xmclab.errors import DataError, Problem
from xmclab.host.config import Config
from xmclab.kernels.dispatch import compiled_by_torch
from xmclab.model.device import pick_device, precision_of
from xmclab.model.dropout import keyed, text_keys
from xmclab.model.model import Model, with_constant
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth
from xmclab.plan.pool import build_batch, complete_by_band
from xmclab.system.memory import out_of_memory
from xmclab.training.batches import Chunk, EncodedTexts, Part, Prepared, ahead
from xmclab.training.diagnosis import diverged, exhausted
from xmclab.training.encoding import ChunkedEncoding, Encoding, graphs_kept
from xmclab.training.objectives import label_weights, objectives_of
from xmclab.training.optim import HostState, Optimizers
from xmclab.training.refreshes import Refreshes
from xmclab.training.start import Start, freeze, trained_heads
from xmclab.training.streaming import streaming
from xmclab.training.transfer import Fetched, Shipping

logger = logging.getLogger("xmclab.training")

Record = dict[str, Any]


@dataclass(frozen=True)
class Launched:
    """A step that was begun, and may still be computing."""

    step: int
    prepared: Prepared
    started: float
    before: HostState  # of the optimizers
    names: tuple[str, ...] = ()
    numbers: Fetched | Tensor | None = None  # by name; None: there was nothing to train on

    def values(self) -> dict[str, float]:
        """Loss, gradient norm and terms by name, once they are known."""
        return {} if self.numbers is None else dict(zip(self.names, self.numbers.tolist(), strict=True))


class Trainer:
    """Everything a run trains with; its methods are what the loop calls, in order."""

    finished = 0.0  # when the latest step was
    graph_room: float | None = None  # bytes for graphs of chunks; None: keep as few as possible
    late: bool  # what a step gave is read after the next one has begun

    def __init__(
        self,
        config: Config,
        data: Dataset,
        tokeniser: Tokeniser | None = None,
        part: Part = contextlib.nullcontext,
        assets: Path | None = None,
        start: Start | None = None,
        prepares: bool = True,
    ) -> None:
        """
        Args:
            part: context manager around each part of the work, such as `encode forward`, for timing.
            assets: what the encoder of an earlier trainer saved, whose weights the caller will load.
            start: weights to begin with, unless training is continued.
            prepares: call `Miner.prepare`, if negatives are drawn; otherwise the caller does.
        """
        self.config, self.data, self.part = config, data, part
        self.settings, self.keys = config.settings, Keys(config.settings.seed)
        self.device = pick_device(self.settings.device)
        self.precision = precision_of(self.device, self.settings.precision, self.settings.tf32)
        self.ship, self.late = Shipping(self.device), self.device.type == "cuda"

        self.tokeniser = tokeniser or Tokeniser(self.settings.data)
        self.model = self._model(assets or (start.assets if start else None))
        encoder = self.model.encoder
        self.query_tokens = self.tokeniser.tokens(encoder, data.train.texts, "training queries")
        self.label_tokens = self.tokeniser.tokens(encoder, data.label_texts, "labels")
        if start and assets is None:
            start.load(self.model)
        freeze(self.model, config)
        self.reads_labels = any(self.model.head(name).labels_from == "text" for name in trained_heads(config))
        self.chunk = 0 if self.settings.encode.chunk == "auto" else self.settings.encode.chunk
        self.fixed = self._fixed_texts()
        if assets is None:
            self._start_heads(start.heads if start else ())
        self.sampler, self.miner = config.make("sampler"), config.make("miner")
        self.view: View | None = None  # the latest
        self.planned: tuple[int, list[NDArray[np.int64]]] | None = None  # the latest plan, and its epoch
        self.resumed: tuple[int, list[NDArray[np.int64]]] | None = None  # a plan from a view that is gone
        self.targets_NL, self.filter_NL = data.train.targets_NL, data.train.filter_NL
        self.exclude_NL = (self.targets_NL.astype(bool) + self.filter_NL.astype(bool)).tocsr()
        self.rows_N = self._rows_with_labels()
        self.bands = frequency_bands(data.real.targets_NL)
        self.objectives = objectives_of(config)
        self.label_weight_L, self.inverse_propensity_L = label_weights(data, self.settings, self.objectives)
        weighted = self.label_weight_L is not None
        self.streaming, self.stream = streaming(config, self.model, self.objectives, weighted, self.precision)
        self.all_labels = any(objective.needs_all for objective in self.objectives.values())
        if prepares and self.draws_negatives:
            self.miner.prepare(data, self.exclude_NL, self.keys)
        steps_per_epoch = len(self.plan(0))
        self.steps = self.settings.epochs * steps_per_epoch
        self.refreshes = Refreshes(self.settings, steps_per_epoch, self.needs_views)
        self.optimizers = Optimizers(self.model, self.settings.optim, self.steps, steps_per_epoch)
        self.compiled: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
        if self.settings.compile:
            self.model.encoder.compile()
            self.compiled = compiled_by_torch

    def _model(self, assets: Path | None) -> Model:
        """A new model on the device of the run, its encoder fitted to the texts, or made from what another saved."""
        config, data = self.config, self.data
        torch.manual_seed(self.keys.seed_for("parameters"))
        encoder = config.make("encoder")
        if assets is None:
            self.tokeniser.fit(encoder, data.train.texts, data.label_texts)
        else:
            encoder.load_assets(assets)
        heads = {name: config.make(f"head.{name}") for name in config.heads}
        return Model(encoder, heads, data.num_labels, self.precision).to(self.device)

    def _fixed_texts(self) -> EncodedTexts | None:
        """The texts as a frozen encoder sees them; None if it is trained."""
        if "encoder" not in self.settings.freeze:
            return None
        labels = self.label_tokens if self.reads_labels else None
        return EncodedTexts(self.model, self.query_tokens, labels, self.settings.encode.search_chunk)

    @cached_property
    def of_all(self) -> tuple[Tensor, Tensor | None] | None:
        """The ids and the weights of all labels, on the device of the run; None if pools are drawn."""
        if not self.all_labels:
            return None
        weight_L = self.label_weight_L
        ids_L = torch.arange(self.data.num_labels, device=self.device)
        return ids_L, None if weight_L is None else weight_L.to(self.device)

    def _start_heads(self, known: Sequence[str]) -> None:
        """Let heads initialise themselves from the data, except those whose weights are known."""
        chunk, tokens = self.settings.encode.search_chunk, {"query": self.query_tokens, "label": self.label_tokens}

        def encoded(side: Side) -> Tensor:
            if self.fixed and self.fixed.tokens[side] is not None:
                return self.fixed.all(side).to(self.device)
            return self.model.encode_all(tokens[side], side, chunk, self.device)

        self.model.start_heads(encoded, self.data.train.targets_NL, known, self.data.real.targets_NL)

    def _rows_with_labels(self) -> NDArray[np.int64]:
        """The training queries that have a label."""
        rows_N = np.flatnonzero(np.diff(self.targets_NL.indptr))
        if not len(rows_N):
            raise DataError(Problem(self.data.name, "no training query has a label"))
        return rows_N

    @property
    def needs_views(self) -> bool:
        """Whether the sampler or the miner needs views."""
        return self.sampler.needs_view or self.mines

    @property
    def mines(self) -> bool:
        """Whether negatives are mined in views."""
        return self.miner.needs_view and self.draws_negatives

    @property
    def draws_negatives(self) -> bool:
        """Whether mined negatives are used; a pool of all labels already has them."""
        return self.eta > 0 and not self.all_labels

    @property
    def eta(self) -> int:
        """Mined negatives of a query: there are no more than labels."""
        return min(self.settings.pool.eta, self.data.num_labels)

    @property
    def mining_depth(self) -> int:
        """Labels mined for a query at a refresh: those that it draws until the next one, unless the miner says."""
        return min(self.miner.mining_depth or self.eta * self.refreshes.passes, self.data.num_labels)

    @property
    def view_head(self) -> str:
        """The head whose vectors are in a view."""
        return "de" if "de" in self.model.head_names else self.model.head_names[0]

    def refresh(self, epoch: int, batch: int = 0) -> Record:
        """Encode all queries and labels with the current model, and mine negatives from that view; its record."""
        with self.part("refresh"):
            chunk = self.settings.encode.search_chunk
            head = self.view_head
            queries = self.model.query_vectors(self.query_tokens, chunk, [head])[head]
            labels = self.model.label_vectors(self.label_tokens, chunk, [head])[head]
            queries = with_constant(queries, labels)
            self.see(View(epoch, queries, labels, str(self.device), batch))
        what = [name for name, used in (("clusters", self.sampler.needs_view), ("negatives", self.mines)) if used]
        return {"refreshed": " and ".join(what), **self.miner.report()}

    def see(self, view: View, mined: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Use this view from now on, with what was mined from it earlier or is mined now."""
        if self.mines and mined is None:
            self.miner.refresh(view, self.exclude_NL, self.mining_depth, self.keys)
        elif self.mines and mined is not None:
            self.miner.load_state(mined)
        self.view = view if self.sampler.needs_view and not view.batch else view.to_host()  # a plan is next, or not

    def ready(self) -> None:
        """Do what is done once, with the weights that training begins with; the first batches do it otherwise."""
        if self.fixed:
            with self.part("encode once"):
                self.fixed.compute()

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, as query ids."""
        if self.resumed is None or self.resumed[0] != epoch:
            self.planned = epoch, self.sampler.plan(self.rows_N, self.targets_NL, epoch, self.view, self.keys)
            self.view = self.view and self.view.to_host()
            return self.planned[1]
        return self.resumed[1]

    def batches(self, plan: list[NDArray[np.int64]], first_step: int) -> Iterator[Prepared]:
        """The batches of a plan, each prepared in a thread during the previous step."""
        self.ready()
        return ahead(lambda item: self.prepare(*item), enumerate(plan, first_step), partial(self.part, "plan wait"))

    def prepare(self, step: int, rows: NDArray[np.int64]) -> Prepared:
        """The label pool of these queries and the tokens of both sides in chunks, sent to the device of the run."""
        pool = self.settings.pool
        with self.part("plan"):
            mined_QE = self.miner.sample(rows, self.eta, self.exclude_NL, self.keys.rng("negatives", step))
            given = rows, self.targets_NL, self.filter_NL, mined_QE, pool.beta, pool.cap, self.keys.rng("pool", step)
            batch = build_batch(*given, self.all_labels, pool.replacement, pool.gap)
        with self.part("collate"):
            ids_P = torch.from_numpy(batch.labels_P)
            weight_P, inverse_propensity_P = (
                None if x_L is None else x_L[ids_P] for x_L in (self.label_weight_L, self.inverse_propensity_L)
            )
            labels_P, weight_P = self.of_all or (ids_P, weight_P)
            key_Q = text_keys(self._key_seed(step, "query"), torch.from_numpy(batch.rows_Q))
            key_P = text_keys(self._key_seed(step, "label"), labels_P)
            queries, labels = self._in_chunks(step, batch, key_Q, key_P, chunk := self.chunk)
            truth = Truth.of_batch(batch, "cpu").with_propensities(inverse_propensity_P)
            seed, update_seed = self.keys.seed_for("heads", step, 0), self.keys.seed_for("updates", step)
            complete = complete_by_band(batch, self.targets_NL, self.bands.names, self.bands.group_L)
            fixed = self.fixed.take(batch.rows_Q, batch.labels_P) if self.fixed else None
            tensors = queries, labels, labels_P, truth, weight_P
            prepared = Prepared(batch, *tensors, seed, complete, key_Q, key_P, update_seed, chunk, fixed)
            prepared, shipment = self.ship(prepared)
            return replace(prepared, shipment=shipment)

    def _key_seed(self, step: int, side: Side) -> int:
        return self.keys.seed_for(f"dropout {side}", step)

    def _in_chunks(
        self, step: int, batch: Batch, key_Q: Tensor | None, key_P: Tensor | None, chunk: int
    ) -> tuple[list[Chunk], list[Chunk]]:
        """The tokens of the queries, and of the labels if a trained head reads them; none for a frozen encoder."""
        if self.fixed:
            return [], []
        reads = self.reads_labels
        labels = self._chunks(step, "label", self.label_tokens, batch.labels_P, key_P, chunk) if reads else []
        return self._chunks(step, "query", self.query_tokens, batch.rows_Q, key_Q, chunk), labels

    def _chunks(
        self, step: int, side: Side, tokens: Ragged, rows: NDArray[np.int64], key: Tensor | None, chunk: int
    ) -> list[Chunk]:
        size = chunk or max(len(rows), 1)
        parts = [slice(start, start + size) for start in range(0, len(rows), size)]
        taken = [tokens.take(rows[part]) for part in parts]
        seeds = [self.keys.seed_for(side, step, number) for number in range(len(parts))]
        keys = [None if key is None else key[part] for part in parts]
        return list(map(Chunk, map(self.model.encoder.collate, taken), seeds, keys, (len(each.ids) for each in taken)))

    def step(self, step: int, prepared: Prepared) -> Record:
        """Train on a prepared batch, unless a number is not finite; returns its record."""
        return self.finish(self.launch(step, prepared))

    def launch(self, step: int, prepared: Prepared) -> Launched:
        """Begin a step. If `late`, the host does not wait for its numbers; nothing moves if one is not finite."""
        launched = Launched(step, prepared, time.perf_counter(), self.optimizers.host_state())
        if prepared.shipment:
            prepared.shipment.receive()
        if not len(prepared.batch.rows_Q):
            return launched
        if self.late and self.optimizers.sound is None:
            self.optimizers.watch(torch.zeros(1, device=self.device))
        with self.compiled():
            loss, values = self._fitted_backward(step, prepared)
        with self.part("clip and check"):
            numbers = torch.stack([loss, self.optimizers.clip(), *values.values()])
            fetched = Fetched(numbers) if self.device.type == "cuda" else numbers
            launched = replace(launched, names=("loss", "gradient norm", *values), numbers=fetched)
            if self.late:
                self.optimizers.watch(numbers[:2])
            else:
                self._refuse_divergence(launched)
        torch.manual_seed(prepared.update_seed)
        self.optimizers.step(self.part)
        return launched

    def finish(self, launched: Launched) -> Record:
        """The record of a step, which is waited for; raises `DivergedError` if it moved nothing."""
        self._refuse_divergence(launched)
        batch, found = launched.prepared.batch, launched.values()
        started, self.finished = max(launched.started, self.finished), time.perf_counter()
        return {
            "loss": found.pop("loss", 0.0),
            "gradient_norm": found.pop("gradient norm", 0.0),
            "terms": found,
            "queries": len(batch.rows_Q),
            "pool": len(batch.labels_P),
            "positives": len(batch.positives[0]) / max(len(batch.rows_Q), 1),
            "complete": dict(launched.prepared.complete),
            "dropped": batch.dropped,
            "missing_negatives": batch.missing,
            "seconds": self.finished - started,
        }

    def _refuse_divergence(self, launched: Launched) -> None:
        """Raise with the culprit if the loss or the gradient is not finite; the state is then that before the step."""
        found = launched.values()
        if not all(math.isfinite(found.get(name, 0.0)) for name in ("loss", "gradient norm")):
            self.optimizers.rewind(launched.before)
            raise diverged(self, launched.step, launched.prepared, found)

    def _fitted_backward(self, step: int, prepared: Prepared) -> tuple[Tensor, dict[str, Tensor]]:
        """`backward`; with `encode.chunk=auto`, repeated with half the chunk as often as memory runs out."""
        while True:
            if prepared.chunk != self.chunk:  # prepared before the chunk was lowered
                batch, keys = prepared.batch, (prepared.key_Q, prepared.key_P)
                (queries, labels), shipment = self.ship(self._in_chunks(step, batch, *keys, self.chunk))
                prepared = replace(prepared, queries=queries, labels=labels, chunk=self.chunk)
                if shipment:
                    shipment.receive()
            try:
                return self.backward(step, prepared)
            except (MemoryError, RuntimeError) as error:
                reason = out_of_memory(error)
                if reason is None:
                    raise
                texts = max(len(prepared.batch.rows_Q), len(prepared.batch.labels_P) if prepared.labels else 0)
                used = min(self.chunk or texts, texts)
                lowers = self.settings.encode.chunk == "auto" and used > 1 and self.optimizers.untouched
                if not lowers:
                    raise exhausted(self, step, prepared, used, reason) from error
            # Outside of `except`: the error would keep the tensors of the attempt.
            self.optimizers.discard()
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.chunk, self.graph_room = (used + 1) // 2, None
            logger.info("step %d: out of memory; encode.chunk=auto goes on with %d texts at once", step, self.chunk)

    def backward(self, step: int, prepared: Prepared) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch; leaves its gradients in the parameters.

        Tables of streaming heads get no gradient: the optimizers make their updates.

        Returns:
            The total, and the value of every term and direction as `head/term/direction`; all detached scalars.
        """
        with self.precision.casts_kept():
            with self.part("encode forward"):
                queries, labels = self.encoded(prepared)
            with self.part("scores and losses"):
                total, values = self._heads(step, prepared, queries.x_BD, labels.x_BD if labels else None)
            with self.part("encode backward"):
                if labels:
                    labels.backward()
                queries.backward()
        return total, values

    def encoded(self, prepared: Prepared) -> tuple[Encoding, Encoding | None]:
        """The queries of a batch, and its labels if their texts are read."""
        self.model.train()
        if prepared.fixed:
            x_QD, x_PD = prepared.fixed
            return Encoding(x_QD), None if x_PD is None else Encoding(x_PD)
        of_queries, of_labels = graphs_kept(self.model.encoder, prepared, self.graph_room, self.precision.half)
        encode = partial(ChunkedEncoding, self.model.encoder, precision=self.precision)
        queries = encode(prepared.queries, "query", keep=of_queries)
        return queries, encode(prepared.labels, "label", keep=of_labels) if prepared.labels else None

    def _heads(
        self, step: int, prepared: Prepared, x_QD: Tensor, x_PD: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss; leaves its gradient in the encoder's vectors and the parameters of the heads."""
        total = torch.zeros((), device=x_QD.device)
        values: dict[str, Tensor] = {}
        roots: dict[Tensor, Tensor] = {}  # where backward starts, with the gradients there
        heads = enumerate(self.objectives.items())
        for number, (name, objective) in sorted(heads, key=lambda head: head[1][0] in self.streaming):
            head, weight_P = cast(Head, self.model.heads[name]), prepared.label_weight_P
            torch.manual_seed(prepared.seed + number)  # for each, as draws of another depend on its blocks
            with self.precision.autocast(), keyed(prepared.key_Q):
                q_QD = head.queries(x_QD)
            if name in self.streaming:
                seeds = partial(self.keys.seed_for, f"rows {name}", step), self._key_seed(step, "label")
                given = head, objective, q_QD, prepared.truth, weight_P, seeds[0]
                engine, scores = self.stream(*given, key_seed=seeds[1])
                rows = self.optimizers.rows
                assert rows is not None, "a streaming head has a table"
                if rows.at_once and total.requires_grad:  # what may stop the step must be known before an update
                    total.backward()
                    total = total.detach()
                sides = [x.grad for x in (x_QD, x_PD) if x is not None and x.grad is not None]
                rows.backward(engine, scores, known=[total, *sides])
                if q_QD.requires_grad:
                    roots[q_QD] = scores.dq_QD.to(q_QD.dtype)
                found = engine.evaluation
            else:
                with self.precision.autocast():
                    with keyed(prepared.key_P):
                        z_PD = head.labels(x_PD, prepared.labels_P)
                    found = evaluate_vectors(objective, q_QD, z_PD, prepared.truth, weight_P, head.score_bound)
            total = total + objective.share * found.total
            values |= {f"{name}/{direction}": value for direction, value in found.values.items()}
        if total.requires_grad:
            roots[total] = torch.ones_like(total)
        if roots:
            torch.autograd.backward(list(roots), list(roots.values()))
        return total.detach(), values
