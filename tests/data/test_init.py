"""Opening data sets by name or folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xmclab.data import open_data, open_dataset, with_reader
from xmclab.errors import ConfigError, DataError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

EMBEDDED = Path(sys.modules["xmclab.data"].__file__ or "").parent / "embedded"


@pytest.mark.parametrize(
    ("name", "sizes", "positives", "filters"),
    [
        ("debian", (18_764, 5_710, 17_882), (3.87, 3.49), (7_972, 8_362)),
        ("tiny", (1_262, 399, 922), (2.81, 2.78), (173, 118)),
    ],
)
def test_embedded_sets_are_as_documented(
    name: str,
    sizes: tuple[int, ...],
    positives: tuple[float, ...],
    filters: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = open_dataset(name, "title", default_registry())
    assert data.name == name
    assert (len(data.train), len(data.test), data.num_labels) == sizes
    means = [round(split.targets_NL.nnz / len(split), 2) for split in (data.train, data.test)]
    assert means == list(positives)
    assert (data.train.filter_NL.nnz, data.test.filter_NL.nnz) == filters
    assert data.test.targets_NL.multiply(data.test.filter_NL).nnz == 0
    assert np.bincount(data.train.targets_NL.indices, minlength=data.num_labels).min() >= 1
    assert caplog.records == []


@pytest.mark.parametrize("name", ["debian", "tiny"])
def test_embedded_sets_state_provenance_and_licence(name: str) -> None:
    readme = (EMBEDDED / name / "README.md").read_text()
    assert "rovenance" in readme
    assert "icence" in readme


def test_a_folder_is_read_like_a_name(tmp_path: Path) -> None:
    shutil.copytree(EMBEDDED / "tiny", tmp_path / "my data é")
    by_folder = open_dataset(str(tmp_path / "my data é"), "title", default_registry())
    by_name = open_dataset("tiny", "title", default_registry())
    assert by_folder.name == "my data é"
    assert by_folder.fingerprint == by_name.fingerprint


def test_a_name_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert open_dataset("tiny", "title", default_registry()).num_labels == 922
    with pytest.raises(DataError, match="no reader recognises"):
        open_dataset("./tiny", "title", default_registry())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("debain", r"data=debain: no data set, folder or file of this name \(did you mean 'debian'\?\)"),
        ("qqqq", r"no data set, folder or file of this name \(known: debian, tiny\)"),
        (
            "./debian/nothing",
            r"data=\./debian/nothing: no such folder or file \(data sets known by name: debian, tiny\)",
        ),
        ("", "no data set, folder or file of this name"),
        (__file__, r"not a table file \(\.csv, \.tsv, \.jsonl, \.parquet\)"),
    ],
)
def test_sources_that_do_not_exist(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(source, "title", default_registry())
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("folder", ["", "./", "mine/"])
def test_a_file_of_nearly_that_name_is_suggested(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "related_items.csv").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset(f"{folder}related_item.csv", "title", default_registry())
    assert caught.value.problems[0].hint == f"did you mean '{folder.removeprefix('./')}related_items.csv'?"


def test_a_folder_that_no_reader_knows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no reader recognises the files in this folder") as caught:
        open_dataset(str(tmp_path), "title", default_registry())
    first, *readers = str(caught.value).splitlines()
    assert first == f"{tmp_path}: no reader recognises the files in this folder"
    assert len(readers) == len(default_registry().names("reader"))
    assert any(line.startswith("reader lf_json: Label-feature sets: `trn.json.gz`, `tst.json.gz`") for line in readers)


PLUGIN = '''
from dataclasses import dataclass
import xmclab
from xmclab.api import Reader
from xmclab.errors import DataError

@dataclass
class Unicorn(Reader):
    """Looks for unicorn.txt."""

    def matches(self, folder):
        return (folder / "unicorn.txt").exists()

    def read(self, folder):
        raise DataError(f"{self.text} of {folder.name}")

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("reader", "unicorn", Unicorn)]
'''


def test_a_plugin_reader_gets_the_folders_it_knows_and_the_text_choice(tmp_path: Path) -> None:
    (tmp_path / "unicorns.py").write_text(PLUGIN)
    registry = default_registry().with_file(tmp_path / "unicorns.py")
    with pytest.raises(DataError, match=r"unicorn: Looks for unicorn\.txt\."):
        open_dataset(str(tmp_path), "title", registry)
    (tmp_path / "unicorn.txt").touch()
    with pytest.raises(DataError, match=rf"title\+content of {tmp_path.name}"):
        open_dataset(str(tmp_path), "title+content", registry)


def test_import_does_not_load_torch() -> None:
    code = "import sys, xmclab.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def texts_and_json(folder: Path) -> Path:
    """A folder that two readers know."""
    shutil.copytree(EMBEDDED / "tiny", folder, dirs_exist_ok=True)
    for name in ("trn_X.txt", "tst_X.txt", "Y.txt"):
        (folder / name).write_text("one\n")
    for name in ("trn_X_Y.txt", "tst_X_Y.txt"):
        (folder / name).write_text("0:1\n")
    return folder


def test_several_readers_are_a_question(tmp_path: Path) -> None:
    overrides = [f"data={texts_and_json(tmp_path)}"]
    with pytest.raises(ConfigError, match=r"several readers recognise these files: lf_json, raw_text") as caught:
        open_data(resolve(overrides, default_registry()))
    assert caught.value.exit_code == 2
    assert "(choose reader=lf_json or reader=raw_text)" in str(caught.value)
    assert open_data(resolve([*overrides, "reader=lf_json"], default_registry())).num_labels == 922


def test_an_option_of_another_reader_is_refused() -> None:
    config = resolve(["data=tiny", "reader.separator=;"], default_registry())
    with pytest.raises(ConfigError) as caught:
        open_data(config)
    known = "reader.label_text, reader.query_text, reader.text"
    assert str(caught.value) == f"reader.separator: unknown key for reader 'lf_json' (known: {known})"
    assert caught.value.exit_code == 2


def test_the_reader_that_was_found_takes_the_place_of_auto() -> None:
    config = resolve(["data=tiny", "reader.text=title+content"], default_registry())
    found = with_reader(config)
    assert (config.choice("reader"), found.choice("reader")) == ("auto", "lf_json")
    assert found.make("reader").text == "title+content"
    assert with_reader(found) is found


def test_a_reader_that_is_found_reads_the_texts_of_each_side(tmp_path: Path) -> None:
    record = {"title": "socks", "content": "wool, grey"}
    for name in ("trn", "tst", "lbl"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record | {"target_ind": [0]}) + "\n")
    data = open_data(resolve([f"data={tmp_path}", "data.query_text=content"], default_registry()))
    assert (data.train.texts, data.test.texts, data.label_texts) == (["wool, grey"], ["wool, grey"], ["socks"])


def test_a_chosen_reader_that_does_not_know_the_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_data(resolve(["data=tiny", "reader=table"], default_registry()))
    assert "no table of training queries" in str(caught.value)
    hint = "reader=auto picks the reader that does"
    assert str(caught.value.problems[-1]) == f"reader=table: does not recognise these files ({hint})"


@pytest.mark.parametrize("names", [["trn_X_Xf.txt", "trn_X_Y.txt"], ["X.trn.npz", "Y.trn.npz"], ["train.txt"]])
def test_bags_of_words_are_refused_with_the_reason(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match=rf"bag-of-words features \({names[0]}\) without the raw text"):
        open_dataset(str(tmp_path), "title", default_registry())


def test_the_options_reach_the_reader(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("frage,antworten\nred,a+b\nblue,b\ngreen,a\n")
    overrides = [f"data={tmp_path / 'own.csv'}", "reader.query=frage", "reader.labels=antworten", "reader.separator=+"]
    for reader in ("auto", "table"):
        config = resolve([*overrides, "reader.test_share=0.34", f"reader={reader}"], default_registry())
        data = open_data(config)
        assert (data.name, list(data.label_names), len(data.test)) == ("own", ["a", "b"], 1)


OWN_READER = '''
from dataclasses import dataclass
import numpy as np
import scipy.sparse as sp
import xmclab
from xmclab.api import Dataset, Reader, Split

@dataclass(kw_only=True)
class Columns(Reader):
    """Looks for words.dat: words, of which one is the label."""

    column: int = xmclab.option(0, "of the label", ge=0, le=2)
    times: int = xmclab.option(TIMES"copies of each line", ge=1)

    def matches(self, folder):
        return (folder / "words.dat").exists()

    def read(self, folder):
        rows = [line.split() for line in (folder / "words.dat").read_text().splitlines()] * self.times
        names = sorted({row[self.column] for row in rows})
        ids = [names.index(row[self.column]) for row in rows]
        targets = sp.csr_array((np.ones(len(rows), np.float32), (range(len(rows)), ids)), shape=(len(rows), len(names)))
        none = sp.csr_array(targets.shape, dtype=np.float32)
        split = Split([" ".join(row) for row in rows], list(map(str, range(len(rows)))), targets, none)
        return Dataset("words", split, split, names, names, f"{self.column} {self.times} {self.text}")

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("reader", "columns", Columns)]
'''


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder in a format of its own, with its reader in `columns.py`."""
    (tmp_path / "words.dat").write_text("red apple pie\ngreen pear pie\nblue plum cake\n")
    (tmp_path / "columns.py").write_text(OWN_READER.replace("TIMES", "2, "))
    return tmp_path


@pytest.mark.parametrize("chosen", [(), ("reader=columns",), ("reader=auto",)])
def test_the_options_of_a_plugins_reader_can_be_set(words: Path, chosen: tuple[str, ...]) -> None:
    overrides = [f"plugin={words / 'columns.py'}", f"data={words}", *chosen]
    data = open_data(resolve([*overrides, "reader.column=2", "reader.times=4"], default_registry()))
    assert (list(data.label_names), len(data.train), data.fingerprint) == (["cake", "pie"], 12, "2 4 title")
    assert len(open_data(resolve(overrides, default_registry())).train) == 6


def test_a_reader_that_lacks_a_required_option_is_listed_with_the_reason(words: Path) -> None:
    (words / "columns.py").write_text(OWN_READER.replace("TIMES", "help="))
    overrides = [f"plugin={words / 'columns.py'}", f"data={words}"]
    with pytest.raises(DataError) as caught:
        open_data(resolve(overrides, default_registry()))
    assert (
        "reader columns: Looks for words.dat: words, of which one is the label. "
        "(reader.times: must be set (int) (copies of each line))" in str(caught.value).splitlines()
    )
    with pytest.raises(ConfigError, match=r"reader\.times: must be set"):
        resolve([*overrides, "reader=columns"], default_registry())
    assert len(open_data(resolve([*overrides, "reader.times=1"], default_registry())).train) == 3
