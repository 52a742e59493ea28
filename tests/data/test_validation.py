"""Validation queries: which ones they are, in every layout, and what is refused."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmclab.data import open_data
from xmclab.data.holdout import drawn, key_of
from xmclab.data.validation import ENOUGH, Opened, open_with_validation
from xmclab.errors import ConfigError, DataError
from xmclab.evaluation.scoring import Evaluator
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

LABELS = ["shoes", "socks", "gloves"]
TRAIN = [("red shoes", [0]), ("warm socks", [1]), ("thin socks", [1]), ("red shoes", [0]), ("mittens", [2])]
TEST = [("boots", [0])]
VALID = [("sandals", [0]), ("stockings", [1, 2])]
LAYOUTS = ("lf_json", "raw_text", "table")


def opened(*overrides: object) -> Opened:
    return open_with_validation(resolve([str(override) for override in overrides], default_registry()))


def error_of(*overrides: object, kind: type[DataError | ConfigError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        opened(*overrides)
    return "\n".join(map(str, caught.value.problems))


def write(folder: Path, layout: str, labels: list[str] = LABELS, **halves: Any) -> Path:
    """A folder with these queries (train=..., test=...), each with its text and the ids of its labels."""
    folder.mkdir()
    short = {"train": "trn", "test": "tst"}
    if layout == "raw_text":
        (folder / "Y.txt").write_text("".join(f"{label}\n" for label in labels))
    elif layout == "lf_json":
        (folder / "lbl.json").write_text("".join(json.dumps({"title": label}) + "\n" for label in labels))
    for half, rows in halves.items():
        if layout == "raw_text":
            (folder / f"{short[half]}_X.txt").write_text("".join(f"{text}\n" for text, _ in rows))
            lines = (" ".join(f"{label}:1" for label in ids) + "\n" for _, ids in rows)
            (folder / f"{short[half]}_X_Y.txt").write_text("".join(lines))
        elif layout == "lf_json":
            lines = (json.dumps({"title": text, "target_ind": ids}) + "\n" for text, ids in rows)
            (folder / f"{short[half]}.json").write_text("".join(lines))
        else:
            lines = (f"{text},{'|'.join(labels[label] for label in ids)}\n" for text, ids in rows)
            (folder / f"{half}.csv").write_text("query,labels\n" + "".join(lines))
    return folder


def pairs(texts: Any, labels: Any, matrix: Any) -> set[tuple[str, str]]:
    return {(texts[row], labels[column]) for row, column in zip(*matrix.nonzero(), strict=True)}


def test_without_validation_the_data_is_that_of_open_data() -> None:
    found = opened("data=tiny")
    assert found.training is found.whole
    assert found.validation is None
    assert found.whole.fingerprint == open_data(resolve(["data=tiny"], default_registry())).fingerprint


def test_a_share_is_taken_from_the_training_queries_and_nothing_else_changes() -> None:
    found = opened("data=tiny", "validate.share=0.1")
    whole, training, validation = found.whole, found.training, found.validation
    assert validation
    assert len(validation.test) == 126
    assert sorted([*training.train.texts, *validation.test.texts]) == sorted(whole.train.texts)
    assert not set(training.train.texts) & set(validation.test.texts)
    assert list(whole.train.texts) == list(opened("data=tiny").whole.train.texts)
    assert list(validation.label_texts) == list(whole.label_texts)
    before = dict(zip(whole.train.names, whole.train.targets_NL.toarray(), strict=True))
    for name, row in zip(training.train.names, training.train.targets_NL.toarray(), strict=True):
        assert np.array_equal(row, before[name])


def single_table(folder: Path, rows: int) -> Path:
    path = folder / f"mine{rows}.csv"
    path.write_text("query,labels\n" + "".join(f"query {row},{LABELS[row % 3]}\n" for row in range(rows)))
    return path


def test_a_single_table_is_validated_by_default_if_it_is_large_enough(tmp_path: Path) -> None:
    table = single_table(tmp_path, ENOUGH * 10 // 9 + 2)
    found = opened(f"data={table}")
    assert found.validation
    assert found.by_default
    assert len(found.validation.test) == round(0.1 * len(found.whole.train))
    assert len(found.training.train) + len(found.validation.test) == len(found.whole.train)
    assert opened(f"data={table}", "validate.share=0").validation is None
    asked = opened(f"data={table}", "validate.share=0.2")
    assert asked.validation
    assert not asked.by_default
    assert opened(f"data={single_table(tmp_path, ENOUGH)}").validation is None


def test_a_table_of_validation_queries_beside_the_others_is_used_by_default(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "table", train=TRAIN, test=TEST, valid=VALID)
    found = opened(f"data={data}")
    assert found.validation
    assert found.by_default
    assert list(found.validation.test.texts) == [text for text, _ in VALID]
    assert list(found.training.train.texts) == [text for text, _ in TRAIN]
    assert opened(f"data={data}", "validate.share=0").validation is None
    (data / "valid.csv").write_text("query,labels\nsandals,hats\n")
    assert "hats" in opened(f"data={data}").whole.label_texts, "a label that only validation queries have is one"


def test_layouts_with_a_test_part_are_not_validated_by_default(tmp_path: Path) -> None:
    many = [(f"query {row}", [row % 3]) for row in range(2 * ENOUGH)]
    for layout in LAYOUTS:
        assert opened(f"data={write(tmp_path / layout, layout, train=many, test=TEST)}").validation is None


def test_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [(f"text {number % 7}", [number % 3]) for number in range(50)]
    found = opened(f"data={write(tmp_path / 'data', 'lf_json', train=rows, test=TEST)}", "validate.share=0.3")
    assert found.validation
    assert not set(found.training.train.texts) & set(found.validation.test.texts)
    assert len(found.training.train) + len(found.validation.test) == 50


def test_the_cut_depends_neither_on_the_seed_nor_on_the_process() -> None:
    here = opened("data=tiny", "validate.share=0.05", "seed=0").validation
    code = (
        "from xmclab.data.validation import open_with_validation as opened\n"
        "from xmclab.host import default_registry, resolve\n"
        "found = opened(resolve(['data=tiny', 'validate.share=0.05', 'seed=7'], default_registry()))\n"
        "print(*found.validation.test.names)"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert here
    assert there.stdout.split() == list(here.test.names)


def test_answers_are_filtered_as_in_the_test_set() -> None:
    """By a double loop: a query with itself, and with training queries that have it as a label."""
    found = opened("data=tiny", "validate.share=0.2")
    assert found.validation
    held, train, labels = found.validation.test, found.training.train, list(found.whole.label_texts)
    trained = pairs(train.texts, labels, train.targets_NL)
    own = {(text, text) for text in held.texts if text in labels}
    back = {(a, b) for b, a in trained if a in set(held.texts) and b in labels}
    assert back
    assert pairs(held.texts, labels, held.filter_NL) == own | back
    truth = pairs(found.whole.train.texts, labels, found.whole.train.targets_NL)
    assert pairs(held.texts, labels, held.targets_NL) == {p for p in truth if p[0] in set(held.texts)} - own - back


def test_where_the_test_set_filters_nothing_neither_does_validation(tmp_path: Path) -> None:
    rows = [(text, [label]) for label, text in enumerate(LABELS)] * 10
    found = opened(f"data={write(tmp_path / 'data', 'raw_text', train=rows, test=TEST)}", "validate.share=0.3")
    assert found.validation
    assert found.validation.test.filter_NL.nnz == 0
    assert found.validation.test.targets_NL.nnz == len(found.validation.test)


def test_labels_of_the_same_text_are_spared_in_training_alone(tmp_path: Path) -> None:
    rows = [(f"text {number}", [number % 2]) for number in range(20)]
    data = write(tmp_path / "data", "lf_json", ["a", "b", "a"], train=rows, test=TEST)
    found = opened(f"data={data}", "validate.share=0.5", "data.merge_same_text=true")
    assert found.validation
    assert found.training.train.filter_NL.nnz > 0
    assert found.validation.test.filter_NL.nnz == 0


def test_propensities_are_those_of_the_queries_that_are_left(tmp_path: Path) -> None:
    """The test queries keep their own: they are measured the same with validation and without."""
    rows = [(f"text {number}", [number % 2]) for number in range(40)]
    valid = write(tmp_path / "valid", "lf_json", test=VALID)
    data = write(tmp_path / "data", "lf_json", train=rows, test=TEST)
    unseen = opened(f"data={data}", f"validate.file={valid}").validation  # gloves have no training query
    assert unseen
    weights_L = Evaluator.of_data(unseen).weights_L
    assert weights_L[2] > weights_L[0]
    assert unseen.test.targets_NL.toarray()[1].tolist() == [0, 1, 1]

    found = opened("data=tiny", "validate.share=0.3")
    plain = opened("data=tiny")
    assert found.validation
    assert np.array_equal(Evaluator.of_data(found.whole).weights_L, Evaluator.of_data(plain.whole).weights_L)
    assert np.array_equal(Evaluator.of_data(found.validation).train_NL.data, found.training.train.targets_NL.data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_of_test_queries_in_the_layout_of_the_data(tmp_path: Path, layout: str) -> None:
    data = write(tmp_path / "data", layout, train=TRAIN, test=TEST)
    found = opened(f"data={data}", f"validate.file={write(tmp_path / 'valid', layout, test=VALID)}")
    assert found.training is found.whole
    assert found.validation
    assert list(found.validation.test.texts) == ["sandals", "stockings"]
    assert found.validation.test.targets_NL.toarray().tolist() == [[1, 0, 0], [0, 1, 1]]
    assert list(found.whole.test.texts) == ["boots"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_with_other_labels_is_refused(tmp_path: Path, layout: str) -> None:
    data = write(tmp_path / "data", layout, train=TRAIN, test=TEST)
    valid = write(tmp_path / "valid", layout, ["hats", "socks", "gloves"], test=VALID)
    reason = f"validate.file={valid}: its 3 labels are not the 3 of data, in the same order"
    if layout == "table":
        reason = f"{valid}/test.csv:2: label 'hats' is not in train.csv"
    assert error_of(f"data={data}", f"validate.file={valid}") == reason


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_without_any_label_are_refused(tmp_path: Path, layout: str) -> None:
    data = write(tmp_path / "data", layout, train=TRAIN, test=TEST)
    valid = write(tmp_path / "valid", layout, test=[(text, []) for text, _ in VALID])
    assert "no query has a label" in error_of(f"data={data}", f"validate.file={valid}")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("lf_json", "other/tst.json.gz: missing"),
        ("raw_text", "other/tst_X.txt: missing"),
        ("table", "other: no table of test queries"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, layout: str, message: str) -> None:
    data = write(tmp_path / "data", layout, train=TRAIN, test=TEST)
    other = write(tmp_path / "other", "raw_text" if layout == "lf_json" else "lf_json", test=VALID)
    assert message in error_of(f"data={data}", f"validate.file={other}")
    (tmp_path / "valid.txt").touch()
    said = error_of(f"data={data}", f"validate.file={tmp_path / 'valid.txt'}")
    assert f"valid.txt: reader {layout} does not read such a file" in said


def test_filter_pairs_of_a_folder_and_of_a_table(tmp_path: Path) -> None:
    valid = write(tmp_path / "valid", "lf_json", test=VALID)
    (valid / "filter_labels_test.txt").write_text("1 0\n")
    data = write(tmp_path / "data", "lf_json", train=TRAIN, test=TEST)
    tables = write(tmp_path / "tables", "table", train=TRAIN, test=TEST)
    (tables / "valid.csv").write_text("query,labels\nsandals,shoes\nstockings,socks|gloves\n")
    (tables / "filter_labels_valid.txt").write_text("1 0\n")
    (tables / "filter_labels_test.txt").write_text("0 1\n")
    for folder, file in ((data, valid), (tables, tables / "valid.csv")):
        found = opened(f"data={folder}", f"validate.file={file}").validation
        assert found
        assert found.test.filter_NL.toarray().tolist() == [[0, 0, 0], [1, 0, 0]]


def test_validation_queries_are_read_as_those_of_the_data(tmp_path: Path) -> None:
    """By their contents, from a table with labels that have none, or from a folder."""
    table = tmp_path / "shop.csv"
    table.write_text("query,content,labels\nbun,round,bread\npie,flat,fruit\nbrie,soft,cheese\n")
    (tmp_path / "valid.csv").write_text("query,content,labels\nbaguette,long,bread\n")
    for name in ("data", "valid"):
        write(tmp_path / name, "lf_json", train=TRAIN, test=TEST)
        for half in ("trn", "tst"):
            record = {"title": "bun", "content": f"{half} of {name}", "target_ind": [0]}
            (tmp_path / name / f"{half}.json").write_text(json.dumps(record) + "\n")
    expected = {table: ["long"], tmp_path / "data": ["tst of valid"]}
    for data, file in ((table, tmp_path / "valid.csv"), (tmp_path / "data", tmp_path / "valid")):
        found = opened(f"data={data}", f"validate.file={file}", "data.query_text=content").validation
        assert found
        assert found.test.texts == expected[data]


def test_a_reader_of_a_plugin_gives_the_test_queries_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(
        "from dataclasses import dataclass\n"
        "import xmclab\n"
        "from xmclab.data.readers.lf_json import LabelFeatureJson\n"
        "from xmclab.api import Reader\n\n"
        "@dataclass\n"
        "class Mine(LabelFeatureJson):\n"
        '    """Mine."""\n'
        "    read_queries = Reader.read_queries\n\n"
        "@xmclab.hookimpl\n"
        "def xmclab_parts():\n"
        "    return [xmclab.part('reader', 'mine', Mine)]\n"
    )
    data, valid = (
        write(tmp_path / name, "lf_json", train=TRAIN, test=rows) for name, rows in (("data", TEST), ("valid", VALID))
    )
    plugin = f"plugin={tmp_path / 'plugin.py'}", "reader=mine"
    found = opened(*plugin, f"data={data}", f"validate.file={valid}")
    assert found.validation
    assert list(found.validation.test.texts) == ["sandals", "stockings"]
    other = write(tmp_path / "other", "lf_json", LABELS[::-1], train=TRAIN, test=VALID)
    assert "in the same order" in error_of(*plugin, f"data={data}", f"validate.file={other}")
    bare = write(tmp_path / "bare", "lf_json", train=TRAIN, test=[("a", [])])
    assert "none of its 1 queries has a label" in error_of(*plugin, f"data={data}", f"validate.file={bare}")


def test_queries_on_both_sides_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = write(tmp_path / "data", "table", train=TRAIN, test=TEST)
    with caplog.at_level(logging.WARNING):
        opened(f"data={data}", f"validate.file={data / 'train.csv'}")
        opened(f"data={data}", f"validate.file={data / 'test.csv'}")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"validate.file={data / 'train.csv'}: 5 of 5 validation queries are also training queries",
        f"validate.file={data / 'test.csv'}: 1 of 1 validation queries are also test queries",
    ]


def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    same = write(tmp_path / "same", "lf_json", train=[("text", [0])] * 9, test=TEST)
    message = "cannot hold out validation queries from 9 queries with 1 distinct texts"
    assert f"validate.share=0.1: {message}" in error_of(f"data={same}", "validate.share=0.1")
    data = write(tmp_path / "data", "lf_json", train=TRAIN, test=TEST)
    assert "validate.share=0.99: cannot hold out" in error_of(f"data={data}", "validate.share=0.99")
    for share in (1, -0.1):
        with pytest.raises(ConfigError, match=r"validate\.share"):
            resolve([f"validate.share={share}"], default_registry())


def test_a_share_without_labels_on_one_side_is_refused(tmp_path: Path) -> None:
    rows = [(f"text {number}", []) for number in range(20)]
    data = write(tmp_path / "data", "lf_json", train=rows, test=TEST) / "trn.json"
    queries = [json.loads(line) for line in data.read_text().splitlines()]
    held = {
        True: "validate.share=0.5: none of the 10 validation queries has a label",
        False: "no query left for training has a label",
    }
    chosen = drawn(np.array([key_of(query["title"]) for query in queries], dtype=np.uint64), 0.5)
    for side, message in held.items():
        lines = [
            {**query, "target_ind": [0] if one != side else []} for query, one in zip(queries, chosen, strict=True)
        ]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert message in error_of(f"data={data.parent}", "validate.share=0.5")


def test_a_share_and_a_file_are_refused(tmp_path: Path) -> None:
    said = error_of("data=tiny", "validate.share=0.1", f"validate.file={tmp_path}", kind=ConfigError)
    assert said.startswith("validate.share and validate.file: both are set")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    where = f"validate.file={tmp_path / 'nowhere'}"
    assert error_of("data=tiny", where) == f"{where}: no such file or folder"
