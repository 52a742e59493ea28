"""Runs that begin with what another one learned, and runs with stages."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import load_file

from xmclab.errors import ConfigError
from xmclab.host.registry import default_registry
from xmclab.runs.measure import Queries
from xmclab.runs.run import RunResult, print_result, run
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor

QUIET = Console(quiet=True)
STAGES = [
    "stages.phi.head.clf=none",
    "stages.phi.epochs=1",
    "stages.psi.start=phi",
    "stages.psi.freeze=encoder,head.de",
]


@pytest.fixture(scope="module")
def staged(small_config: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two stages."""
    return run(small_config(*STAGES), tmp_path_factory.mktemp("staged") / "run", QUIET).folder


def test_the_last_stage_goes_on_from_the_first(staged: Path) -> None:
    phi, psi = (load_file(folder / "model.safetensors") for folder in (staged / "stages" / "phi", staged))
    assert phi.keys() < psi.keys()
    assert all(phi[name].equal(psi[name]) for name in phi)  # all of it was frozen
    result = json.loads((staged / "result.json").read_text())
    stage = json.loads((staged / "stages" / "phi" / "result.json").read_text())
    assert result["metrics"].keys() == {"de", "clf", "de+clf"}
    assert result["metrics"]["de"] == stage["metrics"]["de"] == result["stages"]["phi"]["metrics"]["de"]


def test_the_closing_line_has_the_time_of_all_stages(staged: Path) -> None:
    document = json.loads((staged / "result.json").read_text())
    document["seconds"] |= {"train": 3.0, "total": 9.0}
    document["stages"]["phi"]["seconds"]["train"] = 4.0
    said = io.StringIO()
    print_result(Console(file=said, width=300), RunResult(staged, document["metrics"], {}, document))
    assert "trained in 7 s, 9 s in total; saved in" in said.getvalue()


def test_a_run_with_stages_is_run_again_from_its_config(staged: Path, tmp_path: Path, call: Any) -> None:
    code, out, err = call("run", f"recipe={staged / 'config.yaml'}", "--out", str(tmp_path / "again"), "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"] == json.loads((staged / "result.json").read_text())["metrics"]
    assert "stage phi, 1 of 2" in err


def test_an_ended_run_with_stages_is_only_read(staged: Path, small_config: Callable[..., Any]) -> None:
    before = (staged / "model.safetensors").stat().st_mtime_ns
    again = run(small_config(*STAGES), staged, QUIET, resume=True)
    assert again.metrics == json.loads((staged / "result.json").read_text())["metrics"]
    assert (staged / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_with_stages_answers_queries(staged: Path) -> None:
    predictor = open_predictor(staged, default_registry(), "cpu")
    assert predictor.model.head_names == ("de", "clf")


def test_without_its_model_a_run_keeps_none_of_its_stages(small_config: Callable[..., Any], tmp_path: Path) -> None:
    folder = run(small_config(*STAGES, "keep_model=false"), tmp_path / "run", QUIET).folder
    assert not list(folder.rglob("*.safetensors"))
    assert run(small_config(*STAGES, "keep_model=false"), folder, QUIET, resume=True).metrics


def test_another_stage_is_another_run(staged: Path, small_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"stages\.phi\.epochs: 1 in the run, 3 in this command"):
        run(small_config(*STAGES, "stages.phi.epochs=3"), staged, QUIET, resume=True)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("stages.psi.start=fi", "start=fi: not a run folder or an export, nor an earlier stage (known: phi)"),
        ("stages.phi.start=psi", "stages.phi.start=psi: not a run folder or an export, nor an earlier stage"),
        ("stages.psi.start.parts=head.clf", "stages.psi.start=phi: it has no head.clf (known: encoder, head.de)"),
        ("stages.psi.encoder=hf", "stages.psi.start=phi: its encoder is bag, this one is hf"),
        ("stages.psi.head.clf=none", "stages.psi.freeze=encoder,head.de: no head is left to train"),
        ("stages.phi.freeze=head.clf", "stages.phi.freeze=head.clf: there is no head.clf"),
    ],
)
def test_what_a_stage_cannot_begin_with_is_refused_before_the_first(
    tmp_path: Path, call: Any, override: str, problem: str
) -> None:
    same = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16"]
    same = [word for word in same if override != "stages.psi.encoder=hf" or word != "encoder.dim=16"]
    code, _, err = call("run", *same, *STAGES, override, "--out", str(tmp_path / "run"))
    assert code == 2
    assert problem in err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def stopped(small_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A function that stops a run with stages before an evaluation: of a number, from 1."""

    def stopped(folder: Path, evaluation: int, *overrides: str) -> Path:
        left = iter(range(evaluation - 1))
        whole = Queries.evaluate
        with monkeypatch.context() as patch:
            patch.setattr(Queries, "evaluate", lambda self: interrupt() if next(left, None) is None else whole(self))
            with pytest.raises(KeyboardInterrupt):
                run(small_config(*STAGES, "checkpoint.every=1", *overrides), folder, QUIET)
        return folder

    return stopped


def test_a_stage_that_has_not_begun_may_change(
    stopped: Callable[..., Path], small_config: Callable[..., Any], tmp_path: Path, call: Any
) -> None:
    """What is refused changes nothing, what is accepted stays."""
    folder = stopped(tmp_path / "run", 1)
    for refused in ("stages.phi.optim.clip=3", "optim.clip=3"):
        code, _, err = call("run", "--resume", str(folder), refused)
        assert code == 2
        assert "optim.clip: 1.0 in the run, 3.0 in this command" in err
        assert (folder / "config.yaml").read_text().count("clip: 3.0") == 0
    code, _, err = call("run", "--resume", str(folder), "stages.psi.optim.clip=3")
    assert code == 0, err
    assert (folder / "config.yaml").read_text().count("clip: 3.0") == 1
    assert json.loads((folder / "result.json").read_text())["recipe"] == small_config().recipe


@pytest.mark.parametrize(
    "allowed",
    [
        ["optim.clip=3", "resume.allow=optim.clip"],
        ["stages.psi.optim.clip=3", "resume.allow=stages.psi.optim.clip"],
        ["stages.psi.optim.clip=3", "resume.allow=optim"],
        ["encode.chunk=64", "checkpoint.every=2", "device=cpu"],
    ],
)
def test_what_may_differ_may_differ_in_every_stage(
    stopped: Callable[..., Path], tmp_path: Path, call: Any, allowed: list[str]
) -> None:
    folder = stopped(tmp_path / "run", 2)
    code, _, err = call("run", "--resume", str(folder), *allowed)
    assert code == 0, err
    assert "resuming after step" in err


def test_what_is_allowed_to_another_stage_is_refused(stopped: Callable[..., Path], tmp_path: Path, call: Any) -> None:
    folder = stopped(tmp_path / "run", 2)
    code, _, err = call("run", "--resume", str(folder), "optim.clip=3", "resume.allow=stages.phi.optim.clip")
    assert code == 2
    assert "error: optim.clip: 1.0 in the run, 3.0 in this command" in err
    assert "stages.phi.optim.clip" not in err


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_run_that_has_begun_needs_its_start_no_more(
    small_run: Path, small_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(small_run, tmp_path / "start")
    given = [f"start={tmp_path / 'start'}", "start.parts=encoder", "checkpoint.every=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Queries, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(small_config(*given), tmp_path / "run", QUIET)
    shutil.rmtree(tmp_path / "start")
    assert run(small_config(*given), tmp_path / "run", QUIET, resume=True).metrics


@pytest.mark.parametrize("parts", [[], ["start.parts=encoder"], ["start.parts=head.clf"]])
def test_a_run_starts_from_a_run(small_run: Path, train: Callable[..., Path], tmp_path: Path, parts: list[str]) -> None:
    """Without steps that change it, it has the same weights."""
    still = ["encoder.lr=1e-30", "head.de.lr=1e-30", "head.clf.lr=1e-30", "head.clf.table_lr=1e-30", "optim.decay=0"]
    same = ["head.de.dim=16", "head.clf.dim=12", f"start={small_run}"]
    folder = train(tmp_path / "run", *same, *parts, *still)
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, small_run))
    equal = {name for name in theirs if ours[name].equal(theirs[name])}
    wanted = {"[]": ("",), "['start.parts=encoder']": ("encoder.",), "['start.parts=head.clf']": ("heads.clf.",)}
    assert {name for name in theirs if name.startswith(wanted[str(parts)])} <= equal
    if parts:
        assert "heads.de.g1.0.weight" not in equal


def test_a_run_starts_from_the_encoder_of_an_export(
    small_run: Path, train: Callable[..., Path], tmp_path: Path
) -> None:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    same = ["head.de.dim=16", "head.clf.dim=12", "encoder.lr=1e-30", "optim.decay=0"]
    folder = train(tmp_path / "run", *same, f"start={tmp_path / 'export'}", "start.parts=encoder")
    ours, theirs = (load_file(place / "model.safetensors") for place in (folder, small_run))
    assert all(ours[name].equal(theirs[name]) for name in theirs if name.startswith("encoder."))


def test_starts_from_a_transformer_and_its_export(train: Callable[..., Path], tiny_bert: Path, tmp_path: Path) -> None:
    bert = ("encoder=hf", f"encoder.model={tiny_bert}", "head.de.dim=0", "head.clf.dim=0", "optim.decay=0")
    first = train(tmp_path / "first", encoder=bert)
    write_export(open_predictor(first, default_registry(), "cpu"), first, tmp_path / "export", None)
    theirs = load_file(first / "model.safetensors")
    for source in (first, tmp_path / "export"):
        start = [f"start={source}", "start.parts=encoder", "encoder.lr=1e-30"]
        folder = train(tmp_path / f"from-{source.name}", *start, encoder=bert)
        ours = load_file(folder / "model.safetensors")
        assert all(ours[name].equal(theirs[name]) for name in theirs if name.startswith("encoder."))


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (["start=nowhere"], 2, "start=nowhere: not a run folder or an export"),
        (["encoder.dim=24"], 2, "does not fit: encoder."),
        (["head.clf.dim=20"], 2, "heads.clf."),
        (["head.clf=none", "start.parts=head.clf"], 2, "this config has no head.clf"),
        (["start.parts=head.foo"], 2, "start.parts"),
        (["data=other"], 3, "labels are not the"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(
    small_run: Path, tmp_path: Path, call: Any, overrides: list[str], code: int, message: str
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("text,labels\n" + "".join(f"text {row},label {row % 5}\n" for row in range(40)))
    same = ["data=tiny", "encoder=bag", "encoder.dim=16", "epochs=1"]
    same += ["head.de.dim=16"] + ([] if "head.clf=none" in overrides else ["head.clf.dim=12"])
    given = [f"data={other}" if word == "data=other" else word for word in overrides]
    found = call("run", *same, f"start={small_run}", *given, "--out", str(tmp_path / "run"))
    assert found[0] == code, found[2]
    assert message in found[2]
    assert "Traceback" not in found[2]


def test_a_damaged_start_is_refused(small_run: Path, train: Callable[..., Path], tmp_path: Path, call: Any) -> None:
    shutil.copytree(small_run, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"\0\1\2\3\4\5\6\7")
    same = ["data=tiny", "encoder=bag", "encoder.dim=16", "head.de.dim=16", "head.clf.dim=12", "epochs=1"]
    code, _, err = call("run", *same, f"start={tmp_path / 'damaged'}", "--out", str(tmp_path / "run"))
    assert code == 7
    assert "model.safetensors" in err
