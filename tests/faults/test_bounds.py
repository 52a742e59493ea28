"""Memory and time outside training: no file makes a command take more of them than its limits allow."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from small_sets import read, tables

from xmclab.errors import ConfigError, DataError, StorageError
from xmclab.host.recipes import read_plain
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.store import load_labels, load_model
from xmclab.serve.open import open_predictor
from xmclab.serve.texts import TextFile
from xmclab.system.limits import LIMITS, limit
from xmclab_bench.run_folder import read_run
from xmclab_datatools.rankings import read_ranking

Call = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
QUICK = 20.0  # seconds, on a busy machine: without the bounds it is minutes
MIB = 1 << 20


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set limits as a user does."""

    def change(**chosen: object) -> None:
        monkeypatch.setenv("XMCLAB_LIMITS", ",".join(f"{name}={value}" for name, value in chosen.items()))

    return change


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
    table = page.partition("<!-- limits -->")[2].partition("<!-- /limits -->")[0].strip().splitlines()
    rows = [f"| `{name}` | {each.default:,} {each.unit} | {each.of} |" for name, each in LIMITS.items()]
    assert table == ["| limit | default | of |", "|---|---|---|", *rows]


# Lines and texts


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_long_line_is_named_and_never_held(tmp_path: Path, suffix: str) -> None:
    """A line of 20 MB, in a process that may take 40 MB more than its libraries."""
    file, piece = tmp_path / f"queries.txt{suffix}", random.Random(0).randbytes(MIB // 2).hex().encode()
    with gzip.open(file, "wb", compresslevel=1) if suffix else file.open("wb") as stream:
        stream.write(b"good\n")
        for _ in range(20):
            stream.write(piece)
        stream.write(b"\ngood again\n")
    few = {"XMCLAB_LIMITS": "line=1M"}
    code, err = alone("predict", tmp_path, "--input", file, memory=40 * MIB, environment=few)
    assert (code, err) == (
        3,
        f"error: {file}:2: a line of 20,971,521 bytes; the limit is 1,000,000 (XMCLAB_LIMITS=line=21M allows it)\n",
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
        open_predictor(run_copy, default_registry(), "cpu")


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


def test_a_process_without_memory_exits_6(small_run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "q.txt"
    texts.write_text("plot functions and data\n" * 200_000)
    code, err = alone("predict", small_run, "--input", texts, "-k", "900", "--out", tmp_path / "out", memory=24 * MIB)
    assert code == 6, err
    assert err.splitlines()[-1].startswith("error: out of memory: ")
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
