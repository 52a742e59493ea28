"""Files damaged at random: they are used or refused with a message, in bounded time, and never with a traceback.

FUZZ=400 FUZZ_SLOW=100 tries more.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_sets import read, tables

from xmclab.data import open_dataset
from xmclab.errors import XmclabError
from xmclab.host.registry import default_registry
from xmclab.serve.open import open_predictor
from xmclab_datatools.rankings import read_ranking

Call = Callable[..., tuple[int, str, str]]
QUICK = 20.0  # seconds
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of numpy, about damaged headers
FUZZ, FUZZ_SLOW = (int(os.environ.get(name, few)) for name, few in (("FUZZ", 12), ("FUZZ_SLOW", 6)))


SPLICES = (
    b"",
    b"-",
    b"0",
    b"9" * 30,
    b"9" * 5000,
    b"null",
    b"[[[[",
    b'"',
    b"\xff",
    b"\x00",
    b"\n",
    b"1e999",
    b"NaN",
    b"{}",
)


def mutants(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Copies of a file with a few places replaced, cut out or doubled."""
    rng = random.Random(seed)
    for _ in range(count):
        mutant = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            start = rng.randrange(len(mutant) + 1)
            stop = min(len(mutant), start + rng.choice((0, 1, 1, 4, 40)))
            some = rng.choice((rng.choice(SPLICES), rng.randbytes(rng.choice((1, 4))), bytes(mutant[start:stop]) * 2))
            mutant[start:stop] = some
        yield bytes(mutant)


def survives(use: Callable[[], Any]) -> None:
    """Whatever a file holds, it is used or refused."""
    before = time.perf_counter()
    with contextlib.suppress(XmclabError):
        use()
    assert time.perf_counter() - before < QUICK


def small_sets(folder: Path) -> dict[str, Path]:
    """A data set in every layout, as small as can be."""
    from xmclab_datatools.write import WRITERS, with_contents

    source = tables(folder / "lf")
    made = {}
    for layout, write in WRITERS.items():
        made[layout] = folder / layout
        made[layout].mkdir()
        data, contents = with_contents(lambda text: open_dataset(str(source), text, default_registry()))
        write(made[layout], data, contents)
    return made


@pytest.mark.parametrize("layout", ["lf_json", "raw_text", "dexml", "pecos", "table"])
def test_damaged_data_sets(tmp_path: Path, layout: str) -> None:
    folder = small_sets(tmp_path)[layout]
    for number, file in enumerate(sorted(file for file in folder.rglob("*") if file.is_file())):
        content = file.read_bytes()
        packed = content[:2] == b"\x1f\x8b"
        for inside in {False, packed}:
            for mutant in mutants(gzip.decompress(content) if inside else content, FUZZ, seed=number):
                file.write_bytes(gzip.compress(mutant, 1) if inside else mutant)
                survives(lambda: read(folder))
        file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".txt"])
def test_damaged_predictions(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"p{suffix}"
    matrix = sp.csr_array(np.eye(4))
    if suffix == ".txt":
        contents = [b"4 4\n0:1\n1:0.5 2:3\n\n3:1e3\n"]
    elif suffix == ".npy":
        np.save(file, np.arange(8).reshape(4, 2) % 4)
        contents = [file.read_bytes()]
    else:
        contents = []
        for form in (matrix, matrix.tocsc(), matrix.tocoo(), matrix.tobsr(), matrix.todia()):
            sp.save_npz(file, form, compressed=False)
            contents.append(file.read_bytes())
    for number, content in enumerate(contents):
        for mutant in mutants(content, FUZZ, seed=number):
            file.write_bytes(mutant)
            survives(lambda: read_ranking(file, (4, 4), 2))


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "result.json",
        "labels.jsonl",
        "points.npz",
        "indexes.json",
        "encoder/features.json",
        "encoder/idf.npy",
        "model.safetensors",
    ],
)
def test_damaged_run_folders(run_copy: Path, name: str, call: Call) -> None:
    file = run_copy / name
    if not file.is_file():
        pytest.skip("not in this run")
    content = file.read_bytes()
    report = name in ("config.yaml", "environment.json", "metrics.jsonl", "result.json", "points.npz")

    def use() -> None:
        if report:
            code, _, err = call("report", run_copy, "--out", run_copy.parent / "report", "--overwrite")
            assert code != 1, err
        if name != "metrics.jsonl":
            open_predictor(run_copy, default_registry(), "cpu").rank(["plot"], 3, "de")

    for mutant in mutants(content[: 1 << 16] if len(content) > 1 << 20 else content, FUZZ_SLOW, seed=1):
        file.write_bytes(mutant)
        survives(use)


@pytest.mark.parametrize(
    "name",
    [
        "index.json",
        "config.yaml",
        "labels.jsonl",
        "weights.safetensors",
        "vectors/de.npy",
        "encoder/features.json",
        "encoder/idf.npy",
    ],
)
def test_damaged_exports(exported: Path, name: str) -> None:
    """By someone who also wrote the checksums."""
    from xmclab.system.files import sha256_of

    file, index = exported / name, exported / "index.json"
    content, manifest = file.read_bytes(), json.loads(index.read_text())
    for mutant in mutants(content, FUZZ_SLOW, seed=1):
        file.write_bytes(mutant)
        if file != index:
            manifest["files"][name] = {"bytes": len(mutant), "sha256": sha256_of(file)}
            index.write_text(json.dumps(manifest))
        survives(lambda: open_predictor(exported, default_registry(), "cpu").rank(["plot"], 3, "de"))
