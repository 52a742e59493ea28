"""What users see on bad input, from a real process: exit code, all problems on stderr, no traceback, empty stdout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MISTAKES = [
    "recipe=unidecc",
    "loss.clf=ds+bcee",
    "sampler.bta=3",
    "pool.beta=x",
    "sampler=clustr",
    "loss.de=__import__('os').system('touch executed')",
    "nonsense",
]
CASES = {
    "all at once": (
        MISTAKES,
        2,
        [
            "error: recipe: unknown recipe 'unidecc' (did you mean 'unidec'?)",
            "error: loss.clf: column 4: unknown loss 'bcee' (did you mean 'bce'?)",
            "error: sampler.bta: unknown key (did you mean 'pool.beta'?)",
            "error: pool.beta: 'x' should be a valid integer",
            "error: sampler: unknown sampler 'clustr' (did you mean 'cluster'?)",
            "error: loss.de: column ",
            "error: nonsense: expected KEY=VALUE",
        ],
    ),
    "no such folder": (["recipe=unidec", "data=./nowhere"], 3, ["error: data=./nowhere: no such folder"]),
    "a raising plugin file": (["recipe=unidec", "plugin=faulty.py"], 4, ["RuntimeError: out of order"]),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str, Path]]:
    """Exit code, stdout, stderr and working folder of every case; the processes run side by side."""
    processes = {}
    for name, (overrides, _, _) in CASES.items():
        folder = tmp_path_factory.mktemp("cwd")
        (folder / "faulty.py").write_text("raise RuntimeError('out of order')")
        command = [sys.executable, "-m", "xmclab", "run", *overrides]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes[name] = subprocess.Popen(command, cwd=folder, text=True, **pipes), folder
    results = {}
    for name, (process, folder) in processes.items():
        out, err = process.communicate()
        results[name] = process.returncode, out, err, folder
    return results


@pytest.mark.parametrize("case", CASES)
def test_bad_input(answers: dict[str, tuple[int, str, str, Path]], case: str) -> None:
    _, expected_code, messages = CASES[case]
    code, out, err, folder = answers[case]
    assert code == expected_code, err
    for message in messages:
        assert message in err
    assert out == ""
    assert "Traceback" not in err
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["faulty.py"]


def test_every_problem_has_a_line(answers: dict[str, tuple[int, str, str, Path]]) -> None:
    lines = answers["all at once"][2].splitlines()
    assert len(lines) == len(MISTAKES)
    assert all(line.startswith("error: ") for line in lines)


RAISING = """
from dataclasses import dataclass
import xmclab
from xmclab.api import Miner, MultiClassLoss, Reduction, Sampler

@dataclass
class Loss(MultiClassLoss):
    def terms(self, s_QP, y_QP):
        return s_QP.no_such_method()

@dataclass
class Weights(Reduction):
    def weights(self, y_QP):
        raise ValueError("no weights today")

@dataclass
class Plan(Sampler):
    def plan(self, rows_N, targets_NL, epoch, view, keys):
        return [rows_N][1]

@dataclass
class Mine(Miner):
    def sample(self, rows_Q, n, exclude_NL, rng):
        return [rows_Q][n]

@xmclab.hookimpl
def xmclab_parts():
    kinds = {"loss": Loss, "reduction": Weights, "sampler": Plan, "miner": Mine}
    return [xmclab.part(kind, "raising", cls) for kind, cls in kinds.items()]
"""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.de=raising", "loss 'raising': AttributeError: 'Tensor' object has no attribute 'no_such_method'"),
        ("reduction.de=raising", "reduction 'raising': ValueError: no weights today"),
        ("sampler=raising", "sampler 'raising': IndexError: list index out of range"),
        ("miner=raising", "miner 'raising': IndexError: list index out of range"),
    ],
)
def test_a_part_that_raises_in_a_run_is_named_below_its_traceback(
    call: Any, tmp_path: Path, override: str, message: str
) -> None:
    file = tmp_path / "faulty.py"
    file.write_text(RAISING)
    code, out, err = call("run", "recipe=depsl", "data=tiny", f"plugin={file}", override, "--out", tmp_path / "run")
    assert (code, out) == (4, "")
    assert err.splitlines()[-1] == f"error: faulty (plugin {file}): {message}"
    assert f'File "{file}", line ' in err
