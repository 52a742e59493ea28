"""Linear programs on TF-IDF features: the predictions of XR-Linear, and what it and our baselines reach and cost.

    python benchmarks/pecos/predict.py debian [NAME_OR_FOLDER ...] [--only XR-Linear]

XR-Linear is the linear model of PECOS (Yu et al., 2022). libpecos needs numpy < 2, so it is installed into a virtual
environment of its own, `runs/pecos/venv`, without xmclab. It gets the features of our baselines as files
(`xr_linear.py`), and its predictions become `runs/pecos/NAME.npz`: the 100 best labels of each test query, filter pairs
left out. Read them with

    xmclab score --pred runs/pecos/debian.npz --data debian
    xmclab bench SPEC "predictions.XR-Linear=runs/pecos/{data}.npz"

Writes `results.json` and `results.md` next to this file; data sets and programs that were not asked for keep their
numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `xmclab` does; torch reads it on import

import numpy as np
import scipy.sparse as sp
import torch

from xmclab.api import Dataset, Ranking
from xmclab.data import open_dataset
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.system.usage import peak
from xmclab_baselines.tfidf import features
from xmclab_datatools.rankings import read_ranking

HERE = Path(__file__).parent
WORK = HERE.parents[1] / "runs" / "pecos"
XR_LINEAR = "XR-Linear"
BASELINES = {  # as in the table: overrides of a run
    "tfidf_neighbours": ["baseline=tfidf_neighbours"],
    "napkinxc": ["baseline=napkinxc"],
    "napkinxc, model=ova": ["baseline=napkinxc", "baseline.model=ova"],
    "one_vs_all": ["baseline=one_vs_all"],
}
# The other requirements of libpecos are for its transformers, and take gigabytes.
PACKAGES = (["numpy<2", "scipy<1.14", "scikit-learn"], ["--no-deps", "libpecos"])
SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "R@100")
DEPTH, THREADS = 100, 2
GIB = 2**30

Results = dict[str, dict[str, dict[str, Any]]]  # of every program, by data set


def write_inputs(data: Dataset, folder: Path) -> None:
    """The features of queries and the targets of training, for `xr_linear.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    test_QF, train_NF = features(data, data.train.texts)
    for name, matrix in (("train", train_NF), ("targets", data.train.targets_NL), ("test", test_QF)):
        sp.save_npz(folder / f"{name}.npz", sp.csr_matrix(matrix))


def environment(folder: Path, base: str = sys.executable) -> Path:
    """The Python of a virtual environment with libpecos, which is made there unless it exists.

    Raises:
        SystemExit: it cannot be made; says why.
    """
    python = folder / "bin" / "python"
    imports = [str(python), "-c", "import pecos.xmc.xlinear.model"]
    if python.exists() and subprocess.run(imports, capture_output=True).returncode == 0:
        return python
    install = [str(python), "-m", "pip", "install", "--quiet"]
    for command in ([base, "-m", "venv", "--clear", str(folder)], *([*install, *some] for some in PACKAGES), imports):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            raise SystemExit(f"no environment with libpecos: {' '.join(command)} failed\n{said}\ntry another --python")
    return python


def predicted(python: Path | str, folder: Path, depth: int) -> dict[str, Any]:
    """Run `xr_linear.py`: what it took. Its scores are in `scores.npz`."""
    command = [python, HERE / "xr_linear.py", folder, "--depth", str(depth), "--threads", str(THREADS)]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    taken: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return taken


def filtered(scores: Path, data: Dataset, k: int) -> Ranking:
    """The k best labels of each test query that are not filtered."""
    return read_ranking(scores, data.test.targets_NL.shape, k, data.test.filter_NL)


def write_predictions(ranking: Ranking, file: Path) -> None:
    """As `xmclab score` reads them."""
    np.savez_compressed(file, indices=ranking.ids_NK.astype(np.int32), scores=ranking.scores_NK)


def xr_linear(source: str, python: Path) -> dict[str, Any]:
    """Predict and score a data set."""
    data = open_dataset(source, "title", default_registry())
    folder, file = WORK / data.name, WORK / f"{data.name}.npz"
    write_inputs(data, folder)
    deep = DEPTH + int(np.diff(data.test.filter_NL.indptr).max(initial=0))
    taken = predicted(python, folder, min(deep, data.num_labels))
    write_predictions(filtered(folder / "scores.npz", data, DEPTH), file)
    command = [sys.executable, "-m", "xmclab", "score", "--pred", file, "--data", source, "--bootstrap", "0", "--json"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return {"metrics": json.loads(done.stdout)["metrics"], **taken}


def baseline(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Measure a baseline; in a process of its own, for the memory."""
    torch.set_num_threads(THREADS)
    config = resolve(["recipe=unidec", f"data={source}", *overrides], default_registry())
    data = open_dataset(source, "title", default_registry())
    evaluator, program = Evaluator.of_data(data), config.make("baseline")
    cpu, held = time.process_time(), peak()
    ranking = program.rank(data, DEPTH)
    taken = {"cpu": time.process_time() - cpu, "memory": peak() - held}
    return {"metrics": evaluator.metrics(ranking), **taken}


def alone(source: str, overrides: Sequence[str]) -> dict[str, Any]:
    """`baseline` in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(baseline, (source, overrides))


def table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """A Markdown table of every program on every data set."""
    lines = [f"| data | program | {' | '.join(SHOWN)} | CPU | memory |", "|---" * (len(SHOWN) + 4) + "|"]
    for name, programs in results.items():
        for program in (*BASELINES, XR_LINEAR):
            if found := programs.get(program):
                numbers = [f"{found['metrics'][metric]:.2f}" for metric in SHOWN]
                costs = [f"{found['cpu']:.0f} s", f"{max(found['memory'], 0) / GIB:.1f} GiB"]
                lines.append(f"| {' | '.join([name, program, *numbers, *costs])} |")
    return "\n".join(lines) + "\n"


def page(results: Results) -> str:
    """What `results.md` says."""
    versions = ", ".join(sorted({found[XR_LINEAR]["version"] for found in results.values() if XR_LINEAR in found}))
    return f"""# Linear programs on TF-IDF features

All programs get the same features and keep their default settings. CPU: seconds of all threads, to train and to rank
the test queries; memory: how far the peak of the process rose meanwhile. libpecos {versions}; it and napkinXC train on
filter pairs as negatives. Made by `make bench-pecos`.

{table(results)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", help="names of data sets, or folders")
    parser.add_argument("--only", action="append", choices=[*BASELINES, XR_LINEAR], help="can be repeated")
    parser.add_argument("--python", default=sys.executable, help="of the environment of libpecos; default: this one")
    options = parser.parse_args()
    stored = HERE / "results.json"
    results: Results = json.loads(stored.read_text()) if stored.exists() else {}
    for source in options.data:
        name = open_dataset(source, "title", default_registry()).name
        for program in options.only or (*BASELINES, XR_LINEAR):
            if program == XR_LINEAR:
                found = xr_linear(source, environment(WORK / "venv", options.python))
            else:
                found = alone(source, BASELINES[program])
            results.setdefault(name, {})[program] = found
            print(f"{name}, {program}: P@1 {found['metrics']['P@1']:.2f}", file=sys.stderr)
            stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(page(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
