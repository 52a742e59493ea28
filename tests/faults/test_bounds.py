"""Memory and time outside training: no file makes a command take more of them than its limits allow."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from xmclab.api import Dataset
from xmclab.data import open_dataset
from xmclab.errors import ConfigError, DataError, MemoryLimitError, StorageError, XmclabError
from xmclab.host.recipes import read_plain
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.store import load_labels, load_model
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab.serve.texts import TextFile
from xmclab.system.limits import LIMITS, limit
from xmclab.system.memory import out_of_memory
from xmclab.training.trainer import Trainer
from xmclab_bench.run_folder import read_run
from xmclab_datatools.rankings import read_ranking

Call = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
QUICK = 5.0  # seconds
MIB = 1 << 20
FUZZ, FUZZ_SLOW = (int(os.environ.get(name, few)) for name, few in (("FUZZ", 12), ("FUZZ_SLOW", 6)))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set limits as a user does."""

    def change(**chosen: object) -> None:
        monkeypatch.setenv("XMCLAB_LIMITS", ",".join(f"{name}={value}" for name, value in chosen.items()))

    return change


@pytest.fixture
def exported(small_run: Path, tmp_path: Path) -> Path:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    return tmp_path / "export"


@pytest.fixture
def run_copy(small_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(small_run, tmp_path / "copy")
    return tmp_path / "copy"


def tables(folder: Path, text: str = "red shoes") -> Path:
    """A set of label-feature files."""
    folder.mkdir(exist_ok=True)
    queries = [{"uid": f"q{row}", "title": f"{text} {row}", "target_ind": [row % 2]} for row in range(4)]
    write_lines(folder / "trn.json", queries)
    write_lines(folder / "tst.json", queries)
    write_lines(folder / "lbl.json", [{"title": "shoes"}, {"title": "red"}])
    return folder


def write_lines(file: Path, records: list[Any]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def read(path: Path) -> Dataset:
    return open_dataset(str(path), "title", default_registry())


def alone(*arguments: object, memory: int, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit code, stderr) of a command in a process that may take this much memory beyond its libraries."""
    setup = (
        "import os, resource, sys, torch, scipy.sparse, xmclab.cli, xmclab.serve.predictor, xmclab.serve.texts\n"
        "import xmclab.serve.output, xmclab_datatools.rankings, xmclab.evaluation.scoring, xmclab.serve.open\n"
        "torch.set_num_threads(1)\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        f"most = pages * os.sysconf('SC_PAGE_SIZE') + {memory}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "xmclab.cli.main()\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **(environment or {})}
    command = [sys.executable, "-c", setup, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
    return done.returncode, done.stderr


# Limits


def test_limits_are_set_by_name(limits: Callable[..., None]) -> None:
    assert limit("line") == LIMITS["line"].default
    limits(line="3k", labels=7, text="2M", rows="1G")
    assert [limit(name) for name in ("line", "labels", "text", "rows")] == [3000, 7, 2_000_000, 1_000_000_000]


def test_a_wrong_limit_is_refused(limits: Callable[..., None]) -> None:
    limits(lines=3, text="many")
    with pytest.raises(ConfigError) as caught:
        limit("line")
    assert [str(problem) for problem in caught.value.problems] == [
        "XMCLAB_LIMITS: unknown limit 'lines' (did you mean 'line'?)",
        "XMCLAB_LIMITS: text: 'many' is not a number (such as line=64M)",
    ]


def test_the_page_lists_every_limit() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) (.+?) \|", page, re.MULTILINE)
    assert rows == [(name, f"{each.default:,}", each.unit) for name, each in LIMITS.items()]


# Lines and texts


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_long_line_is_named_and_never_held(tmp_path: Path, suffix: str) -> None:
    """A line of 60 MB, in a process that may take 100 MB more than its libraries."""
    file = tmp_path / f"queries.txt{suffix}"
    opened = gzip.open(file, "wb", compresslevel=1) if suffix else file.open("wb")
    with opened as stream:
        stream.write(b"good\n")
        for _ in range(60):
            stream.write(random.Random(0).randbytes(MIB // 2).hex().encode())
        stream.write(b"\ngood again\n")
    code, err = alone("predict", tmp_path, "--input", file, memory=100 * MIB)
    assert (code, err) == (
        3,
        f"error: {file}:2: a line of 62,914,561 bytes; the limit is 16,000,000 (XMCLAB_LIMITS=line=63M allows it)\n",
    )


@pytest.mark.parametrize("name", ["trn.json", "lbl.json", "trn.json.gz"])
def test_a_long_line_of_a_data_set(tmp_path: Path, limits: Callable[..., None], name: str) -> None:
    folder = tables(tmp_path / "data")
    content = (folder / name.removesuffix(".gz")).read_bytes() + b'{"title": "' + b"x" * 1000 + b'"}\n'
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    limits(line=500)
    number = content.count(b"\n")
    with pytest.raises(DataError, match=rf"{re.escape(name)}:{number}: a line of 1,014 bytes; the limit is 500"):
        read(folder)


def test_a_line_at_the_limit_is_read(tmp_path: Path, limits: Callable[..., None]) -> None:
    (tmp_path / "a.txt").write_bytes(b"12345678\n123456789\n1234567890")
    limits(line=10)
    assert [record.text for record in TextFile(tmp_path / "a.txt")] == ["12345678", "123456789", "1234567890"]


def test_a_quote_that_is_never_closed(tmp_path: Path, limits: Callable[..., None]) -> None:
    rows = "".join(f"shoes {row},red\n" for row in range(1000))
    (tmp_path / "a.csv").write_text(f'query,labels\n"shoes,red\n{rows}')
    limits(line=2000)
    with pytest.raises(DataError, match=r"a\.csv: line 2: a row of more than one line has .*is a double quote missing"):
        read(tmp_path / "a.csv")


def test_a_long_text_is_cut_with_a_count(
    tmp_path: Path, limits: Callable[..., None], small_run: Path, call: Call
) -> None:
    (tmp_path / "q.txt").write_text(f"plot functions {'x ' * 500}\nplot functions\n")
    limits(text=100)
    code, out, err = call("predict", small_run, "--input", tmp_path / "q.txt", "--json")
    assert code == 0
    assert [len(json.loads(line)["query"]) for line in out.splitlines()] == [100, 14]
    assert err == f"note: {tmp_path / 'q.txt'}: cut 1 texts at 100 characters (XMCLAB_LIMITS=text=... changes that)\n"

    folder = tables(tmp_path / "data", text="shoes " * 50)
    data = read(folder)
    assert {len(text) for text in data.train.texts} == {100}
    assert list(data.label_texts) == ["shoes", "red"]
    _, out, _ = call("data", "check", folder, "--json")
    assert any(text.startswith(f"{folder / 'trn.json'}: cut 4 texts at 100 ") for text in json.loads(out)["warnings"])
    limits(text=100_000)
    assert read(folder).fingerprint != data.fingerprint


def test_long_texts_are_ranked_a_few_at_a_time(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xmclab.serve.predictor.CHARACTERS_OF_A_BLOCK", 10)
    predictor = open_predictor(small_run, default_registry(), "cpu")
    texts = ["plot", "plot functions", "perl", "perl", "perl"]
    blocks = [block for block, _ in predictor.answer(texts, 1, "de")]
    assert blocks == [texts[:2], texts[2:]]


def test_long_rows_of_sparse_text_are_parsed_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr("xmclab.data.sparse.CHARACTERS", 50)
    monkeypatch.setattr(
        "numpy.fromstring", lambda text, sep, real=np.fromstring: sizes.append(len(text)) or real(text, sep=sep)
    )
    (tmp_path / "m.txt").write_text("9 4\n" + "0:1.5 1:2.5 3:0.25\n" * 9)
    assert read_ranking(tmp_path / "m.txt", (9, 4), 2).ids_NK.tolist() == [[1, 0]] * 9
    assert max(sizes) < 100


# Archives and headers


def test_a_gzip_bomb(tmp_path: Path) -> None:
    folder = tables(tmp_path / "data")
    (folder / "trn.json").unlink()
    with gzip.open(folder / "trn.json.gz", "wb") as stream:
        for _ in range(128):
            stream.write(b"x" * MIB + b"\n")
    before = time.perf_counter()
    with pytest.raises(
        DataError, match=r"trn\.json\.gz: it unpacks to 6\d,\d+,\d+ bytes from .*inflation=\d+K? allows"
    ):
        read(folder)
    assert time.perf_counter() - before < QUICK


def bomb(file: Path, **members: bytes) -> None:
    """An archive of zeros behind each of these headers."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, start in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                stream.write(start)
                for _ in range(100):
                    stream.write(bytes(MIB))


def header(shape: tuple[int, ...], kind: str = "<i8") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": kind, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_an_npz_bomb(tmp_path: Path) -> None:
    bomb(tmp_path / "y.npz", data=header((100 * MIB // 8,)))
    with pytest.raises(
        DataError, match=r"y\.npz: it unpacks to 104,857,\d+ bytes from 10\d,\d+; the limit is 200 times"
    ):
        read_ranking(tmp_path / "y.npz", (4, 4), 2)


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 40, 1 << 40), (-4,), (0, 1 << 70)])
def test_arrays_that_announce_more_than_there_is(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "top.npy").write_bytes(header(shape) + bytes(800))
    with zipfile.ZipFile(tmp_path / "top.npz", "w") as archive:
        archive.write(tmp_path / "top.npy", "indices.npy")
    for name in ("top.npy", "top.npz"):
        with pytest.raises(DataError, match=r"its header announces an array \["):
            read_ranking(tmp_path / name, (4, 4), 2)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize(("shape", "what"), [((4, 2_000_000_000), "labels"), ((2_000_000_000, 4), "rows")])
def test_a_matrix_of_two_billion(tmp_path: Path, form: str, shape: tuple[int, int], what: str) -> None:
    arrays = {"row": np.zeros(1, int), "col": np.zeros(1, int), "indices": np.zeros(1, int), "indptr": np.zeros(5, int)}
    np.savez(tmp_path / "y.npz", format=form.encode(), shape=shape, data=np.ones(1), **arrays)
    message = rf"y\.npz: it announces 2,000,000,000 {what}; the limit is 100,000,000 \(XMCLAB_LIMITS={what}=2G"
    with pytest.raises(DataError, match=message):
        read_ranking(tmp_path / "y.npz", (4, 4), 2)


def test_indices_are_checked_before_a_matrix_is_converted(tmp_path: Path) -> None:
    """The conversion trusts them: a wrong one overwrites memory."""
    matrix = sp.csc_array(np.eye(4))
    matrix.indices[:] = 1 << 30
    np.savez(
        tmp_path / "y.npz",
        format=b"csc",
        shape=matrix.shape,
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
    )
    with pytest.raises(DataError, match="not a scipy sparse matrix"):
        read_ranking(tmp_path / "y.npz", (4, 4), 2)


@pytest.mark.parametrize(("first", "message"), [
    ("2 2000000000", "its header announces 2,000,000,000 labels"),
    ("2000000000 2", "its header announces 2,000,000,000 rows"),
    (f"{'9' * 5000} 2", "not a header"),
])  # fmt: skip
def test_a_header_of_two_billion(tmp_path: Path, first: str, message: str, call: Call) -> None:
    (tmp_path / "y.txt").write_text(f"{first}\n0:1\n1:1\n")
    code, _, err = call(
        "score", *(word for name in ("--pred", "--truth", "--train") for word in (name, tmp_path / "y.txt"))
    )
    assert code == 3
    assert err.startswith(f"error: {tmp_path / 'y.txt'}")
    assert message in err


def test_a_parquet_bomb(tmp_path: Path, limits: Callable[..., None]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.array(["x" * MIB + str(row) for row in range(70)])
    table = arrow.table({"query": column, "labels": ["a"] * 70})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(DataError, match=r"a\.parquet: it unpacks to 7\d,\d+,\d+ bytes from"):
        read(tmp_path / "a.parquet")
    parquet.write_table(arrow.table({"query": ["a"] * 9, "labels": ["a"] * 9}), tmp_path / "b.parquet")
    limits(rows=8)
    with pytest.raises(DataError, match=r"b\.parquet: it announces 9 rows; the limit is 8"):
        read(tmp_path / "b.parquet")


# Run folders and exports


def test_two_billion_labels_of_a_run(run_copy: Path) -> None:
    for labels, message in (
        (2_000_000_000, "2,000,000,000 labels; the limit is"),
        (923, "923 labels, but heads.clf"),
        ("x", "'x' labels"),
    ):
        result = json.loads((run_copy / "result.json").read_text())
        result["data"]["labels"] = labels
        (run_copy / "result.json").write_text(json.dumps(result))
        with pytest.raises(StorageError, match=message):
            load_model(run_copy, default_registry())


@pytest.mark.parametrize("name", ["labels.jsonl", "result.json"])
@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"name": ' * 100_000, "[]", "{}", "null\n", '{"name": 1, "text": []}\n']
)
def test_deep_and_strange_json_of_a_run(run_copy: Path, name: str, content: str) -> None:
    (run_copy / name).write_text(content)
    with pytest.raises(StorageError, match="damaged"):
        load_model(run_copy, default_registry())
        load_labels(run_copy)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{}", '{"format": 1}'])
def test_deep_and_strange_json_of_an_export(exported: Path, content: str) -> None:
    (exported / "index.json").write_text(content)
    with pytest.raises(StorageError, match="damaged"):
        open_predictor(exported, default_registry(), "cpu")


def test_large_json(run_copy: Path, exported: Path, limits: Callable[..., None]) -> None:
    limits(document=100)
    for folder, error in ((run_copy, StorageError), (exported, StorageError)):
        with pytest.raises(error, match=r"the limit is 100 .*XMCLAB_LIMITS=document="):
            open_predictor(folder, default_registry(), "cpu")
    with pytest.raises(DataError, match=r"the limit is 100 .*XMCLAB_LIMITS=document="):
        read_run(run_copy)
    limits(records=100)
    with pytest.raises(DataError, match=r"metrics\.jsonl has .* bytes; the limit is 100"):
        read_run(run_copy)
    limits(line=20)
    with pytest.raises(StorageError, match=r"a line of \d+ bytes; the limit is 20"):
        load_labels(run_copy)


BILLION = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(("content", "message"), [
    (BILLION, "aliases"),
    ("a: " + "[" * 1000, "nested deeper than 20"),
    ("a: " + "x" * 1_000_001, "larger than 1,000,000 bytes"),
    ("a: 1" + ":1" * 200_000, "not a plain value"),
    ("a: !!python/object/apply:os.getcwd []", ""),
    ("a: !!binary abc", "not a plain value"),
    ("? [a]\n: 1", "plain word"),
    ("- a", "must be a mapping"),
    ("", "must be a mapping"),
    ("epochs: 2", ""),
], ids=["aliases", "depth", "size", "number", "code", "binary", "key", "list", "empty", "no seed"])  # fmt: skip
def test_a_strange_config_of_a_run_is_refused_at_once(run_copy: Path, content: str, message: str, call: Call) -> None:
    (run_copy / "config.yaml").write_text(content)
    before = time.perf_counter()
    code, _, err = call("report", run_copy, "--out", run_copy.parent / "report")
    assert code == 3, err
    assert message in err
    assert err.startswith("error: ")
    assert time.perf_counter() - before < QUICK


def test_a_config_is_read_as_it_was_written(small_run: Path) -> None:
    import yaml

    assert read_plain(small_run / "config.yaml") == yaml.safe_load((small_run / "config.yaml").read_text())


@pytest.mark.parametrize("prefix", ["key_", "sampler.key_", "loss.clf.key_", "reader.key_"])
def test_a_recipe_of_unknown_keys_is_refused_soon(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "r.yaml").write_text("".join(f"{prefix}{row}: {row}\n" for row in range(20_000)))
    before = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        resolve([f"recipe={tmp_path / 'r.yaml'}"], default_registry())
    assert time.perf_counter() - before < QUICK
    assert len(caught.value.problems) == 21
    assert str(caught.value.problems[-1]) == "... and 19,980 more unknown keys"


def test_a_spec_of_unknown_keys_is_refused_soon(tmp_path: Path, call: Call) -> None:
    (tmp_path / "s.yaml").write_text("rows: {a: [epochs=1]}\n" + "".join(f"key_{row}: 1\n" for row in range(20_000)))
    before = time.perf_counter()
    code, _, err = call("bench", tmp_path / "s.yaml", "--dry-run")
    assert (code, err.splitlines()[-1]) == (2, "error: ... and 19,980 more unknown keys")
    assert time.perf_counter() - before < QUICK


@pytest.mark.parametrize("key", ["loss.clf", "tracker", "baseline"])
def test_a_long_expression_is_refused(tmp_path: Path, key: str) -> None:
    (tmp_path / "r.yaml").write_text(f"{key}: {'+'.join(f'x{row}' for row in range(100_000))}\n")
    with pytest.raises(ConfigError, match="longer than 10,000 characters"):
        resolve([f"recipe={tmp_path / 'r.yaml'}"], default_registry())


# Out of memory


@pytest.mark.parametrize(("error", "reason"), [
    (MemoryError(), "allocation failed"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12 GiB\nmore"), "CUDA out of memory. Tried to allocate 12 GiB"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"), "[enforce fail] DefaultCPUAllocator: can't allocate"),
    (OSError(12, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
    (RuntimeError("something else"), None),
    (OSError(2, "No such file"), None),
    (ValueError("Cannot allocate memory"), None),
])  # fmt: skip
def test_out_of_memory_is_recognised(error: Exception, reason: str | None) -> None:
    assert out_of_memory(error) == reason


def test_what_libraries_raise_is_recognised() -> None:
    for allocate in (lambda: np.empty(1 << 50), lambda: torch.empty(1 << 50)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert out_of_memory(caught.value)


@pytest.mark.parametrize(("arguments", "where"), [
    (["predict", "RUN", "--text", "plot"], "xmclab.serve.predictor.Predictor.rank_all"),
    (["eval", "RUN"], "xmclab.serve.predictor.Predictor.rank_all"),
    (["export", "RUN", "--to", "OUT"], "xmclab.serve.export.write_export"),
    (["score", "--pred", "P", "--truth", "P", "--train", "P"], "xmclab_datatools.score.score.__globals__"),
    (["data", "check", "tiny"], "xmclab.data.open_data"),
    (["run", "data=tiny", "--out", "OUT"], "xmclab.runs.run.open_with_validation"),
    (["report", "RUN", "--out", "OUT"], "xmclab_bench.report.compare_folders"),
    (["bench", "losses", "--dry-run"], "xmclab_bench.spec.load_spec"),
])  # fmt: skip
def test_out_of_memory_anywhere_exits_6(
    arguments: list[str], where: str, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    if "__globals__" in where:
        monkeypatch.setattr("xmclab_datatools.rankings.read_matrix", fail)
        monkeypatch.setattr("xmclab.data.sparse.read_matrix", fail)
    else:
        monkeypatch.setattr(where, fail)
    words = [{"RUN": small_run, "OUT": tmp_path / "out"}.get(word, word) for word in arguments]
    code, _, err = call(*words)
    assert code == 6, err
    assert re.fullmatch(r"error: out of memory: Unable to allocate 2 PiB \(.+\)", err.splitlines()[-1])
    assert "Traceback" not in err


def test_out_of_memory_in_a_plugin_is_not_its_fault(tmp_path: Path, call: Call) -> None:
    (tmp_path / "hungry.py").write_text(
        "from dataclasses import dataclass\nfrom xmclab import hookimpl, part\nfrom xmclab.api import Reader\n"
        "@dataclass\nclass Hungry(Reader):\n    '''Reads nothing.'''\n"
        "    def matches(self, folder):\n        return False\n"
        "    def read(self, folder):\n        raise MemoryError('2 PiB')\n"
        "@hookimpl\ndef xmclab_parts():\n    return [part('reader', 'hungry', Hungry)]\n"
    )
    code, _, err = call("run", f"plugin={tmp_path / 'hungry.py'}", "reader=hungry", f"data={tmp_path}")
    assert (code, err.count("\n")) == (6, 1)
    assert err.startswith("error: out of memory: 2 PiB (lower ")


def test_a_process_without_memory_exits_6(small_run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "q.txt"
    texts.write_text("plot functions and data\n" * 200_000)
    code, err = alone("predict", small_run, "--input", texts, "-k", "900", "--out", tmp_path / "out", memory=24 * MIB)
    assert code == 6, err
    assert err.splitlines()[-1].startswith("error: out of memory: ")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


# encode.chunk=auto

AUTO = ("encode.chunk=auto", "head.de.dropout=0", "head.clf.dropout=0", "encoder.feature_dropout=0")


class Scarce:
    """Memory for this many texts at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, texts: int) -> None:
        self.texts, self.refused = texts, 0
        from xmclab.model.encoders.bag import Bag

        forward = Bag.forward

        def scarce(encoder: Any, tokens: Any, side: Any = "query") -> Any:
            x_BD = forward(encoder, tokens, side)
            if torch.is_grad_enabled() and len(x_BD) > self.texts:
                self.refused += 1
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")
            return x_BD

        monkeypatch.setattr(Bag, "forward", scarce)


def losses_of(trainer: Trainer, steps: int = 3) -> list[float]:
    return [
        trainer.step(step, batch)["loss"]
        for step, batch in zip(range(steps), trainer.batches(trainer.plan(0, None)[:steps], 0), strict=True)
    ]


@pytest.mark.parametrize("more", [[], ["reduction.clf=pal_n"]])
def test_the_chunk_is_lowered_until_memory_suffices(
    small_trainer: Callable[..., Trainer],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = losses_of(small_trainer(*AUTO, "encode.chunk=0", *more))
    scarce = Scarce(monkeypatch, 50)
    trainer = small_trainer(*AUTO, *more)
    with caplog.at_level("INFO", "xmclab.training"):
        found = losses_of(trainer)
    assert scarce.refused >= 2
    assert 25 <= trainer.chunk <= 50
    assert found == pytest.approx(expected, rel=1e-6)
    assert f"encode.chunk=auto goes on with {trainer.chunk} texts at once" in caplog.messages[-1]


def test_a_step_that_has_updated_a_table_is_not_repeated(
    small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_trainer(*AUTO, "optim.clip=0", "reduction.clf=pal_n")
    batch = next(iter(trainer.batches(trainer.plan(0, None)[:1], 0)))
    table = trainer.model.head("clf").label_rows
    before = table.weight.clone()  # type: ignore[union-attr]
    monkeypatch.setattr("xmclab.training.trainer.ChunkedEncoding.backward", fail)
    with pytest.raises(MemoryLimitError):
        trainer.step(0, batch)
    assert trainer.optimizers.rows is not None
    assert len(trainer.optimizers.rows.steps) == 1
    assert not torch.equal(before, table.weight)  # type: ignore[union-attr]


def fail(*_: Any, **__: Any) -> Any:
    raise MemoryError("Unable to allocate 2 PiB")


def test_it_gives_up_at_one_text(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    Scarce(monkeypatch, 0)
    with pytest.raises(MemoryLimitError) as caught:
        losses_of(small_trainer(*AUTO, "sampler.batch_size=32"))
    (problem,) = caught.value.problems
    assert problem.where == "out of memory in step 0"
    numbers = r"[\d,]+ queries, [\d,]+ labels in the pool, [\d,]+ tokens, chunk 1, float32"
    assert re.fullmatch(rf"DefaultCPUAllocator: .*allocate 99 bytes; {numbers}", problem.message)
    assert "encode.chunk" in problem.hint


def test_a_fixed_chunk_is_kept(small_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    scarce = Scarce(monkeypatch, 50)
    with pytest.raises(MemoryLimitError, match="chunk 100, float32"):
        losses_of(small_trainer(*AUTO, "encode.chunk=100"))
    assert scarce.refused == 1


@pytest.mark.parametrize("chunk", ["-1", "many", "1.5"])
def test_a_chunk_is_a_number_or_auto(chunk: str) -> None:
    with pytest.raises(ConfigError, match=r"encode\.chunk: "):
        resolve([f"encode.chunk={chunk}"], default_registry())
    assert resolve(["encode.chunk=auto"], default_registry()).settings.encode.chunk == "auto"
    assert resolve(["encode.chunk=7"], default_registry()).settings.encode.chunk == 7


# Damage at random: a message or success, never a traceback

SPLICES = (b"", b"-", b"0", b"9" * 30, b"9" * 5000, b"null", b"[[[[", b'"', b"\xff", b"\x00", b"\n", b"1e999", b"NaN", b"{}")


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
    try:
        use()
    except XmclabError:
        pass
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


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "metrics.jsonl", "result.json", "labels.jsonl", "points.npz", "indexes.json", "encoder/features.json", "encoder/idf.npy", "model.safetensors"])
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


@pytest.mark.parametrize("name", ["index.json", "config.yaml", "labels.jsonl", "weights.safetensors", "vectors/de.npy", "encoder/features.json", "encoder/idf.npy"])
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
