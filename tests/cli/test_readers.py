"""A reader of one's own, from the command line: its options, by name and by `auto`, and what a run folder keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

READER = '''
from dataclasses import dataclass
import numpy as np
import scipy.sparse as sp
import xmclab
from xmclab.api import Dataset, Reader, Split

@dataclass
class Words(Reader):
    """Looks for words.dat: words, of which one is the label."""

    column: int = xmclab.option(0, "of the label", ge=0, le=2)

    def matches(self, folder):
        return (folder / "words.dat").exists()

    def read(self, folder):
        rows = [line.split() for line in (folder / "words.dat").read_text().splitlines()]
        names = sorted({row[self.column] for row in rows})
        targets = sp.csr_array((len(rows), len(names)), dtype=np.float32).tolil()
        for row, words in enumerate(rows):
            targets[row, names.index(words[self.column])] = 1
        split = Split(
            [" ".join(row) for row in rows], [str(row) for row in range(len(rows))], sp.csr_array(targets),
            sp.csr_array(targets.shape, dtype=np.float32),
        )
        return Dataset("words", split, split, names, names, f"column {self.column}")

@xmclab.hookimpl
def xmclab_parts():
    return [xmclab.part("reader", "words", Words)]
'''
RIVAL = READER.replace("Words", "Rival").replace('"words"', '"rival"')
SMALL = ["recipe=unidec", "epochs=1", "encoder.dim=8", "head.de.dim=8", "head.clf.dim=8"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words.dat").write_text("red apple pie\ngreen pear pie\nblue plum cake\n")
    (tmp_path / "words.py").write_text(READER)
    (tmp_path / "rival.py").write_text(RIVAL)
    return tmp_path


@pytest.mark.parametrize("chosen", [(), ("reader=words",)])
def test_a_run_reads_with_the_options_of_a_plugins_reader_and_eval_does_so_again(
    call: Any, folder: Path, chosen: tuple[str, ...]
) -> None:
    run = folder / "run"
    keys = [*SMALL, f"plugin={folder / 'words.py'}", f"data={folder}", *chosen, "reader.column=2"]
    code, out, _ = call("run", *keys, "--out", run, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["data"]["labels"] == 2
    texts = {"text": "title", "query_text": None, "label_text": None}
    assert result["config"]["reader"] == {"name": "words", **texts, "column": 2}
    assert yaml.safe_load((run / "config.yaml").read_text())["reader"] == result["config"]["reader"]
    # Another plugin that knows the same files makes `auto` a question, but not for the run's own data.
    plugins = ["--plugin", folder / "words.py", "--plugin", folder / "rival.py"]
    code, out, _ = call("eval", run, *plugins, "--json")
    assert code == 0
    assert json.loads(out)["metrics"] == result["metrics"]
    code, out, _ = call("eval", run, *plugins, "reader=rival", "reader.column=1", "--json")
    assert code == 0
    assert json.loads(out)["data"]["sha256"] == "column 1"


def test_options_are_checked_against_the_reader_that_was_found(call: Any, folder: Path) -> None:
    plugin = f"plugin={folder / 'words.py'}"
    out = folder / "run"
    code, _, err = call("run", *SMALL, plugin, f"data={folder}", "reader.separator=;", "--out", out)
    assert code == 2
    known = "reader.column, reader.label_text, reader.query_text, reader.text"
    assert err == f"error: reader.separator: unknown key for reader 'words' (known: {known})\n"
    code, _, err = call("run", *SMALL, plugin, f"data={folder}", "reader.colum=1", "--out", out)
    assert code == 2
    assert err == "error: reader.colum: unknown key (did you mean 'reader.column'?)\n"
    code, _, err = call("run", *SMALL, plugin, f"data={folder}", "reader=words", "reader.column=3", "--out", out)
    assert code == 2
    assert "reader.column: '3' should be less than or equal to 2" in err
    assert not out.exists()


def test_the_commands_of_data_take_the_same_keys(call: Any, folder: Path) -> None:
    keys = [f"plugin={folder / 'words.py'}", "reader.column=2"]
    code, out, _ = call("data", "check", folder, *keys, "--json")
    assert code == 0
    assert (json.loads(out)["reader"], json.loads(out)["sizes"]["labels"]) == ("words", 2)
    assert call("data", "convert", folder, folder / "json", *keys, "--to", "lf_json")[0] == 0
    assert len((folder / "json" / "lbl.json.gz").read_bytes()) > 0
    code, out, _ = call("data", "stats", folder / "json", "--json")
    assert (code, json.loads(out)["labels"]["number"]) == (0, 2)


def test_two_readers_that_know_the_files_are_a_question(call: Any, folder: Path) -> None:
    keys = [f"plugin={folder / 'words.py'}", f"plugin={folder / 'rival.py'}"]
    code, _, err = call("data", "check", folder, *keys)
    assert code == 2
    assert "several readers recognise these files: rival, words (choose reader=rival or reader=words)" in err
    assert call("data", "check", folder, *keys, "reader=rival")[0] == 0


def test_baselines_are_chosen_and_kept_in_the_folder(call: Any, tmp_path: Path) -> None:
    small = [*SMALL, "data=tiny", "sampler.batch_size=512"]
    chosen = ["baseline=tfidf_neighbours", "baseline.neighbours=3"]
    code, out, _ = call("run", *small, *chosen, "--out", tmp_path / "run", "--json")
    assert code == 0
    result = json.loads(out)
    assert list(result["baselines"]) == ["tfidf_neighbours"]
    assert result["config"]["baseline"] == {"name": "tfidf_neighbours", "neighbours": 3}
    code, out, _ = call("run", f"recipe={tmp_path / 'run' / 'config.yaml'}", "baseline=all", "--why", "--json")
    [row] = [row for row in json.loads(out) if row["key"] == "baseline"]
    assert row == {"key": "baseline", "value": "tfidf_labels+tfidf_neighbours", "source": "override"}
