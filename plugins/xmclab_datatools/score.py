"""`xmclab score`: metrics for the predictions of any program."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmclab.cli.common import DataKeys, Json, Plugin, data_keys, note, print_json, registry_with
from xmclab.errors import ConfigError, Problem

if TYPE_CHECKING:
    import scipy.sparse as sp

    from xmclab.data.propensity import Propensity


class Family(StrEnum):
    """Data sets that share a propensity model."""

    amazon = "amazon"
    wikipedia = "wikipedia"


def score(
    predictions: Annotated[
        Path,
        typer.Option(
            "--pred", metavar="FILE", help="Sparse text, sparse .npz, or the k best as .npy or .npz (indices, scores)."
        ),
    ],
    overrides: DataKeys = None,
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
        str | None,
        typer.Option("--data", metavar="NAME_OR_FOLDER", help="Data set, instead of --truth, --train and --filter."),
    ] = None,
    propensity: Annotated[
        str | None, typer.Option("--propensity", metavar="A,B", help="A,B of the propensity model; default: 0.55,1.5.")
    ] = None,
    cutoffs: Annotated[
        str, typer.Option("-k", metavar="K,K", help="Cut-offs of P, PSP, nDCG and PSnDCG, such as 1,3,5,10.")
    ] = "1,3,5",
    family: Annotated[
        Family | None, typer.Option("--family", help="Use the published A,B: 0.6,2.6 or 0.5,0.4.")
    ] = None,
    draws: Annotated[int, typer.Option("--bootstrap", help="Draws for the 95 % intervals; 0: none.", min=0)] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.", min=0)] = 0,
    as_json: Json = False,
    plugin: Plugin = None,
) -> None:
    """Score the predictions of any program: xmclab score --pred P.txt --truth tst_Y.txt --train trn_Y.txt"""
    from xmclab.evaluation.scoring import DEPTH, Evaluator
    from xmclab_datatools.rankings import read_ranking

    wanted, ks = _wanted(propensity, family), _cutoffs(cutoffs)
    depth = max(DEPTH, *ks)
    if source is None:
        truth_NL, train_NL, filter_NL, usual = _labels(truth, train, filter_, overrides)
    elif truth or train or filter_:
        raise ConfigError(Problem("--data", "cannot be combined with --truth, --train or --filter"))
    else:
        truth_NL, train_NL, filter_NL, usual = _labels_of_data(source, data_keys(overrides), plugin)
    ranking = read_ranking(predictions, truth_NL.shape, depth, filter_NL, str(truth or f"the test set of {source}"))
    if (most := ranking.ids_NK.shape[1]) < min(depth, truth_NL.shape[1]):
        note(f"{predictions}: at most {most} labels per query: metrics beyond @{most} are omitted")
    scores = Evaluator(truth_NL, train_NL, wanted or usual, ks).scores(ranking, draws, seed)
    if as_json:
        print_json(scores.to_dict())
        return
    from xmclab.evaluation.report import print_scores
    from xmclab.system.console import Console

    print_scores(Console(), f"{predictions} ({scores.rows} queries, {scores.propensity}), in %", scores)


Labels = tuple["sp.csr_array", "sp.csr_array", "sp.csr_array | None", "Propensity"]


def _labels_of_data(source: str, overrides: list[str], plugin: list[str] | None) -> Labels:
    """(truth, training labels, filter, usual propensities) of a data set."""
    from xmclab.data import open_data
    from xmclab.data.propensity import propensity_of
    from xmclab.host import resolve

    data = open_data(resolve(["baseline=none", *overrides, f"data={source}"], registry_with(plugin)))
    return data.test.targets_NL, data.train.targets_NL, data.test.filter_NL, propensity_of(data.name)


def _labels(truth: Path | None, train: Path | None, filter_: Path | None, overrides: list[str] | None) -> Labels:
    """The same from files, which take no data keys."""
    from xmclab.data.propensity import DEFAULT_PROPENSITY

    if overrides:
        raise ConfigError(Problem(overrides[0], "needs --data"))
    if truth is None or train is None:
        raise ConfigError(Problem("score", "give --truth and --train, or --data"))
    from xmclab.data.sparse import read_filter, read_matrix

    truth_NL = read_matrix(truth)
    train_NL = read_matrix(train, labels=truth_NL.shape[1], truth=str(truth))
    filter_NL = read_filter(filter_, truth_NL.shape, str(truth)) if filter_ else None
    return truth_NL, train_NL, filter_NL, DEFAULT_PROPENSITY


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
