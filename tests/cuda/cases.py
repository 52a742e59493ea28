"""What is trained for a step on the fake device: overrides of a small config, by name."""

from __future__ import annotations

from pathlib import Path

from xmclab.api import BinaryLoss
from xmclab.host.registry import Registry, default_registry

FAULTY = Path(__file__).with_name("faulty.py")
BASE = ("data=tiny", "device=cuda", "epochs=2", "baseline=none")
SMALL = ("encoder=bag", "sampler.batch_size=48")
FAMILIES = ("distilbert", "modernbert", "roberta", "bert")  # of networks, which the worker makes
ALL_LABELS = ("reduction.clf=ova", "loss.clf=bce", "head.de=none")
ALL_LABELS_SOFTMAX = ("reduction.clf=pal_n", "loss.clf=ds", "head.de=none")
HUGGING = ("encoder=hf", "encoder.model=bert", "encoder.max_length=8")

# Words in capitals: filter pairs in the data, a refresh before the step, a card without bfloat16.
PARTS: dict[str, tuple[str, ...]] = {
    "both heads": (),
    "one direction": ("objective.de_q2l_share=1", "objective.clf_q2l_share=0"),
    "two losses in a head": ("loss.de=0.7*ds+0.3*bce", "loss.clf=infonce+softmax+asl"),
    "clipped": ("optim.clip=1",),
    "label bias": ("head.de.bias=label", "head.clf.bias=label"),
    "mean bias": ("head.de.bias=mean", "head.clf.bias=mean"),
    "rows of texts and queries": ("head.clf.rows=texts+queries",),
    "bfloat16 table": ("head.clf.table_dtype=bfloat16", "optim.clip=1"),
    "adagrad": ("head.clf.table=adagrad", "encoder.table=adagrad"),
    "sgd": ("head.clf.table=sgd", "encoder.table=sgd"),
    "momentum": ("head.clf.table=momentum", "encoder.table=momentum"),
    "dense_adamw": ("head.clf.table=dense_adamw",),
    "adagrad in bfloat16": ("head.clf.table=adagrad", "head.clf.table_dtype=bfloat16"),
    "bag with dropout and a layer": ("encoder.feature_dropout=0.2", "encoder.hidden=8"),
    "separate bags": ("encoder.towers=separate",),
    "residual bags": ("encoder.towers=residual",),
    "chunked": ("encode.chunk=16",),
    "filter pairs": ("FILTER",),
    "filter pairs of all labels": ("FILTER", *ALL_LABELS),
    "label weights": ("pool.eta=2", "miner=random", "objective.label_weights=propensity"),
    "frozen encoder": ("freeze=encoder",),
    "float32": ("precision=float32",),
    "all labels, binary": ALL_LABELS,
    "all labels, binary, clipped": (*ALL_LABELS, "optim.clip=1"),
    "all labels, softmax": ALL_LABELS_SOFTMAX,
    "all labels, softmax, clipped": (*ALL_LABELS_SOFTMAX, "optim.clip=1"),
    "all labels, bfloat16 table": (*ALL_LABELS, "head.clf.table_dtype=bfloat16", "head.clf.table=sgd"),
    "all labels, both heads": ALL_LABELS[:2],
    "bert": HUGGING,
    "bert, chunked and clipped": (*HUGGING, "encode.chunk=16", "optim.clip=1"),
    "bert, float32": (*HUGGING, "precision=float32"),
    "bert, padded": (*HUGGING, "encoder.packing=off"),
    "bert, first token, two towers": (*HUGGING, "encoder.pooling=cls", "encoder.towers=separate"),
    "bert, all labels": (*HUGGING, *ALL_LABELS),
    "bert, frozen": (*HUGGING, "freeze=encoder"),
    "bert on a V100": (*HUGGING, "V100", "optim.clip=1"),
    "all labels on a V100": ("V100", *ALL_LABELS),
    "distilbert": (*HUGGING, "encoder.model=distilbert"),
    "roberta": (*HUGGING, "encoder.model=roberta"),
    "modernbert": (*HUGGING, "encoder.model=modernbert"),
    "mined negatives": ("pool.eta=3", "miner=ann", "refresh_every=1", "REFRESH"),
    "clusters": ("sampler=cluster", "sampler.batch_size=48", "refresh_every=1", "REFRESH"),
}
NOT_FOLLOWED = {  # losses for which shapes, or a check of theirs, depend on numbers that the device does not have
    f"pml.{name}"
    for name in (
        "CircleLoss",
        "GeneralizedLiftedStructureLoss",
        "LiftedStructureLoss",
        "MultiSimilarityLoss",
        "NTXentLoss",
        "SupConLoss",
        "TupletMarginLoss",
    )
}


def cases(registry: Registry | None = None) -> dict[str, tuple[str, ...]]:
    """Every part above, every loss and reduction, and every recipe."""
    registry = registry or default_registry()
    found = {f"part: {name}": (*BASE, *SMALL, *overrides) for name, overrides in PARTS.items()}
    for name in sorted({*registry.names("loss")} - NOT_FOLLOWED):
        binary = issubclass(registry.get("loss", name), BinaryLoss)
        reductions = ("reduction=ova_n",) if binary else ()
        found[f"loss: {name}"] = (*BASE, *SMALL, f"loss.de={name}", f"loss.clf={name}", *reductions)
    for name in registry.names("reduction"):
        accepts = registry.get("reduction", name).accepts
        loss = "bce" if accepts == "binary" else "ds"
        found[f"reduction: {name}"] = (*BASE, *SMALL, f"reduction={name}", f"loss.de={loss}", f"loss.clf={loss}")
    for name in registry.names("recipe"):
        found[f"recipe: {name}"] = (f"recipe={name}", *BASE)
    for name in ("mixed", "waiting"):
        found[f"faulty: {name}"] = (*BASE, *SMALL, f"plugin={FAULTY}", f"loss.clf={name}")
    return found
