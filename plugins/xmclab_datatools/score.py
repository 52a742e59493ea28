"""`xmclab score`: metrics for the predictions of any program, and the differences of several."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import Json, Plugin, data_keys, note, print_json, registry_with
from xmclab.errors import ConfigError, Problem

if TYPE_CHECKING:
    import scipy.sparse as sp

    from xmclab.api import Ranking
    from xmclab.data.propensity import Propensity
    from xmclab.evaluation.scoring import Evaluator
    from xmclab_datatools.named import Names

KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*=")
READ = ("data=", "preset=", "evaluate.depth=", "evaluate.k=", "evaluate.recall_k=", "evaluate.propensity=")


class Family(StrEnum):
    """Data sets that share a propensity model."""

    amazon = "amazon"
    wikipedia = "wikipedia"


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PREDICTIONS... [KEY=VALUE]...",
        help="What predict wrote, sparse text, sparse .npz, or the k best as .npy or .npz (indices, scores); then keys "
        "of the data as for `run`: data=my-set reader.labels=tags, evaluate.k=1,5.",
    ),
]


def score(
    words: Words = None,
    predictions: Annotated[
        list[Path] | None, typer.Option("--pred", metavar="FILE", help="Predictions, if their name looks like a key.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", metavar="FILE", help="Labels of the test queries: sparse text or .npz.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option("--train", metavar="FILE", help="Labels of the training queries, same formats.")
    ] = None,
    filter_: Annotated[
        Path | None, typer.Option("--filter", metavar="FILE", help="Pairs `query label` to ignore.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--data", metavar="NAME_OR_FOLDER", help="The same as data=NAME_OR_FOLDER.")
    ] = None,
    propensity: Annotated[
        str | None, typer.Option("--propensity", metavar="A,B", help="A,B of the propensity model; default: 0.55,1.5.")
    ] = None,
    cutoffs: Annotated[
        str | None, typer.Option("-k", metavar="K,K", help="Cut-offs of P, PSP, nDCG and PSnDCG; default: 1,3,5.")
    ] = None,
    family: Annotated[
        Family | None, typer.Option("--family", help="Use the published A,B: 0.6,2.6 or 0.5,0.4.")
    ] = None,
    draws: Annotated[int, typer.Option("--bootstrap", help="Draws for the 95 % intervals; 0: none.", min=0)] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.", min=0)] = 0,
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """Score predictions of any program, and compare several by a paired test: xmclab score P.jsonl Q.csv data=my-set"""
    files, overrides = _files(words or [], predictions or [], source)
    wanted = _wanted(propensity, family)
    if overrides:
        if truth or train or filter_:
            raise ConfigError(Problem("data", "cannot be combined with --truth, --train or --filter"))
        known = _labels_of_data(overrides, plugin)
    else:
        known = _labels(truth, train, filter_)
    _show(files, _with(known, wanted, cutoffs), draws, seed, as_json)


@dataclass(frozen=True)
class Known:
    """What predictions are compared with."""

    truth_NL: sp.csr_array
    train_NL: sp.csr_array
    filter_NL: sp.csr_array | None
    propensity: Propensity
    ks: tuple[int, ...]  # cut-offs of P, PSP, nDCG and PSnDCG
    recall_ks: tuple[int, ...]
    depth: int  # of rankings, at least
    name: str  # for errors
    names: Names | None = None

    def evaluator(self) -> Evaluator:
        """For the cut-offs that were asked for."""
        from xmclab.evaluation.scoring import Evaluator

        return Evaluator(self.truth_NL, self.train_NL, self.propensity, self.ks, self.recall_ks)

    def read(self, file: Path) -> Ranking:
        """The predictions of a file, as deep as the deepest cut-off."""
        from xmclab_datatools.rankings import read_ranking

        depth = max(self.depth, *self.ks, *self.recall_ks)
        ranking = read_ranking(file, self.truth_NL.shape, depth, self.filter_NL, self.name, self.names)
        if (most := ranking.ids_NK.shape[1]) < min(depth, self.truth_NL.shape[1]):
            note(f"{file}: at most {most} labels per query: metrics beyond @{most} are omitted")
        return ranking


def _files(words: list[str], predictions: list[Path], source: str | None) -> tuple[list[Path], list[str]]:
    """(files with predictions, keys of the data)."""
    keys = [word for word in words if KEY.match(word)]
    files = [*(Path(word) for word in words if word not in keys), *predictions]
    if not files:
        raise ConfigError(Problem("score", "no predictions are given", "a file, such as what `xmclab predict` wrote"))
    if twice := [str(file) for place, file in enumerate(files) if file in files[:place]]:
        raise ConfigError(Problem(twice[0], "is given twice"))
    keys = data_keys(keys, READ)
    named = [word for word in keys if word.startswith("data=")]
    if source is not None and named:
        raise ConfigError(Problem("--data", f"the data is also given by {named[0]}", "leave out one of them"))
    keys += [f"data={source}"] if source is not None else []
    if keys and not (named or source):
        raise ConfigError(Problem(keys[0], "no data set is given", "add data=NAME"))
    return files, keys


def _show(files: list[Path], known: Known, draws: int, seed: int, as_json: bool) -> None:
    """Print the scores, and the differences if there are several files."""
    from xmclab.evaluation.report import print_scores
    from xmclab.system.console import Console
    from xmclab_datatools.paired import print_tests, tested, verdict

    evaluator = known.evaluator()
    rankings = {str(file): known.read(file) for file in files}
    scores = {file: evaluator.scores(ranking, draws, seed) for file, ranking in rankings.items()}
    tests = tested(rankings, evaluator, seed) if len(files) > 1 else []
    if as_json:
        single = len(files) == 1
        found = [{} if single else {"file": file, **each.to_dict()} for file, each in scores.items()]
        several = {"predictions": found, "tests": tests, "verdict": verdict(tests)}
        print_json(next(iter(scores.values())).to_dict() if single else several)
        return
    for file, each in scores.items():
        print_scores(Console(), f"{file} ({each.rows} queries, {each.propensity}), in %", each)
    if len(files) > 1:
        print_tests(Console(), tests)


def _labels_of_data(overrides: list[str], plugin: list[str] | None) -> Known:
    """Those of a data set."""
    from xmclab.data import open_data
    from xmclab.data.propensity import propensity_of
    from xmclab.host import resolve
    from xmclab_datatools.named import Names

    config = resolve(["baseline=none", *overrides], registry_with(plugin))
    data, settings = open_data(config), config.settings.evaluate
    propensity = propensity_of(data.name, settings.propensity)
    labels = data.test.targets_NL, data.train.targets_NL, data.test.filter_NL
    cuts = settings.k, settings.recall_k, settings.depth
    return Known(*labels, propensity, *cuts, f"the test set of {data.name}", Names.of(data))


def _labels(truth: Path | None, train: Path | None, filter_: Path | None) -> Known:
    """The same from files, in which labels have no names."""
    from xmclab.data.propensity import DEFAULT_PROPENSITY
    from xmclab.host import default_registry, resolve

    if truth is None or train is None:
        raise ConfigError(Problem("score", "give --truth and --train, or data=NAME"))
    from xmclab.data.sparse import read_filter, read_matrix

    truth_NL = read_matrix(truth)
    train_NL = read_matrix(train, labels=truth_NL.shape[1], truth=str(truth))
    filter_NL = read_filter(filter_, truth_NL.shape, str(truth)) if filter_ else None
    usual = resolve(["baseline=none"], default_registry()).settings.evaluate
    cuts = usual.k, usual.recall_k, usual.depth
    return Known(truth_NL, train_NL, filter_NL, DEFAULT_PROPENSITY, *cuts, str(truth))


def _with(known: Known, propensity: Propensity | None, cutoffs: str | None) -> Known:
    """With the choices of options in place of those of keys."""
    ks = known.ks if cutoffs is None else _cutoffs(cutoffs)
    return replace(known, propensity=propensity or known.propensity, ks=ks)


def _wanted(propensity: str | None, family: Family | None) -> Propensity | None:
    """The propensities of an option; None: the usual ones."""
    from xmclab.data.propensity import FAMILIES, Propensity

    if propensity and family:
        raise ConfigError(Problem("score", "give either --propensity or --family"))
    if family:
        return Propensity(*FAMILIES[family], f"--family {family}")
    return Propensity(*_numbers(propensity), "--propensity") if propensity else None


def _numbers(text: str) -> tuple[float, float]:
    try:
        a, b = map(float, text.split(","))
        if a < 0 or b <= 0:
            raise ValueError
    except ValueError:
        raise ConfigError(
            Problem(f"--propensity {text}", "must be A,B with A >= 0 and B > 0", "such as 0.55,1.5")
        ) from None
    return a, b


def _cutoffs(text: str) -> tuple[int, ...]:
    from xmclab.host import default_registry, resolve

    try:
        ks: tuple[int, ...] = resolve(["baseline=none"], default_registry()).options()["evaluate.k"].convert(text)
    except ValueError as error:
        raise ConfigError(Problem("-k", str(error))) from None
    return ks
