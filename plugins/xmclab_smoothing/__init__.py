"""Label smoothing: `loss.clf=smooth_bce`, `loss.de=smooth_softmax`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("loss", "smooth_bce", "xmclab_smoothing.loss:SmoothBCE"),
        part("loss", "smooth_softmax", "xmclab_smoothing.loss:SmoothSoftmax"),
    ]
