"""Rankings of all labels, from the vectors of their heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Index, Ranking, Side
from xmclab.evaluation.search import Space, rank, rank_all, scores_of_pairs
from xmclab.evaluation.searches.neighbours import Neighbours
from xmclab.host.registry import default_registry
from xmclab.model.model import Model, Vectors
from xmclab.plan.indexes.exact import Exact
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab.training.trainer import Trainer

QUERIES, LABELS = 6, 11


def exact(heads: str) -> tuple[Index, bool]:
    return Exact(), False


@pytest.fixture
def made() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Vectors of queries and labels; `de` has a bias, `clf` has none."""
    torch.manual_seed(0)
    widths = {"de": 4, "clf": 3}
    queries = {head: torch.randn(QUERIES, width) for head, width in widths.items()}
    labels = {head: torch.randn(LABELS, width + (head == "de")) for head, width in widths.items()}
    return queries, labels


def expected(queries: dict[str, Tensor], labels: dict[str, Tensor]) -> dict[str, Tensor]:
    """The score of every label, from the definition."""
    de = queries["de"] @ labels["de"][:, :4].T + labels["de"][:, 4]
    clf = queries["clf"] @ labels["clf"].T
    return {"de": de, "clf": clf, "de+clf": de + clf}


def test_heads_are_put_side_by_side_once_and_held_once(made: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    _, labels = made
    space = Space(("de", "clf"), LABELS, lambda head: labels[head], exact)
    together = space.together("de+clf")
    assert space.together("de+clf") is together
    torch.testing.assert_close(together, torch.cat([labels["de"], labels["clf"]], dim=1))
    for head, vectors in labels.items():
        assert torch.equal(space.vectors(head), vectors)
        assert space.vectors(head).untyped_storage().data_ptr() == together.untyped_storage().data_ptr()


@pytest.mark.parametrize("heads", ["de", "clf", "de+clf"])
def test_labels_are_searched_by_inner_product_and_bias(
    made: tuple[dict[str, Tensor], dict[str, Tensor]], heads: str
) -> None:
    queries, labels = made
    space = Space(("de", "clf"), LABELS, labels.__getitem__, exact)
    ids_NK, scores_NK = space.nearest(heads, queries, 5)
    s_NL = expected(queries, labels)[heads]
    torch.testing.assert_close(scores_NK, s_NL.sort(dim=1, descending=True).values[:, :5])
    torch.testing.assert_close(scores_NK, s_NL.gather(1, ids_NK))
    rows, columns = torch.tensor([0, 0, 5]), torch.tensor([3, 10, 0])
    torch.testing.assert_close(space.scores(heads, queries, rows, columns), s_NL[rows, columns])


@pytest.mark.parametrize("count", [0, 1, 200])
def test_pairs_are_scored_in_any_order_and_as_often_as_they_are_listed(count: int) -> None:
    q_ND, z_LD = torch.randn(QUERIES, 3), torch.randn(LABELS, 3)
    row_E, label_E = torch.randint(QUERIES, (count,)), torch.randint(LABELS, (count,))
    torch.testing.assert_close(scores_of_pairs(q_ND, z_LD, row_E, label_E), (q_ND @ z_LD.T)[row_E, label_E])


def test_vectors_side_by_side_are_searched_without_a_copy() -> None:
    vectors = Vectors.empty(["de", "clf"], LABELS, [torch.empty(1, 3), torch.empty(1, 2)])
    space = Space(("de", "clf"), LABELS, vectors, exact)
    assert space.together("de+clf") is vectors.together
    assert space.together("clf").data_ptr() == vectors["clf"].data_ptr()


@pytest.mark.parametrize("heads", ["de", "de+clf"])
def test_added_labels_have_a_bias_and_the_classifier_s_mean_of_the_nearest(
    made: tuple[dict[str, Tensor], dict[str, Tensor]], heads: str
) -> None:
    queries, labels = made
    space = Space(("de", "clf"), LABELS, labels.__getitem__, exact)
    space.added_AD = torch.randn(3, 5)
    old = expected(queries, labels)
    new_NA = queries["de"] @ space.added_AD[:, :4].T + space.added_AD[:, 4]
    if heads == "de+clf":
        nearest = old["de"].topk(10, dim=1).indices
        new_NA = new_NA + old["clf"].gather(1, nearest).mean(dim=1, keepdim=True)
    s_NL = torch.cat([old[heads], new_NA], dim=1)
    ids_NK, scores_NK = space.nearest(heads, queries, LABELS + 3)
    assert ids_NK.sort(dim=1).values.tolist() == [list(range(LABELS + 3))] * QUERIES
    torch.testing.assert_close(scores_NK, s_NL.gather(1, ids_NK))
    assert (scores_NK.diff(dim=1) <= 0).all()


class Counted(Exact):
    """Counts searches of each kind."""

    calls: ClassVar[list[str]] = []

    def search(self, q_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        self.calls.append("search")
        return super().search(q_QD, k)

    def search_parts(self, q_QD: Tensor, widths: Sequence[int], k: int) -> list[tuple[Tensor, Tensor]]:
        self.calls.append("parts")
        return super().search_parts(q_QD, widths, k)


@pytest.mark.parametrize(
    ("names", "shortlist", "calls"),
    [
        (("de", "clf", "de+clf"), "float16", ["parts"]),
        (("nn", "de+clf+nn", "de", "clf", "de+clf"), "float16", ["search", "search", "parts", "search"]),
        (("de", "de+clf"), "float16", ["search"] * 2),
        (("de", "clf", "de+clf"), "none", ["search"] * 3),
    ],
)
def test_searches_by_heads_share_their_products(
    made: tuple[dict[str, Tensor], dict[str, Tensor]],
    names: tuple[str, ...],
    shortlist: Any,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rankings are those of separate searches, whatever else a search asks for."""
    queries, labels = made
    part = Neighbours()
    part.index = Counted(shortlist=shortlist)
    part.fit({head: q_ND + 1 for head, q_ND in queries.items()}, sp.csr_array(np.eye(QUERIES, LABELS, dtype="f4")))
    monkeypatch.setattr(Counted, "calls", [])

    def space() -> Space:
        return Space(("de", "clf"), LABELS, labels.__getitem__, lambda heads: (Counted(shortlist=shortlist), False))

    filter_NL = sp.csr_array(np.eye(QUERIES, LABELS, dtype="f4"))
    together = rank_all(part, names, queries, space(), filter_NL, 4)
    assert sorted(Counted.calls) == sorted(calls)
    alone = {name: rank(part, name, queries, space(), filter_NL, 4) for name in names}
    for name in names:
        np.testing.assert_array_equal(together[name].ids_NK, alone[name].ids_NK)
        np.testing.assert_array_equal(together[name].scores_NK, alone[name].scores_NK)


@pytest.mark.parametrize("search", ["heads", "neighbours"])
def test_filter_pairs_are_left_out_of_every_ranking(small_trainer: Callable[..., Any], search: str) -> None:
    trainer = small_trainer(f"search={search}")
    data, model, part = trainer.data, trainer.model, trainer.config.make("search")
    queries = model.query_vectors(model.encoder.tokenise(data.test.texts), 512)
    part.fit(model.query_vectors(trainer.query_tokens, 512), data.train.targets_NL)
    space = Space(model.head_names, data.num_labels, model.label_vectors(trainer.label_tokens, 512), exact)
    rows, columns = data.test.filter_NL.nonzero()
    names = part.names(model.head_names)
    assert names == ("de", "clf", "de+clf", *(["nn", "de+clf+nn"] if search == "neighbours" else []))
    for name in names:
        ranking = rank(part, name, queries, space, data.test.filter_NL, 100)
        assert ranking.ids_NK.shape == (len(data.test), 100)
        assert not (ranking.ids_NK[rows] == columns[:, None]).any()


PLAIN = ["head.de.normalise=false", "head.de.projection=none", "head.de.dim=0", "head.de.activation=none"]
PLAIN += ["head.clf.projection=none", "head.clf.dim=0", "head.clf.rows=normal", "head.clf.rows_std=0.5"]
PLAIN += ["head.clf.normalise=false", "head.clf.bias=none", "head.clf.normalise_at_search=false"]


def plain_scores(model: Model, texts: Sequence[str], labels: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The inner product of every query and label, one number after another."""

    def encoded(texts: Sequence[str], side: Side) -> list[list[float]]:
        encoder = model.encoder.eval()
        with torch.no_grad():
            return [encoder(encoder.collate(encoder.tokenise([text])), side)[0].double().tolist() for text in texts]

    queries, tables = encoded(texts, "query"), {"de": encoded(labels, "label")}
    tables["clf"] = model.get_parameter("heads.clf.psi.weight").double().tolist()
    found = {
        head: np.array([[math.fsum(a * b for a, b in zip(q, z, strict=True)) for z in table] for q in queries])
        for head, table in tables.items()
    }
    return {**found, "de+clf": found["de"] + found["clf"]}


def assert_ranked(ranking: Ranking, s_NL: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(ranking.ids_NK, np.argsort(-s_NL, axis=1, kind="stable")[:, :9])
    np.testing.assert_allclose(ranking.scores_NK, -np.sort(-s_NL, axis=1)[:, :9], rtol=1e-4)


def test_un_normalised_searches_of_runs_and_exports_rank_by_inner_products(
    train: Callable[..., Path], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", *PLAIN)
    registry, texts = default_registry(), ["a database for the web", "music player", "perl library"]
    predictor = open_predictor(run, registry, "cpu")
    write_export(predictor, run, tmp_path / "export", None)
    expected = plain_scores(predictor.model, texts, predictor.labels.texts)
    norms = np.linalg.norm(predictor.space.vectors("de").numpy(), axis=1)
    assert norms.std() > 0.05 * norms.mean()  # or the order would be that of cosines
    for answering in (predictor, open_predictor(tmp_path / "export", registry, "cpu")):
        for search in ("de", "clf", "de+clf"):
            assert_ranked(answering.rank(texts, 9, search), expected[search])


def test_un_normalised_views_are_mined_by_inner_products(small_trainer: Callable[..., Trainer]) -> None:
    trainer = small_trainer(*PLAIN, "miner=ann", "pool.eta=3", "refresh_every=3", "epochs=4")
    trainer.refresh(3)
    chosen = [0, 5, 9]
    texts = [trainer.data.train.texts[row] for row in chosen]
    s_NL = plain_scores(trainer.model, texts, trainer.data.label_texts)["de"]
    state = trainer.miner.state()
    assert state is not None
    for row, s_L in zip(chosen, s_NL, strict=True):
        s_L[trainer.exclude_NL[[row]].indices] = -np.inf
        assert state["hard"][row].tolist() == np.argsort(-s_L, kind="stable")[:9].tolist()
