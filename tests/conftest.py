"""What all tests share: few threads, a tiny encoder that needs no download, small runs, and the command line."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import contextlib
import itertools
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from xmclab import cli
from xmclab.api import Encoder, Ragged, Side, Tokens
from xmclab.cli.common import registry_with, without_plugins
from xmclab.data import open_dataset
from xmclab.host.config import Config
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.runs.run import run
from xmclab.training.trainer import Trainer

SMALL = ["data=tiny", "sampler.batch_size=512", "epochs=1", "baseline=none"]
BAG = ("encoder=bag", "encoder.dim=16")
SMALL_BAG = ["data=tiny", *BAG, "head.de.dim=16", "head.clf.dim=16", "sampler.batch_size=256", "epochs=2"]
SMALL_BAG += ["baseline=none"]
MODULES = itertools.count()  # numbers the modules of pretended plugins


@pytest.fixture(scope="session")
def cells_in_this_process() -> Callable[[int], Any]:
    """In place of `runner.processes` of a bench: its cells train in this process, and Python need not start again."""

    @contextlib.contextmanager
    def processes(threads: int) -> Iterator[Callable[..., int]]:
        def launch(command: Sequence[str], log: Path, stop: object = None) -> int:
            words = [word for word in command if "=" in word]
            overrides, files = without_plugins(words)
            registry = registry_with(files) if files else default_registry()
            log.touch()
            run(resolve(overrides, registry), Path(command[-1]), Console(quiet=True), resume="--resume" in command)
            return 0

        yield launch

    return processes


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    torch.set_num_threads(1)


@dataclass(eq=False)
class Letters(Encoder):
    """A transformer in miniature: embeds characters, drops some, mixes them and takes the mean."""

    dim: int = 8
    dropout: float = 0.2
    lr: float = 1e-2

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def width(self) -> int:
        return self.dim

    def fit(self, texts: Sequence[str]) -> None:
        self.embedding = nn.Embedding(256, self.dim, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(self.dim, self.dim), nn.Tanh(), nn.Dropout(self.dropout))

    def tokenise(self, texts: Sequence[str]) -> Ragged:
        lists = [list(text.encode()) for text in texts]
        return Ragged(np.array([i for ids in lists for i in ids], np.int32), np.cumsum([0, *map(len, lists)]))

    def collate(self, tokens: Ragged) -> Tokens:
        lists = [tokens.ids[a:b] for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
        padded = nn.utils.rnn.pad_sequence([torch.from_numpy(ids).long() for ids in lists], batch_first=True)
        return {"ids_BT": padded}

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        mask_BT1 = (tokens["ids_BT"] > 0).unsqueeze(-1)
        return (self.mix(self.embedding(tokens["ids_BT"])) * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1)

    def save_assets(self, folder: Path) -> None:
        pass

    def load_assets(self, folder: Path) -> None:
        self.fit([])


@pytest.fixture
def letters() -> Letters:
    """A fitted tiny encoder in float64."""
    torch.manual_seed(0)
    encoder = Letters()
    encoder.fit([])
    return encoder.double()


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random BERT of one layer that knows a few words; not to be written to."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "grey", "pink", "cyan"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def train() -> Callable[..., Path]:
    """Train a small model: (folder, overrides) to the run folder."""

    def train_small(folder: Path, *overrides: str, encoder: Sequence[str] = BAG) -> Path:
        config = resolve([*SMALL, *encoder, *overrides], default_registry())
        return run(config, folder, Console(quiet=True)).folder

    return train_small


@pytest.fixture(scope="session")
def small_run(train: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with both heads; not to be written to."""
    return train(tmp_path_factory.mktemp("runs") / "small", "head.de.dim=16", "head.clf.dim=12")


def small_config(*overrides: str) -> Config:
    """A config of two quick epochs with both heads."""
    return resolve([*SMALL_BAG, *overrides], default_registry())


@pytest.fixture(scope="session", name="small_config")
def small_config_fixture() -> Callable[..., Config]:
    return small_config


@pytest.fixture(scope="session")
def small_trainer() -> Callable[..., Trainer]:
    """A trainer of such a config: overrides to the trainer."""

    def make(*overrides: str) -> Trainer:
        return Trainer(small_config(*overrides), open_dataset("tiny", "title", default_registry()))

    return make


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: arguments to (exit code, stdout, stderr)."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["xmclab", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        output = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, output.out, output.err

    return run_command


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Pretend that a distribution with one plugin is installed; returns its module's name."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))

    def add(source: str, distribution: str = "other-dist", version: str = "2.5", entry: str = "other") -> str:
        module = f"plugin_under_test_{next(MODULES)}"
        (site / f"{module}.py").write_text(source)
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[xmclab]\n{entry} = {module}\n")
        return module

    return add


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, which takes what xmclab depends on from that of the tests."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, *command: object, cwd: Path, exit_code: int = 0) -> tuple[str, str]:
        """(stdout, stderr) of a command that must end with this code; `xmclab` is the installed script."""
        program, *arguments = map(str, command)
        found = self.folder / "bin" / program
        theirs = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(found) if found.exists() else program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=theirs,
        )
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout, done.stderr

    def install(self, *arguments: object) -> None:
        """Let pip install something, offline and with what is needed to build it at hand."""
        offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        self.run(*pip, "install", *offline, *arguments, cwd=self.folder)


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel of xmclab, and without this checkout."""
    environment = Environment(tmp_path_factory.mktemp("clean"))
    venv.create(environment.folder, symlinks=True)
    site = sysconfig.get_path("purelib", vars={"base": str(environment.folder)})
    # Of a folder that is named here the .pth files are not followed, so not the one of an editable xmclab either.
    dependencies = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    Path(site, "dependencies.pth").write_text("\n".join(dependencies))
    environment.install(Path(__file__).parents[1])
    where = "import xmclab, xmclab_losses; print(xmclab.__file__); print(xmclab_losses.__file__)"
    files, _ = environment.run("python", "-c", where, cwd=environment.folder)
    assert all(file.startswith(site) for file in files.splitlines()), files
    return environment
