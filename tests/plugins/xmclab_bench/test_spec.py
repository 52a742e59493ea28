"""Bench specs: what they declare, how the command line changes them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab_bench.spec import load_spec, named_specs, resolve_cells, split_list

SPEC = """\
# Two losses.
base: [recipe=unidec, data=tiny]
rows:
  SC; SC: [loss=supcon]
  0.5 DS: [loss=0.5*ds]
grid:
  pool.eta: [0, 6]
  seed: [0, 1]
columns: pool.eta
metrics: [P@1, PSP@1]
searches: [de]
measures: [train, target]
target: P@1=30
"""


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return write


def problems(spec: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_cells(load_spec(spec, overrides), default_registry())
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_spec_is_rows_by_columns_by_seeds(spec_file: Callable[[str], str]) -> None:
    spec = load_spec(spec_file(SPEC), [])
    assert (spec.name, spec.title, spec.target) == ("mine", "Two losses.", ("P@1", 30.0))
    cells = list(spec.cells())
    assert [(cell.row, cell.column, cell.seed) for cell in cells] == [
        (row, eta, seed) for row in ("SC; SC", "0.5 DS") for eta in ("0", "6") for seed in (0, 1)
    ]
    assert cells[3].overrides == ("recipe=unidec", "data=tiny", "loss=supcon", "pool.eta=6", "seed=1")


def test_without_rows_the_grid_names_them(spec_file: Callable[[str], str]) -> None:
    spec = load_spec(spec_file("base: [recipe=unidec]\ngrid: {pool: {beta: [1, 3]}, epochs: [2]}\n"), [])
    assert [cell.row for cell in spec.cells()] == ["pool.beta=1, epochs=2", "pool.beta=3, epochs=2"]
    assert {cell.seed for cell in spec.cells()} == {0}


def test_overrides_replace_the_grid_the_shown_and_the_base(spec_file: Callable[[str], str]) -> None:
    typed = ["seed=7", "pool.eta=3,4", "metrics=R@10", "budget=time", "epochs=2", "data=debian"]
    spec = load_spec(spec_file(SPEC), typed)
    assert (spec.metrics, spec.budget) == (("R@10",), "time")
    assert {cell.seed for cell in spec.cells()} == {7}
    assert {cell.column for cell in spec.cells()} == {"3", "4"}
    # What rows and grid say comes later, so that the cells still differ.
    assert next(spec.cells()).overrides[:4] == ("recipe=unidec", "data=tiny", "epochs=2", "data=debian")


@pytest.mark.parametrize(
    ("override", "rows"),
    [("loss.de=ds", "'SC; SC', '0.5 DS'"), ("loss=bce", "'SC; SC', '0.5 DS', 'Large'"), ("sampler=random", "'Large'")],
)
def test_what_rows_set_themselves_is_told(spec_file: Callable[[str], str], override: str, rows: str) -> None:
    path = spec_file(SPEC.replace("grid:", "  Large: [sampler=cluster, loss.clf=bce]\ngrid:"))
    assert load_spec(path, [override, "epochs=2", "sampler.batch_size=8"]).notes == (
        f"{override}: ignored by {rows}, which set it themselves",
    )


def test_a_named_reference_is_a_row(spec_file: Callable[[str], str]) -> None:
    assert load_spec(spec_file(SPEC), []).reference == ""
    path = spec_file(f"{SPEC}reference: 0.5 DS\n")
    assert load_spec(path, []).reference == "0.5 DS"
    assert load_spec(path, ["reference=SC; SC"]).reference == "SC; SC"
    grid = spec_file("base: [recipe=unidec]\ngrid: {pool: {beta: [1, 3]}, epochs: [2]}\n")
    assert load_spec(grid, ["reference=pool.beta=3, epochs=2"]).reference == "pool.beta=3, epochs=2"


def test_specs_of_the_same_cells_have_the_same_fingerprint(spec_file: Callable[[str], str]) -> None:
    path = spec_file(SPEC)
    known = load_spec(path, []).fingerprint
    for shown in ("metrics=R@10", "searches=clf", "measures=memory", "target=P@1=1", "reference=SC; SC"):
        assert load_spec(path, [shown]).fingerprint == known
    for other in ("seed=0", "data=debian", "pool.eta=6", "budget=time"):
        assert load_spec(path, [other]).fingerprint != known


def test_commas_in_brackets_do_not_split() -> None:
    assert split_list("ds, supcon(temperature=1, weight=2),bce") == ("ds", "supcon(temperature=1, weight=2)", "bce")


@pytest.mark.parametrize("name", list(named_specs()))
def test_every_named_spec_resolves_whole(name: str) -> None:
    spec = load_spec(name, ["data=tiny"])
    cells, left_out = resolve_cells(spec, default_registry())
    assert spec.title
    assert len({cell.seed for cell in spec.cells()}) >= 3
    assert len(cells) == len(list(spec.cells()))
    assert not left_out


def test_the_papers_comparisons_ship() -> None:
    papers = {"reductions", "losses", "batches", "negatives", "hard_negatives", "symmetric", "pool", "efficiency"}
    assert set(named_specs()) == papers | {"efficiency_transformer", "search", "systems", "systems_published"}


@pytest.mark.parametrize("name", ["losses", "batches", "negatives", "hard_negatives", "symmetric", "pool"])
def test_rows_that_are_no_reductions_all_train_on_a_pool(name: str) -> None:
    cells, _ = resolve_cells(load_spec(name, []), default_registry())
    whole = [cell.row for cell, config in cells if any(config.objective(head).needs_all for head in config.heads)]
    assert not whole


def test_combinations_that_cannot_be_are_left_out_with_the_reason(spec_file: Callable[[str], str]) -> None:
    text = "base: [recipe=unidec, loss.de=ds]\ngrid: {reduction.clf: [ova, psl], loss.clf: [ds, bce]}\n"
    cells, left_out = resolve_cells(load_spec(spec_file(text), []), default_registry())
    assert [cell.row for cell, _ in cells] == [
        "reduction.clf=ova, loss.clf=bce",
        "reduction.clf=psl, loss.clf=ds",
        "reduction.clf=psl, loss.clf=bce",
    ]
    (one,) = left_out
    assert one.cell.row == "reduction.clf=ova, loss.clf=ds"
    assert "binary losses" in one.reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC.replace("P@1, PSP@1", "P@1, PS@1"), "metrics: there is no 'PS@1' (did you mean 'PSP@1'?)"),
        (SPEC.replace("searches: [de]", "searches: [dual]"), "searches: there is no 'dual'"),
        (SPEC.replace("pool.eta: [0, 6]", "pool.eta: []"), "grid.pool.eta: has no values"),
        (SPEC.replace("columns: pool.eta", "columns: pool.beta"), "the grid has no key 'pool.beta'"),
        (SPEC.replace("seed: [0, 1]", "seed: [0, one]"), "'one' is not an integer"),
        (SPEC.replace("seed: [0, 1]", "seed: [1, 1]"), "'1' is listed twice"),
        (SPEC.replace("P@1=30", "P@1"), "is not METRIC=PERCENT"),
        (SPEC.replace("metrics:", "metric:"), "unknown key (did you mean 'metrics'?)"),
        (SPEC.replace("loss=supcon", "loss=supconn"), "none of its cells can run"),
        (
            SPEC.replace("pool.eta: [0, 6]", "pool.etta: [0, 6]").replace("columns: pool.eta", ""),
            "no cell can run: pool.etta",
        ),
        (SPEC.replace("loss=0.5*ds", "loss=supcon"), "two cells have the same config: 'SC; SC, 0, seed 0'"),
        (SPEC.replace("[P@1, PSP@1]", "[]"), "is empty"),
        (f"{SPEC}reference: SC; CS\n", "reference: there is no row 'SC; CS' (did you mean 'SC; SC'?)"),
        (SPEC.replace("[loss=supcon]", "{loss: supcon}"), "a row is a list of overrides (such as [loss=supcon])"),
        ("- a\n- b\n", "a mapping"),
        ("# Nothing.\nbase: [recipe=unidec]\n", "declares nothing to compare"),
        (f"{SPEC}predictions: {{0.5 DS: p.txt}}\n", "predictions.0.5 DS: a row has this name"),
        (f"{SPEC}predictions: {{mine: [a, b]}}\n", "predictions are a file (such as runs/mine/{data}.txt)"),
        (SPEC.replace("columns: pool.eta", "columns: loss.de"), "the grid has no key 'loss.de' (known: pool.eta)"),
    ],
)
def test_bad_specs_are_refused(spec_file: Callable[[str], str], text: str, message: str) -> None:
    assert message in problems(spec_file(text))


def test_unknown_names_and_files_are_refused(tmp_path: Path) -> None:
    assert "unknown spec 'reduction' (did you mean 'reductions'?" in problems("reduction")
    assert "none.yaml: no such file" in problems(str(tmp_path / "none.yaml"))
    assert "an override is KEY=VALUE" in problems("losses", "tiny")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rows=a,b", "rows=a,b: rows can only be set in a spec file (edit a copy of PATH, and run xmclab bench"),
        ("rows.mine=loss=ds", "rows.mine=loss=ds: rows can only be set in a spec file"),
        ("space.encoder.lr=3", "space can only be set in a spec file"),
        ("grid.encoder.lr=1", "grid can only be set in a spec file"),
        ("grid.pool.eta=0,6", "values of the grid are set by their key (pool.eta=0,6)"),
        ("grid.seed=1", "values of the grid are set by their key (seed=1)"),
        ("base=epochs=2", "overrides are added to the base as they are (such as epochs=2)"),
        ("predictions=mine.txt", "predictions have a name (such as predictions.theirs=runs/theirs.txt)"),
    ],
)
def test_what_only_a_file_can_say_is_one_error(spec_file: Callable[[str], str], override: str, message: str) -> None:
    path = spec_file(SPEC)
    with pytest.raises(ConfigError) as caught:
        load_spec(path, [override])
    [problem] = caught.value.problems
    assert message in str(problem).replace(path, "PATH")


def test_any_metric_that_the_cells_measure_can_be_shown(spec_file: Callable[[str], str]) -> None:
    deep = SPEC.replace("data=tiny", 'data=tiny, "evaluate.k=1,10"').replace("PSP@1]", "PSP@10]")
    cells, _ = resolve_cells(load_spec(spec_file(deep), []), default_registry())
    assert {config.settings.evaluate.k for _, config in cells} == {(1, 10)}
    assert "metrics: no cell measures PSP@3" in problems(spec_file(deep.replace("PSP@10", "PSP@3")))
    assert "target: no cell measures P@3" in problems(spec_file(deep), "target=P@3=40")


def test_rows_share_a_propensity_model(spec_file: Callable[[str], str]) -> None:
    apart = SPEC.replace("[loss=supcon]", '[loss=supcon, "evaluate.propensity=0.6,2.6"]')
    assert "PSP, PSnDCG and PSR cannot be compared" in problems(spec_file(apart))
    columns = apart.replace(', "evaluate.propensity=0.6,2.6"]', "]").replace(
        "pool.eta: [0, 6]", 'evaluate.propensity: ["0.6,2.6", "0.5,0.4"]'
    )
    cells, _ = resolve_cells(
        load_spec(spec_file(columns.replace("columns: pool.eta", "columns: evaluate.propensity")), []),
        default_registry(),
    )
    assert {config.settings.evaluate.propensity for _, config in cells} == {(0.6, 2.6), (0.5, 0.4)}


def test_rows_that_no_config_allows_may_be_skipped(spec_file: Callable[[str], str]) -> None:
    text = "base: [recipe=unidec]\nrows:\n  DS: [loss.de=ds]\n  gone: [recipe=not_there]\nunfit: skip\n"
    path = spec_file(text)
    cells, left_out = resolve_cells(load_spec(path, []), default_registry())
    assert [cell.row for cell, _ in cells] == ["DS"]
    ((row, reason),) = [(left.cell.row, left.reason) for left in left_out]
    assert row == "gone"
    assert "unknown recipe 'not_there'" in reason
    assert "gone: none of its cells can run" in problems(path, "unfit=refuse")
    assert "unfit: there is no 'keep'" in problems(path, "unfit=keep")
    assert "no cell can run" in problems(spec_file(text.replace("loss.de=ds", "loss.de=gone")))


def test_baselines_and_predictions_stand_beside_the_cells(spec_file: Callable[[str], str]) -> None:
    path = spec_file(SPEC + "predictions:\n  XR-Linear, 3 trees: pecos/{data}.txt\n")
    known = load_spec(path, [])
    spec = load_spec(path, ["baseline=tfidf_neighbours", "baseline.neighbours=3", "predictions.mine v1.2=a=b.npz"])
    assert spec.beside == ("baseline=tfidf_neighbours", "baseline.neighbours=3")
    assert not any("baseline" in text for cell in spec.cells() for text in cell.overrides)
    assert spec.predictions == {"XR-Linear, 3 trees": "pecos/{data}.txt", "mine v1.2": "a=b.npz"}
    assert spec.fingerprint == known.fingerprint
    assert "unknown baseline 'tfidf'" in problems(path, "baseline=tfidf")
    resolve_cells(load_spec(path, ["baseline=tfidf", "unfit=skip"]), default_registry())
