"""The laws of every kind of part: as verdicts on a part by its name, and as tests for pytest."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmclab.errors import ConfigError, PluginError
from xmclab.host import KINDS, Registry, read_options
from xmclab_kit.core import Examination, Law, Subject, Verdict, Violation, is_unavailable
from xmclab_kit.structure import structural_laws

MODULES = {
    "loss": "losses",
    "reduction": "reductions",
    "sampler": "samplers",
    "miner": "miners",
    "encoder": "encoders",
    "head": "heads",
    "search": "searches",
    "transform": "transforms",
}

Test = Callable[..., None]


def laws_of(kind: str) -> Sequence[Law]:
    """The laws of a kind of part, in the order in which they are checked."""
    assert kind in KINDS
    if kind not in MODULES:
        return structural_laws()
    laws: Sequence[Law] = importlib.import_module(f"xmclab_kit.{MODULES[kind]}").LAWS
    return laws


def examine(registry: Registry, kind: str, name: str, options: Mapping[str, Any] | None = None) -> list[Verdict]:
    """The verdict of every law on a part, found by its name.

    Raises:
        ConfigError: there is no such part, or it has no such options.
        XmclabError: the part needs something that is not available, such as a model's files or a package.
    """
    laws = laws_of(kind)
    try:
        cls = registry.get(kind, name)
    except PluginError as error:
        if is_unavailable(error):
            raise
        # It is not a valid class, which is what the first law reports.
        verdicts = [Verdict(laws[0], "broken", Violation(laws[0], str(error), ""))]
        return verdicts + [Verdict(law, "not checked", because=(laws[0].name,)) for law in laws[1:]]
    if problems := read_options(cls, options or {}, lambda option: f"{kind}:{name}.{option}")[1]:
        raise ConfigError(*problems)
    return Examination(Subject(kind, name, cls, options or {}), laws).verdicts()


def _contract(kind: str, cls: type[Any], options: dict[str, Any]) -> Test:
    import pytest

    laws = laws_of(kind)
    examination = Examination(Subject(kind, cls.__name__, cls, options), laws)

    @pytest.mark.parametrize("law", laws, ids=[law.name for law in laws])
    def test_contract(law: Law) -> None:
        verdict = examination.verdict(law)
        if verdict.violation:
            pytest.fail(f"{cls.__name__} breaks a law\n{verdict.violation}", pytrace=False)
        if verdict.state == "not kept":
            pytest.xfail(f"exempt (declared by the part): {verdict.why}")
        if verdict.state == "not checked":
            pytest.skip(f"depends on broken laws: {', '.join(verdict.because)}")

    return test_contract


def loss_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a loss, made with these options."""
    return _contract("loss", cls, options)


def reduction_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a reduction, made with these options."""
    return _contract("reduction", cls, options)


def sampler_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a sampler, made with these options."""
    return _contract("sampler", cls, options)


def miner_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a miner, made with these options."""
    return _contract("miner", cls, options)


def encoder_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of an encoder, made with these options."""
    return _contract("encoder", cls, options)


def head_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a head, made with these options."""
    return _contract("head", cls, options)


def search_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a search, made with these options."""
    return _contract("search", cls, options)


def transform_contract(cls: type[Any], **options: Any) -> Test:
    """A pytest test of the laws of a transform, made with these options."""
    return _contract("transform", cls, options)
