"""Bad data as a user meets it: the exit code, one clear message, no traceback, and nothing written.

13  a truncated or damaged archive
14  lines that are not JSON or lack a field
15  label indices out of range
16  a header that disagrees with the content
17  a label twice in one row
18  labels of the same text
19  empty texts
20  queries without labels
21  labels without a training query
22  bytes that are not UTF-8, byte order marks, other line ends, very long lines
23  a missing filter file, filter pairs out of range
27  nothing at all, or one query and one label
    files of negatives that are missing, belong to another set or have ids out of range

What every reader says about every kind of bad line is in tests/data; here the whole program runs.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_sets import SMALL_BAG

from xmclab import cli
from xmclab.data import open_dataset
from xmclab.data.propensity import inverse_propensity
from xmclab.host.registry import default_registry
from xmclab.runs.store import load_model

LABELS = [
    {"uid": name, "title": title} for name, title in (("a", "red apple"), ("b", "rye bread"), ("c", "old cheese"))
]
TRAIN = [{"uid": f"q{row}", "title": f"fruit {row} of {row % 3}", "target_ind": [row % 2]} for row in range(8)]
TEST = [{"uid": f"t{row}", "title": f"fruit {row}", "target_ind": [row % 3]} for row in range(3)]


class Folder:
    """A data set that can be spoilt, and a program that is run on it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.patch, self.capsys = path / "data", patch, capsys
        self.path.mkdir()
        for name, records in (("trn", TRAIN), ("tst", TEST), ("lbl", LABELS)):
            self.write(f"{name}.json.gz", *records)
        for half in ("train", "test"):
            (self.path / f"filter_labels_{half}.txt").touch()
        self.out = path / "run"

    def write(self, name: str, *lines: Any) -> None:
        text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        (self.path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    def call(self, *arguments: str) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["xmclab", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        output = self.capsys.readouterr()
        assert "Traceback" not in output.err
        assert isinstance(caught.value.code, int)
        return caught.value.code, output.out, output.err

    def refused(self) -> str:
        """What stderr says of a set that neither `run` nor `check` takes."""
        code, out, err = self.call("run", *SMALL_BAG, f"data={self.path}", "--out", str(self.out))
        assert (code, out) == (3, "")
        assert not self.out.exists()
        assert all(line.startswith("error: ") for line in err.splitlines())
        code, out, checked = self.call("data", "check", str(self.path))
        assert (code, out, checked) == (3, "", err)
        return err

    def trained(self, *overrides: str) -> tuple[list[dict[str, Any]], str]:
        """The records of a run that must go well, with finite losses and metrics; and what stderr says."""
        code, out, err = self.call("run", *SMALL_BAG, f"data={self.path}", "--out", str(self.out), "--json", *overrides)
        assert code == 0, err
        for metrics in json.loads(out)["metrics"].values():
            assert all(map(math.isfinite, metrics.values()))
        records = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        steps = [record for record in records if record["event"] == "step"]
        assert steps
        assert all(math.isfinite(record["loss"]) for record in steps)
        return records, err

    def warnings(self) -> list[str]:
        code, out, _ = self.call("data", "check", str(self.path), "--json")
        assert code == 0
        return list(json.loads(out)["warnings"])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Folder:
    return Folder(tmp_path, monkeypatch, capsys)


def test_the_unspoilt_set_trains_without_a_word(data: Folder) -> None:
    data.trained()
    assert data.warnings() == ["1 labels have no training query: only their text can match them"]


def test_13_truncated_archive(data: Folder) -> None:
    data.write("trn.json.gz", *({"title": f"query {row * 7919 % 10007}", "target_ind": [0]} for row in range(5000)))
    packed = (data.path / "trn.json.gz").read_bytes()
    (data.path / "trn.json.gz").write_bytes(packed[: len(packed) // 2])
    message = data.refused()
    assert f"error: {data.path / 'trn.json.gz'}: truncated: the archive ends after " in message
    assert int(message.split(" after ")[1].split(" lines")[0].replace(",", "")) > 100


def test_13_wrong_checksum(data: Folder) -> None:
    packed = bytearray((data.path / "tst.json.gz").read_bytes())
    packed[-8] ^= 0xFF
    (data.path / "tst.json.gz").write_bytes(packed)
    message = data.refused()
    assert message.startswith(f"error: {data.path / 'tst.json.gz'}: damaged archive after ")
    assert "CRC check failed" in message


def test_14_bad_lines_are_counted_and_the_first_five_of_each_kind_shown(data: Folder) -> None:
    bad = ["{broken"] * 7 + ['{"target_ind": [0]}'] * 6 + ['{"title": "t"}']
    data.write("trn.json.gz", TRAIN[0], *bad)
    lines = data.refused().splitlines()
    file = data.path / "trn.json.gz"
    assert [line for line in lines if "not JSON" in line] == [
        f"error: {file}:{number}: not JSON: '{{broken'" for number in range(2, 7)
    ]
    assert [line.split(":")[2] for line in lines if "lacks 'title'" in line] == ["9", "10", "11", "12", "13"]
    assert [line.split(":")[2] for line in lines if "'target_ind' is missing" in line] == ["15"]
    assert "14 bad lines in total (14 in trn.json.gz)" in lines[-1]


@pytest.mark.parametrize("index", [3, -1, 10**18])
def test_15_label_index_out_of_range(data: Folder, index: int) -> None:
    data.write("trn.json.gz", *TRAIN, {"title": "t", "target_ind": [0, index]})
    expected = (
        f"{data.path / 'trn.json.gz'}:9: label index {index} is out of range: lbl.json.gz has 3 labels, counted from 0"
    )
    assert data.refused() == f"error: {expected}\n"


@pytest.mark.parametrize("header", ["7 3", "8 4"])
def test_16_header_disagrees_with_the_content(data: Folder, header: str) -> None:
    for name, records in (("trn_X.txt", TRAIN), ("tst_X.txt", TEST), ("Y.txt", LABELS)):
        data.write(name, *(str(record["title"]) for record in records))
    for name, records in (("trn", TRAIN), ("tst", TEST)):
        first = header if name == "trn" else "3 3"
        data.write(f"{name}_X_Y.txt", first, *(f"{record['target_ind'][0]}:1" for record in records))  # type: ignore[index]
        (data.path / f"{name}.json.gz").unlink()
    (data.path / "lbl.json.gz").unlink()
    rows, columns = header.split()
    says = f"{data.path / 'trn_X_Y.txt'}:1: the header says {rows} rows and {columns} columns"
    assert f"error: {says}, but there are 8 rows below it and 3 labels in Y.txt" in data.refused()


def test_17_duplicate_labels_of_a_query_count_once(data: Folder) -> None:
    data.write("trn.json.gz", *TRAIN[1:], {"title": "t", "target_ind": [1, 1, 0, 1]})
    assert any("trn.json.gz: ignored 2 duplicate labels of a query" in line for line in data.warnings())
    targets = open_dataset(str(data.path), "title", default_registry()).train.targets_NL
    np.testing.assert_array_equal(targets.toarray()[-1], [1, 1, 0])
    data.trained()


def test_18_labels_of_the_same_text(data: Folder) -> None:
    data.write("lbl.json.gz", LABELS[0], LABELS[1], {"title": "red apple"})
    assert any("lbl.json.gz: 1 labels share their text with another label" in line for line in data.warnings())
    data.trained()


def test_18_merged_they_are_not_each_others_negatives(data: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from xmclab.training.trainer import Trainer

    batches = []
    prepare = Trainer.prepare

    def watched(self: Trainer, *arguments: Any) -> Any:
        prepared = prepare(self, *arguments)
        batches.append(prepared.batch)
        return prepared

    monkeypatch.setattr(Trainer, "prepare", watched)
    data.write("lbl.json.gz", LABELS[0], {"title": "red apple"}, LABELS[2])
    data.trained("data.merge_same_text=true")
    (batch,) = batches
    labels = batch.labels_P.tolist()
    assert {0, 1} <= set(labels)
    row, column = (batch.positives[side].tolist() for side in (0, 1))
    true = set(zip(row, column, strict=True))
    ignored = set(zip(*(side.tolist() for side in batch.ignored), strict=True))
    twins = {(row, labels.index(1 - labels[column])) for row, column in true if labels[column] in (0, 1)}
    assert twins
    assert twins <= ignored | true


def test_19_empty_texts(data: Folder) -> None:
    data.write("lbl.json.gz", {"title": ""}, *LABELS[1:])
    data.write("trn.json.gz", {"title": "", "target_ind": [0]}, *TRAIN[1:], {"title": " ", "target_ind": [1]})
    data.write("tst.json.gz", {"title": "", "target_ind": [0]}, *TEST)
    warnings = "\n".join(data.warnings())
    assert "lbl.json.gz: 1 empty texts (line 1)" in warnings
    assert "trn.json.gz: 2 empty texts (line 1, 9)" in warnings
    assert "tst.json.gz: 1 empty texts (line 1)" in warnings
    data.trained()
    encoder = load_model(data.out, default_registry())[1].encoder
    assert encoder(encoder.collate(encoder.tokenise(["", " ", "fruit"]))).isfinite().all()


def test_20_queries_without_labels(data: Folder) -> None:
    data.write("trn.json.gz", {"title": "nothing", "target_ind": []}, *TRAIN)
    data.write("tst.json.gz", {"title": "nothing", "target_ind": []}, *TEST)
    warnings = "\n".join(data.warnings())
    assert "trn.json.gz: 1 queries have no label" in warnings
    assert "tst.json.gz: 1 queries have no label" in warnings
    records, _ = data.trained("sampler.batch_size=3")
    assert sum(record["event"] == "step" for record in records) == 3  # 8 queries with a label in batches of 3
    assert json.loads((data.out / "result.json").read_text())["data"]["test"] == 4


def test_21_label_without_a_training_query(data: Folder) -> None:
    train = open_dataset(str(data.path), "title", default_registry()).train.targets_NL
    assert train[:, [2]].nnz == 0
    assert np.isfinite(inverse_propensity(train, 0.55, 1.5)).all()
    data.trained()


def test_22_bytes_that_are_not_utf_8(data: Folder) -> None:
    first = json.dumps(TRAIN[0]).encode() + b"\n"
    data.write_bytes("trn.json.gz", first + b'{"title": "caf\xe9", "target_ind": [0]}\n')
    offset = len(first) + len(b'{"title": "caf')
    where = f"{data.path / 'trn.json.gz'}:2: not UTF-8: byte 0xe9 at offset {offset}"
    assert data.refused().startswith(f"error: {where}")


def test_22_byte_order_mark_crlf_and_a_line_of_a_megabyte(data: Folder) -> None:
    records = [*TRAIN, {"title": "word " * 200_000, "target_ind": [1]}]
    lines = "\r\n".join(map(json.dumps, records)) + "\r\n"
    data.write_bytes("trn.json.gz", b"\xef\xbb\xbf" + lines.encode())
    data.trained()
    assert json.loads((data.out / "result.json").read_text())["data"]["train"] == 9


def test_23_missing_filter_file(data: Folder) -> None:
    (data.path / "filter_labels_test.txt").unlink()
    said = "no filter_labels_test.txt or tst_filter_labels.txt; reciprocal pairs"
    assert any(said in line for line in data.warnings())
    data.trained()


@pytest.mark.parametrize(
    ("pair", "what"),
    [("8 0", "query 8"), ("0 3", "label 3"), ("-1 0", "query -1"), ("0 -1", "label -1")],
)
def test_23_filter_pair_out_of_range(data: Folder, pair: str, what: str) -> None:
    data.write("filter_labels_train.txt", "0 1", pair)
    assert data.refused().startswith(f"error: {data.path / 'filter_labels_train.txt'}:2: {what} is out of range")


@pytest.mark.parametrize("name", ["trn", "tst", "lbl"])
def test_27_no_rows_or_no_labels(data: Folder, name: str) -> None:
    data.write(f"{name}.json.gz")
    assert f"error: {data.path / f'{name}.json.gz'}: has no lines" in data.refused()


def test_27_one_query_and_one_label(data: Folder) -> None:
    for name in ("trn", "tst"):
        data.write(f"{name}.json.gz", {"title": "alone", "target_ind": [0]})
    data.write("lbl.json.gz", LABELS[0])
    records, _ = data.trained()
    assert sum(record["event"] == "step" for record in records) == 1


def test_words_without_texts_are_refused_with_the_reason(data: Folder) -> None:
    for file in data.path.iterdir():
        file.unlink()
    data.write("trn_X_Xf.txt", "1 2", "0:0.5 1:0.5")
    data.write("trn_X_Y.txt", "1 2", "0:1")
    assert "bag-of-words features (trn_X_Xf.txt) without the raw text" in data.refused()


def test_two_layouts_in_one_folder_are_a_question(data: Folder) -> None:
    data.write("train.csv", "query,labels", "red,a", "blue,b")
    code, out, err = data.call("run", *SMALL_BAG, f"data={data.path}", "--out", str(data.out))
    assert (code, out) == (2, "")
    assert err == (
        f"error: {data.path}: several readers recognise these files: lf_json, table "
        "(choose reader=lf_json or reader=table)\n"
    )
    data.trained("reader=lf_json")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("n.txt", "8 3\n" + "0:1\n" * 6 + "3:1\n0:1\n", "n.txt:8: label index 3 is out of range: the header says 3"),
        ("n.txt", "7 3\n" + "0:1\n" * 7, "n.txt: has 7 rows, but SET has 8 training queries"),
        ("n.txt", "8 4\n" + "0:1\n" * 8, "n.txt: has 4 labels, but SET has 3 labels"),
        (
            "n.jsonl",
            '{"query": "q7", "negatives": [0, 3]}\n',
            "n.jsonl:1: label index 3 is out of range: SET has",
        ),
        ("n.jsonl", '{"query": "q8", "negatives": [0]}\n', "n.jsonl:1: no training query has this name: 'q8'"),
        ("n.npz", "PK", "n.npz: not a scipy sparse matrix"),
        ("", "", "n.txt: no such file (miner=file draws negatives from it)"),
    ],
)
def test_a_file_of_negatives_that_does_not_fit(data: Folder, name: str, text: str, message: str) -> None:
    file = data.path.parent / (name or "n.txt")
    if name:
        file.write_text(text)
    command = ["run", *SMALL_BAG, f"data={data.path}", "miner=file", f"miner.file={file}", "--out", str(data.out)]
    code, out, err = data.call(*command)
    assert (code, out) == (3, "")
    assert message.replace("SET", data.path.name) in err
    assert not data.out.exists()
    assert data.call("plan", *command[1:-2])[0] == 3


def test_a_file_of_negatives_that_is_not_set(data: Folder) -> None:
    code, _, err = data.call("run", *SMALL_BAG, f"data={data.path}", "miner=file", "--out", str(data.out))
    assert (code, err) == (2, "error: miner=file: needs a file of negatives (set miner.file=PATH)\n")
    assert not data.out.exists()


def test_a_file_of_negatives_that_fits(data: Folder) -> None:
    file = data.path.parent / "n.jsonl"
    file.write_text("".join(f'{{"query": "q{row}", "negatives": ["c", {row % 2}]}}\n' for row in range(8)))
    records, err = data.trained("miner=file", f"miner.file={file}", "pool.eta=2")
    assert "8 negatives for 8 training queries, 0 have none; left out 8 positives and filter pairs" in err
    assert {record["missing_negatives"] for record in records if record["event"] == "step"} == {8}
