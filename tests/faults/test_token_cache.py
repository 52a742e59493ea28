"""A changed input never meets an old cache, a damaged cache is rebuilt, and two processes build it once.

24  a byte of the data changes
25  the tokenizer or its settings change; a damaged cache
26  two processes build the same cache
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_sets import SMALL

from xmclab import cli

ROWS = 12
PARTS = ("training queries", "labels", "test queries")


class Program:
    """A data set, a cache, and runs on them."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.patch, self.capsys = path, patch, capsys
        self.data, self.cache = path / "data", path / "cache"
        self.data.mkdir()
        self.runs = 0
        for name in ("lbl", "trn", "tst"):
            lines = [{"uid": f"{name}{row}", "title": f"fruit {row} {name}"} for row in range(ROWS)]
            targets = {} if name == "lbl" else {"target_ind": [1, 2]}
            (self.data / f"{name}.json").write_text("".join(json.dumps({**line, **targets}) + "\n" for line in lines))

    def run(self, *overrides: str, cached: bool = True) -> tuple[str, list[float]]:
        """What stderr says about the cache, and the losses."""
        self.runs += 1
        out = self.path / f"run{self.runs}"
        cache = f"data.cache={self.cache if cached else 'off'}"
        arguments = ["run", *SMALL, f"data={self.data}", cache, *overrides, "--out", str(out), "--json"]
        self.patch.setattr(sys, "argv", ["xmclab", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        said = self.capsys.readouterr().err
        assert caught.value.code == 0, said
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        told = [line for line in said.splitlines() if "tokens of" in line or "vocabulary" in line]
        return "\n".join(told), [record["loss"] for record in records if record["event"] == "step"]

    def folder(self, part: str) -> Path:
        """The only folder of the tokens of a part."""
        (found,) = [
            file.parent for file in self.cache.glob("*/manifest.json") if f"tokens of {part} " in file.read_text()
        ]
        return found

    def contents(self) -> dict[str, bytes]:
        files = (file for file in self.cache.glob("*/*") if file.is_file())
        return {str(file.relative_to(self.cache)): file.read_bytes() for file in files}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(tmp_path, monkeypatch, capsys)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path = tmp_path / "bert"
    path.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fruit", "1", "2", "3", "trn", "tst", "lbl"]
    (path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(path / "vocab.txt")).save_pretrained(path)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(path)
    return path


def test_24_one_byte_of_the_data_changes(program: Program) -> None:
    first, _ = program.run()
    assert all(f"tokens of {part}: first build; cached in {program.cache}" in first for part in PARTS)
    before = program.contents()
    assert program.run()[0] == ""
    file = program.data / "tst.json"
    file.write_text(file.read_text().replace("fruit 3 tst", "fruit 4 tst"))
    said, losses = program.run()
    assert said.startswith("tokens of test queries: rebuilding, texts changed; cached in ")
    assert len(said.splitlines()) == 1
    assert {name: program.contents()[name] for name in before} == before
    assert losses == program.run(cached=False)[1]


def test_24_a_changed_training_text_changes_all_that_was_learned_from_it(program: Program) -> None:
    program.run()
    before = program.contents()
    file = program.data / "trn.json"
    file.write_text(file.read_text().replace("fruit 3 trn", "fruit x trn"))
    said, losses = program.run()
    assert "vocabulary: rebuilding, texts changed; cached in" in said
    assert "tokens of training queries: rebuilding, texts changed, vocabulary changed; cached in" in said
    assert "tokens of labels: rebuilding, vocabulary changed; cached in" in said
    assert {name: program.contents()[name] for name in before} == before
    assert losses == program.run(cached=False)[1]


def test_25_another_tokenizer_or_length(program: Program, bert: Path) -> None:
    options = ["encoder=hf", f"encoder.model={bert}"]
    program.run(*options)
    before = program.contents()
    assert program.run(*options)[0] == ""
    said, losses = program.run(*options, "encoder.max_length=4")
    assert all(f"tokens of {part}: rebuilding, max_length was 32; cached in" in said for part in PARTS)
    assert losses == program.run(*options, "encoder.max_length=4", cached=False)[1]
    for name in ("tokenizer.json", "vocab.txt"):
        (bert / name).write_text((bert / name).read_text().replace("fruit", "fruits"))
    said, losses = program.run(*options)
    assert all(f"tokens of {part}: rebuilding, tokenizer changed; cached in" in said for part in PARTS)
    assert losses == program.run(*options, cached=False)[1]
    assert {name: program.contents()[name] for name in before} == before


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def _lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


@pytest.mark.parametrize("spoil", [_cut, _lengthen, Path.unlink])
@pytest.mark.parametrize("name", ["ids", "offsets", "weights", "manifest.json"])
def test_25_a_damaged_cache_is_found_and_made_again(program: Program, name: str, spoil: Callable[[Path], Any]) -> None:
    _, losses = program.run()
    before = program.contents()
    folder = program.folder("labels")
    spoil(folder / name)
    said, again = program.run()
    assert said.startswith(f"tokens of labels: rebuilding, {folder} is damaged (")
    assert len(said.splitlines()) == 1
    assert again == losses
    assert program.contents() == before


def test_25_a_flipped_bit_is_found_with_verify(program: Program) -> None:
    _, losses = program.run()
    before = program.contents()
    file = program.folder("training queries") / "weights"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    said, again = program.run("data.verify=on")
    assert "tokens of training queries: rebuilding, " in said
    assert "(weights: checksum mismatch)" in said
    assert again == losses
    assert program.contents() == before


# A program that says when it begins to build, in the main process or in others, and goes on when a file is there.
BUILDER = """
import hashlib, sys, time
from pathlib import Path
from rich.console import Console
from xmclab.data import tokens as module
from xmclab.data.tokens import Tokeniser
from xmclab.model.encoders.bag import Bag
from xmclab.host.schema import DataSettings

class Slow(Bag):
    def tokenise(self, texts):
        print("building", flush=True)
        while not Path(sys.argv[2]).exists():
            time.sleep(0.01)
        return super().tokenise(texts)

module.WORTH_SHARING = int(sys.argv[3])
encoder = Slow(dim=2)
encoder.fit(["red", "green", "blue"])
settings = DataSettings(source="x", cache=sys.argv[1])
tokens = Tokeniser(settings, Console(stderr=True, width=1000)).tokens(encoder, ["red green", "blue", ""] * 9, "queries")
content = b"".join(array.tobytes() for array in (tokens.ids, tokens.offsets, tokens.weights))
print(hashlib.sha256(content).hexdigest(), flush=True)
"""


@pytest.fixture(params=[0, 1000], ids=["several workers", "no workers"])
def builder(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], subprocess.Popen[str]]:
    def start() -> subprocess.Popen[str]:
        arguments = [str(tmp_path / "cache"), str(tmp_path / "go"), str(request.param)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", BUILDER, *arguments], text=True, **pipes)
        request.addfinalizer(process.wait)
        request.addfinalizer(process.kill)
        request.addfinalizer((tmp_path / "go").touch)
        return process

    return start


def wait_for(stream: Any, words: str) -> None:
    """Read up to the next line with these words."""
    assert any(words in line for line in stream)


def test_26_two_processes_build_it_once(builder: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    first = builder()
    wait_for(first.stdout, "building")
    second = builder()
    wait_for(second.stderr, "tokens of queries: another process is building")
    assert second.poll() is None
    (tmp_path / "go").touch()
    outputs = [process.communicate()[0] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert outputs[0] == outputs[1]  # a digest of all tokens, and no word of building
    assert len(outputs[0].strip()) == 64
    assert len([folder for folder in (tmp_path / "cache").iterdir() if folder.is_dir()]) == 1


def test_26_a_killed_builder_hinders_nobody(builder: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
    first = builder()
    wait_for(first.stdout, "building")
    second = builder()
    wait_for(second.stderr, "another process is building")
    first.kill()
    (tmp_path / "go").touch()
    output = second.communicate()[0]
    assert second.returncode == 0
    assert output.startswith("building")
    folders = [folder.name for folder in (tmp_path / "cache").iterdir() if folder.is_dir()]
    assert len(folders) == 1
    assert not folders[0].startswith(".")
