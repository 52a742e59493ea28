"""What can be configured: the settings of a run, and the slots that parts go into."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from xmclab.options import option


@dataclass(frozen=True)
class DataSettings:
    """`data=NAME_OR_FOLDER`; reader options say how its files are read: `data.query_text=content`."""

    source: str = option("debian", "an embedded set (debian, tiny), a folder or a table; set as `data=...`")
    same_text: Literal["auto", "filter", "keep"] = option(
        "auto", "pairs of a query and a label of the same text that are not true; auto: filter them in tables"
    )
    merge_same_text: bool = option(False, "labels of the same text are never each other's negatives")
    cache: str = option("auto", "folder for cached tokens, or off; auto: large sets only, in the user's cache folder")
    verify: bool = option(False, "verify the sha256 of cached tokens before use (sizes are always checked)")


@dataclass(frozen=True)
class PoolSettings:
    """The label pool of a batch: `pool.beta=3`."""

    beta: int = option(3, "positives sampled per query", ge=1)
    eta: int = option(6, "mined negatives drawn per query", ge=0)
    cap: int = option(0, "maximum number of labels in a pool; 0: no limit", ge=0)
    replacement: bool = option(False, "sample positives with replacement, so that a query may bring fewer than beta")
    gap: int = option(
        0, "add mined negatives, then further positives, if the cap leaves room for more labels than this", ge=0
    )


@dataclass(frozen=True)
class ObjectiveSettings:
    """How the heads and directions are mixed: `objective.de_share=0.5`."""

    de_share: float = option(0.5, "weight of the DE head's loss; the CLF head gets the rest (lambda)", ge=0, le=1)
    de_q2l_share: float = option(
        0.5, "DE head: weight of query-to-label; label-to-query gets the rest (lambda_D)", ge=0, le=1
    )
    clf_q2l_share: float = option(0.5, "the same for the CLF head (lambda_C)", ge=0, le=1)
    label_weights: Literal["none", "propensity"] = option(
        "none", "weight of each label's terms: 1, or its inverse propensity"
    )


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer: `optim.schedule=linear`. Learning rates belong to the parts: `encoder.lr`, `head.de.lr`, ..."""

    decay: float = option(0.01, "weight decay (decoupled)", ge=0)
    schedule: Literal["cosine", "linear", "constant"] = option("cosine", "learning-rate schedule after warm-up")
    warmup: float = option(0.1, "warm-up: a fraction of all steps if below 1, else a number of epochs", ge=0)
    clip: float = option(1.0, "maximum gradient norm; 0: no clipping", ge=0)
    clip_tables: Literal["exact", "previous"] = option(
        "exact",
        "tables trained on all labels are clipped by the norm of the gradient, which takes a pass more, "
        "or by that of the step before",
    )
    no_decay: tuple[str, ...] = option((), "no decay of parameters with any of these in their names: LayerNorm.weight")
    table_schedule: Literal["same", "cosine", "linear", "constant"] = option(
        "same", "learning-rate schedule of the heads' tables; same: optim.schedule"
    )
    table_warmup: float | None = option(None, "warm-up of the heads' tables; none: optim.warmup", ge=0)


@dataclass(frozen=True)
class EncodeSettings:
    """How texts are encoded: `encode.chunk=256`."""

    chunk: int | Literal["auto"] = option(
        0, "texts encoded at once in training (gradients stay exact); 0: all; auto: as many as memory holds", ge=0
    )
    search_chunk: int = option(1024, "texts encoded at once outside training", ge=1)


def cutoffs(ks: tuple[int, ...]) -> tuple[int, ...]:
    """The cut-offs of metrics, ascending.

    Raises:
        ValueError: there are none, one is below 1 or listed twice.
    """
    if not ks or min(ks) < 1 or len(set(ks)) < len(ks):
        raise ValueError("is not a list of different numbers >= 1, such as 1,3,5,10")
    return tuple(sorted(ks))


def is_propensity(numbers: Any) -> Any:
    """Refuse what are not two values."""
    if numbers is not None and (not isinstance(numbers, list | tuple) or len(numbers) != 2):
        raise ValueError(NOT_A_B)
    return numbers


def in_bounds(numbers: tuple[float, float] | None) -> tuple[float, float] | None:
    """The same, with A >= 0 and B > 0."""
    if numbers is not None and (numbers[0] < 0 or numbers[1] <= 0):
        raise ValueError(NOT_A_B)
    return numbers


NOT_A_B = "is not A,B with A >= 0 and B > 0, such as 0.55,1.5"
Cutoffs = Annotated[tuple[int, ...], AfterValidator(cutoffs)]
AB = Annotated[tuple[float, float] | None, BeforeValidator(is_propensity), AfterValidator(in_bounds)]


@dataclass(frozen=True)
class EvaluateSettings:
    """What is measured: `evaluate.k=1,3,5,10`."""

    every: int = option(0, "evaluate every n epochs; 0, or with validation: at the end only", ge=0)
    depth: int = option(100, "labels ranked per query", ge=1)
    k: Cutoffs = option((1, 3, 5), "cut-offs of P, PSP, nDCG and PSnDCG, such as 1,3,5,10")
    recall_k: Cutoffs = option((10, 100), "cut-offs of R and PSR")
    propensity: AB = option(
        None, "A,B of the propensity model, for metrics and training; none: as usual for data sets of this name"
    )
    test: bool = option(True, "rank the test queries; false: validate only, so that nothing is chosen by them")

    def too_deep(self) -> dict[str, int]:
        """The deepest cut-off of each list (other than the default) that needs more labels than are ranked."""
        plain = EvaluateSettings()
        lists = {"evaluate.k": (self.k, plain.k), "evaluate.recall_k": (self.recall_k, plain.recall_k)}
        return {key: ks[-1] for key, (ks, usual) in lists.items() if ks != usual and ks[-1] > self.depth}


@dataclass(frozen=True)
class ValidateSettings:
    """Queries that choose the epoch whose weights are kept: `validate.share=0.1`."""

    share: float | None = option(
        None, "share of the training queries set aside, by their text; none: 0.1 for a single table, else 0", ge=0, lt=1
    )
    file: str = option("", "a file or folder of validation queries, in the layout of the data")
    every: int = option(1, "validate every n epochs, and after the last", ge=1)
    metric: str = option("P@1", "metric to choose by: any of the results")
    search: str = option("", "search to choose by; empty: the last one")

    @property
    def on(self) -> bool:
        """Whether it was asked for; otherwise it depends on the data."""
        return bool(self.share or self.file)


@dataclass(frozen=True)
class StopSettings:
    """When training ends before its last epoch: `stop.patience=3`."""

    patience: int | None = option(
        None, "stop after n validations that were no better; 0: never; none: 5 if nobody asked for validation", ge=0
    )


def rhythm(text: str) -> tuple[int, float]:
    """(steps, seconds) of `checkpoint.every`; one of them, or neither, is above 0.

    Raises:
        ValueError: if it is not such a text.
    """
    found = re.fullmatch(r"(\d+)([smh]?)", text)
    if not found:
        raise ValueError("is not a time, a number of steps or 0")
    number, unit = int(found[1]), found[2]
    return (0, float(number * UNITS[unit])) if unit else (number, 0.0)


UNITS = {"s": 1, "m": 60, "h": 3600}
Rhythm = Annotated[str, AfterValidator(lambda text: (rhythm(text), text)[1])]


@dataclass(frozen=True)
class CheckpointSettings:
    """What is kept of an unfinished run: `checkpoint.every=500`."""

    every: Rhythm = option(
        "10m", "a time (10m, 90s, 1h), which also means the ends of epochs, or a number of steps (500); 0: off"
    )
    keep: int = option(2, "checkpoints kept; older ones are deleted", ge=1)


@dataclass(frozen=True)
class ResumeSettings:
    """How a run is continued: `resume.allow=optim.clip,epochs`."""

    allow: tuple[str, ...] = option((), "keys that may differ from the run that is resumed")


Place = Literal["encoder", "head.de", "head.clf"]  # what can be frozen, or taken from another run


@dataclass(frozen=True)
class StartSettings:
    """Weights to start from, instead of new ones: `start=runs/earlier start.parts=encoder`."""

    run: str = option("", "a run folder, an export or an earlier stage; set as `start=...`")
    parts: tuple[Place, ...] = option((), "what is taken from it; empty: the encoder, and the heads that both have")


@dataclass(frozen=True)
class Settings:
    """Everything in a config that is not a part."""

    seed: int = option(0, "random seed", ge=0)
    epochs: int = option(10, "passes over the training queries", ge=1)
    refresh_every: int = option(5, "epochs between refreshes of clusters and mined negatives (tau)", ge=1)
    refresh_steps: int = option(0, "steps between refreshes, instead of refresh_every epochs; 0: in epochs", ge=0)
    refresh_from: int = option(
        0, "epoch (from 0) that the first refresh comes before; 0: after refresh_every epochs or refresh_steps", ge=0
    )
    device: str = option("auto", "auto (cuda if available, else cpu), cpu, cuda, cuda:1, ...")
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "precision of matrix products; auto: bfloat16 on GPUs that have it (capability 8.0), else float32"
    )
    tf32: bool = option(True, "on a GPU, multiply what stays in float32 by TF32, which rounds to 10 bits")
    compile: bool = option(False, "compile the encoder and the score passes with torch.compile")
    deterministic: bool | Literal["auto"] = option(
        "auto", "use torch's deterministic algorithms for reproducible numbers; auto: on a CPU"
    )
    profile: bool = option(False, "report where the time went at the end of the run")
    keep_model: bool = option(True, "save the trained weights in the run folder")
    freeze: tuple[Place, ...] = option(
        (), "parts that keep their weights: encoder (each text is then encoded once), head.de, head.clf"
    )
    data: DataSettings = field(default_factory=DataSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    encode: EncodeSettings = field(default_factory=EncodeSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    validate: ValidateSettings = field(default_factory=ValidateSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    resume: ResumeSettings = field(default_factory=ResumeSettings)
    start: StartSettings = field(default_factory=StartSettings)


DEFAULT_RECIPE = "unidec"  # of runs that name none
NONE = "none"  # in an optional slot: no part
AUTO = "auto"  # the part is chosen later, from the data; its options are checked then
ALL = "all"  # every installed part of the kind, but those that train


@dataclass(frozen=True)
class Slot:
    """A place for one part: `sampler=cluster`, its options as `sampler.batch_size=512`."""

    kind: str
    default: str  # a name; ALL is valid only in slots that default to it
    settled_later: bool = False  # AUTO leaves the slot open until the data is known
    optional: bool = False  # takes `none`
    several: bool = False  # takes `a+b`; an option goes to each that has it, or to `a` alone as `slot.a.option`
    handed: str = ""  # slot whose part it gets, as the attribute of that name
    keeps: tuple[str, ...] = ()  # options that all parts of the kind have; kept when another part is chosen


HEADS = ("de", "clf")

SLOTS: dict[str, Slot] = {
    "reader": Slot("reader", AUTO, settled_later=True, keeps=("text", "query_text", "label_text")),
    "transform": Slot("transform", NONE, optional=True, several=True),
    "encoder": Slot("encoder", "bag"),
    "head.de": Slot("head", "dual_encoder", optional=True),
    "head.clf": Slot("head", "classifier", optional=True),
    "reduction.de": Slot("reduction", "psl"),
    "reduction.clf": Slot("reduction", "psl"),
    "sampler": Slot("sampler", "random"),
    "miner": Slot("miner", "none", handed="index"),
    "index": Slot("index", "auto"),
    "search": Slot("search", "heads", handed="index"),
    "tracker": Slot("tracker", NONE, optional=True, several=True),
    "baseline": Slot("baseline", ALL, optional=True, several=True),
    "kernels": Slot("kernels", NONE, optional=True),
}

# Loss expressions: `loss.clf=ds+bce`, with the options of a term as `loss.clf.bce.weight=0.3`.
EXPRESSIONS: dict[str, str] = {"loss.de": "ds", "loss.clf": "ds+bce"}

# Settings and options that are set by a shorter key.
SHORT = {
    "data": "data.source",
    "data.query_text": "reader.query_text",
    "data.label_text": "reader.label_text",
    "start": "start.run",
}

# Keys of earlier versions, and what replaced them.
RENAMED = {"miner.index": "index", "miner.faiss_type": "index.type"}

# Options of earlier versions that only the command line decides now: what they may still be, and what to pass instead.
GONE = {"encoder.trust_remote_code": ("false", "pass --trust-remote-code if you trust the author of the model")}

# Shorthands that set both heads: `reduction=psl` means `reduction.de=psl reduction.clf=psl`.
SHORTHANDS: dict[str, tuple[str, ...]] = {
    "reduction": ("reduction.de", "reduction.clf"),
    "loss": ("loss.de", "loss.clf"),
}
