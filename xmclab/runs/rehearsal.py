"""A run in small: its own trainer, a few of its steps, and samples of a refresh, an evaluation and the baselines.

Times of samples are scaled to the whole, and memory is as in the run: vectors have all their rows, those that would
take long to compute as copies of a sample. Nothing is written, and the trainer is not fit for use afterwards.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Baseline, Dataset, Index, Miner, Ragged, Split, View
from xmclab.data.holdout import take
from xmclab.evaluation.scoring import Evaluator
from xmclab.evaluation.search import Space, rank_all
from xmclab.host.config import Config
from xmclab.model.model import Vectors, with_constant
from xmclab.runs.sizes import FLOAT, ID, Phase
from xmclab.system import usage
from xmclab.training.trainer import Trainer

WARM_UP, FEWEST, MOST = 3, 5, 30  # steps before those that count, and how many count
STEP_SECONDS = 6.0  # more steps are measured until then
ENCODE_SECONDS = 20.0  # texts are all encoded if that takes no longer
MINED, RANKED, WARM, COMPARED = 4096, 1024, 64, 512  # queries of the samples
SMALL = 100_000  # texts of a set whose baselines are not sampled
Encode = Callable[[Ragged], Vectors]


@dataclass
class Peaks:
    """The most that each phase held: of the host with all that was held before, of a device beyond that."""

    device: torch.device
    host: dict[Phase, int] = field(default_factory=dict)
    on_device: dict[Phase, int] = field(default_factory=dict)

    @contextmanager
    def of(self, phase: Phase, without: int = 0) -> Iterator[None]:
        """`without`: bytes that are held, but not counted."""
        usage.forget_peak()
        cuda = self.device.type == "cuda"
        before = torch.cuda.memory_allocated(self.device) if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        yield
        self.host[phase] = max(usage.peak() - without, self.host.get(phase, 0))
        if cuda:
            grown = torch.cuda.max_memory_allocated(self.device) - before
            self.on_device[phase] = max(grown, self.on_device.get(phase, 0))


class Built(Index):
    """An index that adapts to as many queries as the run will have, and times what does not depend on their number."""

    def __init__(self, index: Index, queries: int) -> None:
        self.index, self.queries = index, queries
        self.seconds: list[float] = []  # shared with copies

    def build(self, z_LD: Tensor) -> None:
        self._timed(lambda: self.index.build(z_LD))

    def tune(self, q_ND: Tensor, rng: np.random.Generator) -> None:
        if len(q_ND):
            q_ND = repeated(q_ND, self.queries)
        self._timed(lambda: self.index.tune(q_ND, rng))

    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return self.index.search(q_QD, k)

    @property
    def shares_products(self) -> bool:
        return self.index.shares_products

    def search_parts(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        return self.index.search_parts(q_QD, widths, k)

    def report(self) -> dict[str, Any]:
        return self.index.report()

    def _timed(self, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        self.seconds.append(time.perf_counter() - started)


class Lists:
    """Mined negatives of a sample, for the queries of any batch."""

    def __init__(self, miner: Any, rows: NDArray[np.int64], exclude_NL: Any) -> None:
        self._sample, self._rows, self._exclude_NL = miner.sample, rows, exclude_NL

    def __call__(self, rows_Q: NDArray[np.int64], n: int, _: Any, rng: np.random.Generator) -> NDArray[np.int64]:
        start = int(rng.integers(len(self._rows)))
        places_Q = (start + np.arange(len(rows_Q))) % len(self._rows)
        mined_Qn: NDArray[np.int64] = self._sample(places_Q, n, self._exclude_NL, rng)
        return mined_Qn


def steps(trainer: Trainer, plan: Sequence[NDArray[np.int64]], first: int) -> tuple[float, float]:
    """(seconds of a step, what the first ones took beyond that), each batch prepared during the step before it."""
    times: list[float] = []
    batches = list(itertools.islice(itertools.cycle(plan), WARM_UP + MOST))
    started = begun = time.perf_counter()
    for step, batch in enumerate(trainer.batches(batches, first), first):
        trainer.step(step, batch)
        now = time.perf_counter()
        times.append(now - started)
        started = now
        counted = len(times) - WARM_UP
        if counted >= FEWEST and now - begun > STEP_SECONDS:
            break
    usual = float(np.median(times[WARM_UP:]))
    return usual, max(sum(times[:WARM_UP]) - WARM_UP * usual, 0.0)


def repeated(x_SD: Tensor, rows: int) -> Tensor:
    """This many rows, from a sample of them."""
    return x_SD if len(x_SD) == rows else x_SD[torch.arange(rows, device=x_SD.device) % len(x_SD)]


def all_vectors(encode: Encode, tokens: Ragged, chunk: int) -> tuple[Vectors, float]:
    """Vectors of all texts, or of a sample again and again where all take long; and the seconds for all."""
    number = len(tokens)
    if number <= 4 * chunk:
        return timed(lambda: encode(tokens))
    sample = tokens.take(np.random.default_rng(0).choice(number, 2 * chunk, replace=False))
    encode(sample.take(np.arange(chunk)))
    found, seconds = timed(lambda: encode(sample))
    seconds *= number / len(sample)
    if seconds <= ENCODE_SECONDS:
        del found
        return timed(lambda: encode(tokens))
    widths = [v_SD.shape[1] for v_SD in found.values()]
    together = repeated(found.together, number)
    vectors = Vectors(zip(found, together.split(widths, dim=1), strict=True))
    vectors.together = together
    return vectors, seconds


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def refresh(trainer: Trainer, epoch: int) -> tuple[View, float]:
    """A view, and the seconds of its refresh; afterwards batches have mined negatives."""
    model, name, chunk = trainer.model, trainer.view_head, trainer.settings.encode.search_chunk
    queries, query_seconds = all_vectors(lambda t: model.query_vectors(t, chunk, [name]), trainer.query_tokens, chunk)
    labels, label_seconds = all_vectors(lambda t: model.label_vectors(t, chunk, [name]), trainer.label_tokens, chunk)
    q_ND = with_constant(queries[name], labels[name])
    view = View(epoch, q_ND, labels[name], str(trainer.device))
    seconds = query_seconds + label_seconds
    if trainer.mines:
        seconds += mine(trainer, view)
    trainer.view = view
    return view, seconds


def prepare_miner(trainer: Trainer) -> float:
    """Prepare the miner for a sample of the queries, from which batches draw afterwards; the seconds for all."""
    miner, data, number = trainer.miner, trainer.data, len(trainer.data.train)
    if not trainer.draws_negatives or type(miner).prepare is Miner.prepare:
        return 0.0
    seconds, sizes = [], [min(WARM, number), min(MINED, number)]
    for size in sizes:
        rows = sampled(number, size)
        of_sample = dataclasses.replace(data, train=take(data.train, rows))
        exclude_NL = trainer.exclude_NL[rows]
        seconds.append(timed(partial(miner.prepare, of_sample, exclude_NL, trainer.keys))[1])
    miner.sample = Lists(miner, rows, exclude_NL)
    slope = max(seconds[1] - seconds[0], 0.0) / max(sizes[1] - sizes[0], 1)
    return seconds[1] + slope * (number - sizes[1])


def sampled(number: int, size: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(0).permutation(number)[:size])


def mine(trainer: Trainer, view: View) -> float:
    """Mine for a sample of the queries; the seconds for all."""
    miner, number = trainer.miner, len(view.queries_ND)
    rows = sampled(number, MINED)
    unbuilt, index = miner.index, Built(copy(miner.index), number)
    miner.index = index
    of_sample = dataclasses.replace(view, queries_ND=view.queries_ND[rows])
    exclude_NL, depth = trainer.exclude_NL[rows], trainer.mining_depth
    _, seconds = timed(lambda: miner.refresh(of_sample, exclude_NL, depth, trainer.keys))
    miner.index = unbuilt
    if not isinstance(miner.sample, Lists):
        miner.sample = Lists(miner, rows, exclude_NL)
    once = sum(index.seconds)
    return once + (seconds - once) * number / len(rows)


@dataclass(frozen=True)
class Measured:
    """Seconds of an evaluation, and of what is done with its result."""

    once: float  # vectors, indexes: whatever the number of queries
    per_query: float  # tokens, vectors, rankings, metrics
    at_end: float  # contributions of all queries, and of frequent and rare labels
    rankings: int  # bytes for all queries that the sample did not have
    points: int  # bytes of the file with the contributions

    def seconds(self, queries: int) -> float:
        return self.once + self.per_query * queries


def evaluation(config: Config, trainer: Trainer, data: Dataset) -> Measured:
    """Rank and score a sample of the test queries."""
    number = len(data.test)
    if not number:
        return Measured(0.0, 0.0, 0.0, 0, 0)
    model, chunk = trainer.model, config.settings.encode.search_chunk
    rows = np.sort(np.random.default_rng(0).permutation(number)[: RANKED if number > 2 * RANKED else number])
    test = take(data.test, rows)
    evaluator, once = timed(lambda: Evaluator.of_data(dataclasses.replace(data, test=test), config.settings.evaluate))
    tokens, per_sample = timed(lambda: trainer.tokeniser.tokens(model.encoder, test.texts, "a sample of test queries"))
    labels, seconds = all_vectors(lambda t: model.label_vectors(t, chunk), trainer.label_tokens, chunk)
    once += seconds
    queries, seconds = timed(lambda: model.query_vectors(tokens, chunk))
    per_sample += seconds
    search, built = config.make("search"), Builder(config, number)
    search.index = built("search")
    if search.reads_training_queries:
        vectors, seconds = all_vectors(lambda t: model.query_vectors(t, chunk), trainer.query_tokens, chunk)
        once += seconds + timed(lambda: search.fit(vectors, trainer.targets_NL))[1]
        del vectors
    space = Space(model.head_names, data.num_labels, labels, lambda heads: (built(heads), False))
    names = search.names(model.head_names)
    depth = config.settings.evaluate.depth

    def ranked(split: Split, some: Any) -> list[Any]:
        return list(rank_all(search, names, some, space, split.filter_NL, depth).values())

    first = {name: q_ND[:WARM] for name, q_ND in queries.items()}
    _, warm = timed(lambda: ranked(take(test, np.arange(min(WARM, len(rows)))), first))
    rankings, seconds = timed(lambda: ranked(test, queries))
    once += max(warm - seconds * min(WARM, len(rows)) / len(rows), 0.0)
    per_sample += seconds
    metrics, seconds = timed(lambda: [evaluator.metrics(each) for each in rankings])
    per_sample += seconds
    at_end = timed(lambda: [evaluator.bands(each) for each in rankings])[1]
    points, seconds = timed(lambda: [evaluator.points(each, list(metrics[0])) for each in rankings])
    at_end += seconds
    missing = len(names) * (number - len(rows)) * depth * (ID + FLOAT)
    file, scale = io.BytesIO(), number / len(rows)
    arrays = [found for found, _ in points] + [points[0][1]]
    at_end += timed(lambda: np.savez_compressed(file, *arrays))[1]
    return Measured(once, per_sample / len(rows), at_end * scale, missing, round(file.tell() * scale))


class Builder:
    """Makes the indexes of an evaluation."""

    def __init__(self, config: Config, queries: int) -> None:
        self.config, self.queries = config, queries

    def __call__(self, _: str) -> Index:
        return Built(self.config.make("index"), self.queries)


def baselines(config: Config, data: Dataset) -> float:
    """Seconds of all baselines; for large sets, from two samples of the test queries."""
    depth, number, total = config.settings.evaluate.depth, len(data.test), 0.0
    whole = len(data.train) + data.num_labels + number <= SMALL
    sizes = [number] if whole or number <= WARM else [WARM, min(COMPARED, number)]
    samples = [dataclasses.replace(data, test=take(data.test, spread(number, size))) for size in sizes]
    for each in config.make_all("baseline").values():
        seconds = [timed(partial(_rank_and_score, each, sample, depth))[1] for sample in samples]
        slope = max(seconds[-1] - seconds[0], 0.0) / max(sizes[-1] - sizes[0], 1)
        total += seconds[0] + slope * (number - sizes[0])
    return total


def spread(number: int, size: int) -> NDArray[np.int64]:
    """This many rows, at equal distances."""
    return np.linspace(0, number - 1, size).astype(np.int64)


def _rank_and_score(baseline: Baseline, data: Dataset, depth: int) -> None:
    Evaluator.of_data(data).metrics(baseline.rank(data, depth))
