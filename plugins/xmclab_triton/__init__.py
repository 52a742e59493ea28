"""Fused passes over scores against all labels, in Triton: `kernels=triton`.

Not measured on a GPU; off unless a run asks for it.
"""

from xmclab import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [part("kernels", "triton", "xmclab_triton.fused:Triton")]
