"""The decoupled softmax loss: `loss.de=ds`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "ds", "xmclab_ds.loss:DecoupledSoftmax")]
