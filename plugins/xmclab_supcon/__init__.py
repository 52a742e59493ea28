"""The softmax losses whose denominator holds every candidate: `loss.de=supcon`, `loss.de=softmax`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("loss", "supcon", "xmclab_supcon.loss:SupCon"),
        part("loss", "softmax", "xmclab_supcon.loss:Softmax"),
    ]
