"""The triplet loss with online hard negatives: `loss.de=triplet`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "triplet", "xmclab_triplet.loss:Triplet")]
