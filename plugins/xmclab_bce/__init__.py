"""The binary cross-entropy loss: `loss.clf=ds+bce`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "bce", "xmclab_bce.loss:BinaryCrossEntropy")]
