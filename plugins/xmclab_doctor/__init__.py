"""Whether an installation is sound: what is found, what is missing and what that costs (`xmclab doctor`)."""

from __future__ import annotations

import xmclab


@xmclab.hookimpl
def xmclab_commands() -> list[xmclab.CommandRef]:
    help = "Check this machine and installation; --bench measures them."
    return [xmclab.command("doctor", "xmclab_doctor.cli:doctor", help=help)]
