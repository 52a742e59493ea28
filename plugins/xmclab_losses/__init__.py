"""The losses, a file each under the name of its config word: `loss.clf=ds+bce` adds `ds.py` and `bce.py`."""

from xmclab import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("loss", "ds", "xmclab_losses.ds:DecoupledSoftmax"),
        part("loss", "supcon", "xmclab_losses.supcon:SupCon"),
        part("loss", "softmax", "xmclab_losses.softmax:Softmax"),
        part("loss", "infonce", "xmclab_losses.infonce:InfoNCE"),
        part("loss", "smooth_softmax", "xmclab_losses.smooth_softmax:SmoothSoftmax"),
        part("loss", "soft_topk", "xmclab_losses.soft_topk:SoftTopK"),
        part("loss", "snm", "xmclab_losses.snm:StochasticNegativeMining"),
        part("loss", "triplet", "xmclab_losses.triplet:Triplet"),
        part("loss", "k_prob_contrastive", "xmclab_losses.k_prob_contrastive:KProbContrastive"),
        part("loss", "bce", "xmclab_losses.bce:BinaryCrossEntropy"),
        part("loss", "smooth_bce", "xmclab_losses.smooth_bce:SmoothBCE"),
        part("loss", "focal", "xmclab_losses.focal:Focal"),
        part("loss", "asl", "xmclab_losses.asl:Asymmetric"),
        part("loss", "squared_hinge", "xmclab_losses.squared_hinge:SquaredHinge"),
        part("loss", "prob_contrastive", "xmclab_losses.prob_contrastive:ProbContrastive"),
        part("loss", "pw_bce", "xmclab_losses.pw_bce:PropensityWeightedBCE"),
        part("loss", "unbiased_bce", "xmclab_losses.unbiased_bce:UnbiasedBCE"),
    ]
