"""What users see on bad input, from a real process: exit code, all problems on stderr, no traceback, empty stdout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
            "error: nonsense: an override is KEY=VALUE",
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
