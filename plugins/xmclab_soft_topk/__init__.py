"""The soft top-k loss: `loss.de=soft_topk`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "soft_topk", "xmclab_soft_topk.loss:SoftTopK")]
