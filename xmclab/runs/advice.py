"""What to tell users about a run: before it, choices that do not do what they seem to; at its end, what failed."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from xmclab.errors import XmclabError
from xmclab.host.config import Config
from xmclab.host.registry import Registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import HEADS, Settings
from xmclab.model.tables import RowTable
from xmclab.training.trainer import Trainer

FEW = 8  # as many names of parameters are listed
FEW_STEPS = 10  # as many do not train a model
ENOUGH_STEPS = 100
SMALLEST_BATCH = 16


def advice(trainer: Trainer) -> list[str]:
    """Notes on a run, each with a remedy; usually none."""
    return [
        *_recipe(trainer.config),
        *_counts(trainer),
        *_refresh(trainer),
        *_widths(trainer),
        *_bias(trainer),
        *_rows(trainer),
        *_decay(trainer),
    ]


def advice_on_validation(settings: Settings, patience: int | None, by_default: bool) -> list[str]:
    """Notes on how the epoch is chosen whose weights are kept, where that is not what one may expect.

    Args:
        patience: epochs without a better one after which training stops; None: the run does not validate.
        by_default: nobody asked for validation.
    """
    notes = []
    if patience is None:
        if settings.stop.patience:
            notes.append("stop.patience: no effect without validation; set validate.share or validate.file")
        return notes
    if by_default:
        stops = f", and training stops {patience} epochs after it" if 0 < patience < settings.epochs else ""
        notes.append(
            f"validation is on, so the best epoch is kept{stops} (validate.share=0 trains on all queries, to the end)"
        )
    if settings.evaluate.every and settings.evaluate.test:
        notes.append("evaluate.every: no effect, as with validation the test queries are ranked once, at the end")
    return notes


def warnings(trainer: Trainer) -> list[str]:
    """Batches that do not suit the number of queries, or do not hold them all."""
    return [*_sizes(trainer), *_partition(trainer)]


def _partition(trainer: Trainer) -> Iterator[str]:
    """A plan of the first epoch that does not hold every query with a label once."""
    rows_N, batches = trainer.rows_N, (trainer.planned or (0, []))[1]
    if not batches:  # resumed
        return
    found_N, count_N = np.unique(np.concatenate(batches), return_counts=True)
    kept_N = np.isin(found_N, rows_N)
    counts = {
        "drops": len(rows_N) - int(kept_N.sum()),
        "repeats": int((count_N[kept_N] > 1).sum()),
    }
    if said := [f"{verb} {count:,}" for verb, count in counts.items() if count]:
        name, registry = trainer.config.choice("sampler"), trainer.config.registry
        check = shlex.join(["xmclab", "check", f"sampler:{name}", *(f"plugin={file}" for file in registry.files)])
        check = "xmclab_kit.sampler_contract" if f"sampler {name}" in registry.given else check
        yield (
            f"sampler {name} {' and '.join(said)} of the {len(rows_N):,} training queries with labels in an epoch, "
            f"which should have each of them once: see {check}"
        )


def _sizes(trainer: Trainer) -> list[str]:
    """Batches too large for the number of queries."""
    queries, size, epochs = len(trainer.data.train), trainer.sampler.batch_size, trainer.settings.epochs
    smaller = max(2 ** int(math.log2(max(queries * epochs / ENOUGH_STEPS, 1))), SMALLEST_BATCH)
    more = math.ceil(queries / smaller) * epochs
    if smaller >= size or more <= trainer.steps or (size <= queries and trainer.steps >= FEW_STEPS):
        return []
    hint = f"sampler.batch_size={smaller} makes {more}"
    if size > queries:
        reason = f"sampler.batch_size={size} is more than the {queries} training queries, so each epoch is one step"
        return [f"{reason}, {trainer.steps} in all; {hint}"]
    return [f"only {trainer.steps} steps for {queries} training queries; {hint}"]


def _recipe(config: Config) -> Iterator[str]:
    """An encoder that the recipe was not made for, where there are recipes for it."""
    encoder, names = config.choice("encoder"), config.registry.names("recipe")
    if config.recipe not in names or (meant := _encoder_of(config.recipe, config.registry)) in (encoder, None):
        return
    if others := [name for name in names if _encoder_of(name, config.registry) == encoder]:
        yield f"recipe {config.recipe} is for encoder={meant}; for encoder={encoder} there are {', '.join(others)}"


def _encoder_of(recipe: str, registry: Registry) -> str | None:
    with contextlib.suppress(XmclabError):  # a recipe of another plugin may be broken
        return resolve([f"recipe={recipe}"], registry).choice("encoder")
    return None


def _counts(trainer: Trainer) -> Iterator[str]:
    """Numbers that were set to more than there is."""
    settings, labels, queries = trainer.settings, trainer.data.num_labels, len(trainer.data.train)
    asked = {"evaluate.depth": (settings.evaluate.depth, labels, "labels")}
    if trainer.config.choice("miner") != "none":
        asked["pool.eta"] = settings.pool.eta, labels, "labels"
    if part := trainer.config.parts.get("search"):
        asked["search.neighbours"] = part.options.get("neighbours", 0), queries, "training queries"
    for key, (wanted, most, what) in asked.items():
        if wanted > most and key in trainer.config.sources:
            yield f"{key}={wanted}: there are only {most} {what}; no more are used"


def _refresh(trainer: Trainer) -> Iterator[str]:
    """Clusters or negatives that no epoch will use."""
    settings = trainer.settings
    if trainer.needs_views and not trainer.refreshes.before:
        names = ["refresh_steps" if settings.refresh_steps else "refresh_every", "refresh_from"]
        asked = [f"{name}={value}" for name in names if (value := getattr(settings, name))]
        yield (
            f"no refresh falls into this run ({', '.join([f'epochs={settings.epochs}', *asked])}): "
            f"batches stay random and no negatives are mined; lower {asked[-1].partition('=')[0]}"
        )


def _widths(trainer: Trainer) -> Iterator[str]:
    """Heads that start as the identity, but cut numbers off or pad them."""
    width = trainer.model.encoder.width
    for name in trainer.model.head_names:
        head = trainer.model.head(name)
        dim = getattr(head, "dim", width)
        if getattr(head, "init", "") == "identity" and dim != width:
            what = f"keeps {dim} of the encoder's {width} numbers" if dim < width else f"pads {width} numbers to {dim}"
            yield f"head.{name}.init=identity {what}; set head.{name}.dim={width}, or another init"


def _bias(trainer: Trainer) -> Iterator[str]:
    """Binary losses that start from even odds for every label."""
    for name, objective in trainer.objectives.items():
        if getattr(trainer.model.head(name), "bias", "") == "none" and all(term.binary for term in objective.terms):
            yield f"loss.{name} is binary, and without a bias all labels start at even odds; set head.{name}.bias=label"


def _rows(trainer: Trainer) -> Iterator[str]:
    """Random rows of a table that a run is too short to move by their own length."""
    for name in trainer.model.head_names:
        head = trainer.model.head(name)
        table = head.label_rows
        if head.starts_from_texts or not isinstance(table, RowTable) or table.optimizer != "adamw":
            continue
        reach = trainer.steps * table.lr / 2  # the schedule halves the rate on average
        if reach < 1 / math.sqrt(table.weight.shape[1]):
            yield (
                f"head.{name}: {trainer.steps} steps at a rate of {table.lr:g} hardly move random label rows; "
                f"start them from texts (head.{name}.rows=texts+queries), raise head.{name}.table_lr or train longer"
            )


def _decay(trainer: Trainer) -> Iterator[str]:
    """Names of parameters that are exempt from decay, where there are none."""
    exempt, names = trainer.settings.optim.no_decay, [name for name, _ in trainer.model.named_parameters()]
    if exempt and not any(part in name for part in exempt for name in names):
        known = ", ".join(names[:FEW]) + (", ..." if len(names) > FEW else "")
        yield f"optim.no_decay={','.join(exempt)}: no parameter has such a name; there are {known}"


STILL = 0.005  # relative change of a term that has not moved
Scores = Mapping[str, Mapping[str, float]]  # row -> metric -> percent


def closing_advice(
    records: Iterable[Mapping[str, Any]],
    metrics: Scores,
    baselines: Scores,
    measured: str = "",
    validation: Mapping[str, Any] | None = None,
    steps: int = ENOUGH_STEPS,
) -> list[str]:
    """Notes on a run that has ended: terms that have not moved, baselines that win, a search that is better.

    Args:
        records: those of all steps, as trackers get them.
        measured: what the metrics are of: `300 test queries`.
        validation: what the result says about the epoch that was kept.
        steps: of the whole run.
    """
    below = _below(metrics, baselines, measured, validation, steps)
    return [*_still(records), *below, *_better_search(validation)]


def _still(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Terms whose mean of the last epoch is that of the first."""
    sums: dict[int, Counter[str]] = {}
    steps: Counter[int] = Counter()
    for record in records:
        if record["event"] == "step" and record["terms"]:
            steps[record["epoch"]] += 1
            sums.setdefault(record["epoch"], Counter()).update(record["terms"])
    if len(sums) < 2:
        return
    first, last = min(sums), max(sums)
    for name, total in sums[first].items():
        before, after = total / steps[first], sums[last][name] / steps[last]
        if abs(after - before) <= STILL * abs(before):
            head, _, term = name.partition("/")
            means = f"{before:.4g} in the first epoch, {after:.4g} in the last"
            yield f"loss.{head}: {term} has not moved ({means}); raise its weight or a learning rate, or leave it out"


def _below(
    metrics: Scores, baselines: Scores, measured: str, validation: Mapping[str, Any] | None, steps: int
) -> Iterator[str]:
    """Whether the run, or one of its heads, finds less than a method without training."""
    known, found = ({name: row["P@1"] for name, row in rows.items() if "P@1" in row} for rows in (baselines, metrics))
    if not known or not found:
        return
    best, own = (max(values, key=lambda name: values[name]) for values in (known, found))
    hint = "train longer or with a higher learning rate, or check the data"
    if steps < ENOUGH_STEPS:
        hint = f"{steps} steps are few: lower sampler.batch_size or train longer, or check the data"
    elif validation and validation["epoch"] < validation["last"]:
        kept = f"epoch {validation['epoch']} of {validation['last']} was the best, so training longer does not help"
        hint = f"{kept}; try another recipe or a lower learning rate, or check the data"
    if found[own] < known[best]:
        where = f" on {measured}" if measured else ""
        yield (
            f"{best}, which is not trained, beats this run{where}: its P@1 is {known[best]:.2f}, "
            f"that of the best search, {own}, is {found[own]:.2f}; {hint}"
        )
        return
    for name in HEADS:
        if found.get(name, known[best]) < known[best]:
            yield (
                f"{name}: P@1 {found[name]:.2f} is below that of {best} ({known[best]:.2f}), which is not trained; "
                f"{own} has {found[own]:.2f}"
            )


def _better_search(validation: Mapping[str, Any] | None) -> Iterator[str]:
    """A search that ranks the validation queries better than the last one, by more than a standard error."""
    if not validation or not validation["queries"]:
        return
    metric, rows = validation["metric"], validation["metrics"]
    values = {name: row[metric] for name, row in rows.items()}
    last, best = list(values)[-1], max(values, key=lambda name: values[name])
    share = values[best] / 100
    if values[best] - values[last] > 100 * math.sqrt(share * max(1 - share, 0) / validation["queries"]):
        yield (
            f"on the validation queries, {best} has {metric} {values[best]:.2f} and {last}, which predicts by default, "
            f"{values[last]:.2f}: predict with --head {best}"
        )
