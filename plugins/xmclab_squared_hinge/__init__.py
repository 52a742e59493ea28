"""The squared hinge loss: `loss.clf=squared_hinge`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("loss", "squared_hinge", "xmclab_squared_hinge.loss:SquaredHinge")]
