"""Options come from the signatures of pytorch-metric-learning; what cannot be used is refused with the reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from pytorch_metric_learning import losses, miners

import xmclab
import xmclab_pml
from xmclab.errors import ConfigError, PluginError
from xmclab.host.registry import default_registry, load_registry
from xmclab_pml.pairs import MINERS

Call = Callable[..., tuple[int, str, str]]
BASES = {
    "BaseLossWrapper",
    "BaseMetricLossFunction",
    "EmbeddingRegularizerMixin",
    "GenericPairLoss",
    "WeightRegularizerMixin",
}


def test_every_loss_of_the_library_works_or_is_refused_with_a_reason() -> None:
    theirs = {name for name, value in vars(losses).items() if isinstance(value, type)} - BASES
    assert set(xmclab_pml.LOSSES) | set(xmclab_pml.REFUSED) == theirs
    assert not set(xmclab_pml.LOSSES) & set(xmclab_pml.REFUSED)


def test_every_miner_of_the_library_works_or_needs_more_than_scores() -> None:
    theirs = {name for name, value in vars(miners).items() if isinstance(value, type)}
    of_vectors = {"AngularMiner", "DistanceWeightedMiner", "EmbeddingsAlreadyPackagedAsTriplets"}
    assert theirs - set(MINERS) - {"BaseMiner"} == of_vectors


@pytest.mark.parametrize("name", xmclab_pml.REFUSED)
def test_a_loss_that_cannot_take_pairs_says_why(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        default_registry().get("loss", f"pml.{name}")
    assert str(caught.value) == f"loss 'pml.{name}' cannot be used: {xmclab_pml.REFUSED[name]}"
    assert f"pml.{name}" not in default_registry().names("loss")


def test_the_command_line_says_why_too(call: Call) -> None:
    code, _, said = call("run", "recipe=unidec", "data=tiny", "loss.de=pml.ArcFaceLoss")
    assert code == 2
    assert "loss 'pml.ArcFaceLoss' cannot be used: it learns its own class vectors" in said


def test_options_have_the_types_and_defaults_of_the_signature() -> None:
    described = {part.name: part for part in default_registry().describe("loss")}
    shown = {o.name: (o.type, o.default) for o in described["pml.TripletMarginLoss"].options}
    assert shown == {
        "temperature": ("float", 1.0),
        "miner": ("str or none", None),
        "memory_limit": ("float", 2.0),
        "margin": ("float", 0.05),
        "swap": ("False", False),
        "smooth_loss": ("bool", False),
        "triplets_per_anchor": ("int or all", "all"),
        "distance": ("cosine|euclidean|squared_euclidean", "euclidean"),
    }
    assert {o.name: o.default for o in described["pml.SupConLoss"].options}["temperature"] == 0.1
    assert described["pml.SupConLoss"].summary == "SupConLoss of pytorch-metric-learning."
    assert all(described[f"pml.{name}"].problem == "" for name in xmclab_pml.LOSSES)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pml.SupConLos", "unknown loss 'pml.SupConLos' (did you mean 'pml.SupConLoss'?)"),
        ("pml.SupConLoss(temprature=0.1)", "unknown option 'temprature' (did you mean 'temperature'?)"),
        ("pml.SupConLoss(temperature=0)", "0 should be greater than 0"),
        ("pml.CircleLoss(gamma='big')", "'big' should be a valid number"),
        ("pml.CircleLoss(distance='euclidean')", "unknown option 'distance'"),
        ("pml.TripletMarginLoss(swap=True)", "True should be False (only False: True needs scores between labels"),
        ("pml.TripletMarginLoss(triplets_per_anchor=0)", "triplets_per_anchor=0 is less than 1"),
        ("pml.MarginLoss(learn_beta=True)", "only False: a loss here has no parameters"),
        ("pml.MarginLoss(num_classes=10)", "only none: a loss here has no parameters"),
        ("pml.HistogramLoss(n_bins=10,delta=0.5)", "delta and n_bins must satisfy"),
        ("pml.SupConLoss(miner='MultiSimilarityMine')", "unknown miner 'MultiSimilarityMine': did you mean 'MultiSim"),
        ("pml.SupConLoss(miner='AngularMiner')", "unknown miner 'AngularMiner'"),
        ("pml.SupConLoss(miner='HDCMiner(percentage=1)')", "unknown option 'percentage' (did you mean 'filter_perc"),
        ("pml.SupConLoss(miner='HDCMiner+BatchHardMiner')", "'HDCMiner+BatchHardMiner' is not a single miner"),
        ("pml.SupConLoss(miner='TripletMarginMiner(type_of_triplets=\"medium\")')", "'medium' should be 'all', 'hard'"),
        ('pml.SupConLoss(miner=\'BatchEasyHardMiner(neg_strategy="all",pos_strategy="semihard")\')', "semihard"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(expression: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        xmclab.objective(expression)
    assert message in str(caught.value)


def test_a_range_is_two_numbers() -> None:
    xmclab.objective('pml.SupConLoss(miner=\'BatchEasyHardMiner(allowed_neg_range="-1,0.9",distance="cosine")\')')


def test_names_import_nothing_heavy() -> None:
    code = (
        "import sys, xmclab_pml; from xmclab.host.registry import default_registry as r;"
        "assert 'torch' not in sys.modules;"
        "assert 'pml.SupConLoss' in r().names('loss'); r().get('loss', 'ds');"
        "assert 'pytorch_metric_learning' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_library_the_names_say_what_to_install(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    for module in [name for name in sys.modules if name.startswith(("pytorch_metric_learning", "xmclab_pml."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    registry = load_registry({})
    with pytest.raises(PluginError, match=r"pytorch-metric-learning is not installed \(pip install 'xmclab\[pml\]'\)"):
        registry.get("loss", "pml.SupConLoss")
    assert registry.get("loss", "ds")
    problems = {part.name: part.problem for part in registry.describe("loss") if part.problem}
    assert set(problems) == {f"pml.{name}" for name in xmclab_pml.LOSSES}
    default_registry.cache_clear()
    try:
        code, _, said = call("run", "recipe=unidec", "data=tiny", "loss.de=pml.SupConLoss")
    finally:
        default_registry.cache_clear()
    assert code == 4
    assert "pip install 'xmclab[pml]'" in said
