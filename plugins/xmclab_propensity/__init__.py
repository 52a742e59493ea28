"""Binary cross-entropy for labels that are missing: `loss.clf=pw_bce`, `loss.clf=unbiased_bce`."""

from xmclab.host.hookspecs import PartRef, hookimpl, part


@hookimpl
def xmclab_parts() -> list[PartRef]:
    return [
        part("loss", "pw_bce", "xmclab_propensity.loss:PropensityWeightedBCE"),
        part("loss", "unbiased_bce", "xmclab_propensity.loss:UnbiasedBCE"),
    ]
