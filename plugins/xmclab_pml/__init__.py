"""The pair losses of pytorch-metric-learning by name: `loss.de=pml.SupConLoss(temperature=0.1)`.

That library is imported when one of its losses is used or described, never for the names alone.
"""

from xmclab import PartRef, hookimpl, part

LOSSES = (
    "CircleLoss",
    "ContrastiveLoss",
    "GeneralizedLiftedStructureLoss",
    "HistogramLoss",
    "IntraPairVarianceLoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NTXentLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
)

_CLASSES = "it learns its own class vectors; here the head has these, and a pair loss trains them"
_ONE_CLASS = "it reads positives from one class per embedding, and does not take pairs"
_VECTORS = "it needs the vectors themselves, but a loss sees only their scores"

REFUSED = {
    "AngularLoss": "it compares labels with each other, but a loss sees only query-label scores",
    "ArcFaceLoss": _CLASSES,
    "CosFaceLoss": _CLASSES,
    "CrossBatchMemory": "it keeps the vectors of earlier batches; miner=ann mines negatives from all labels",
    "DynamicSoftMarginLoss": "it keeps a histogram of earlier steps, but a loss is a function of its scores",
    "FastAPLoss": _ONE_CLASS,
    "InstanceLoss": _ONE_CLASS,
    "LargeMarginSoftmaxLoss": _CLASSES,
    "ManifoldLoss": _CLASSES,
    "MultipleLosses": "terms are added in the expression: pml.SupConLoss+0.1*pml.ContrastiveLoss",
    "NPairsLoss": _ONE_CLASS,
    "NormalizedSoftmaxLoss": _CLASSES,
    "P2SGradLoss": _CLASSES,
    "PNPLoss": _ONE_CLASS,
    "ProxyAnchorLoss": _CLASSES,
    "ProxyNCALoss": _CLASSES,
    "RankedListLoss": _ONE_CLASS,
    "SelfSupervisedLoss": "it pairs each embedding with its copy; here the data say which pairs are true",
    "SignalToNoiseRatioContrastiveLoss": _VECTORS,
    "SmoothAPLoss": _ONE_CLASS,
    "SoftTripleLoss": _CLASSES,
    "SphereFaceLoss": _CLASSES,
    "SubCenterArcFaceLoss": _CLASSES,
    "VICRegLoss": _VECTORS,
}

_BATCH = "the value of a query depends on the others of the batch"
_TRIPLETS = "it lists all triplets"

# Laws of `xmclab check` that a loss breaks by design.
LAWS_NOT_KEPT = {
    "CircleLoss": {"gradient": "it treats its weights as constants in the gradient"},
    "ContrastiveLoss": {"prior": "its scores are cosines, not log-odds"},
    "HistogramLoss": {"gradient": "it has a kink at the edge of each bin", "alone": _BATCH},
    "IntraPairVarianceLoss": {"alone": _BATCH},
    "MarginLoss": {"memory": _TRIPLETS},
    "ThresholdConsistentMarginLoss": {"alone": _BATCH},
    "TripletMarginLoss": {"memory": _TRIPLETS},
}


@hookimpl
def xmclab_parts() -> list[PartRef]:
    usable = [part("loss", f"pml.{name}", f"xmclab_pml.losses:{name}") for name in LOSSES]
    return usable + [part("loss", f"pml.{name}", unusable=reason) for name, reason in REFUSED.items()]
