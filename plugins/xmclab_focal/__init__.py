"""The losses that play easy cells down: `loss.clf=focal`, `loss.clf=asl`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("loss", "focal", "xmclab_focal.loss:Focal"),
        part("loss", "asl", "xmclab_focal.loss:Asymmetric"),
    ]
