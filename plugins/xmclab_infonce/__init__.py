"""InfoNCE with an additive margin: `loss.de=infonce`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "infonce", "xmclab_infonce.loss:InfoNCE")]
