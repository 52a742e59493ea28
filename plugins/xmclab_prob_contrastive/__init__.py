"""The probabilistic contrastive loss: `loss.de=prob_contrastive`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "prob_contrastive", "xmclab_prob_contrastive.loss:ProbContrastive")]
