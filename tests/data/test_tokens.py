"""Tokens are cached, and the cache is never wrong."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from xmclab.api import Encoder, Ragged
from xmclab.data import texts as texts_module
from xmclab.data import tokens as module
from xmclab.data.texts import PackedTexts
from xmclab.data.tokens import Tokeniser, tokenise
from xmclab.errors import DataError, MemoryLimitError, StorageError
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve
from xmclab.host.schema import DataSettings
from xmclab.model.encoders.bag import Bag
from xmclab.model.encoders.hf import HuggingFace
from xmclab.runs.run import run

TEXTS = [f"red {'green ' * (row % 5)}blue-{row % 7} wörd{row % 11}" for row in range(40)] + [""]
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "BLOCK", 6)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue", "-", "##1", "1", "2", "3"]
    (path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(path / "vocab.txt")).save_pretrained(path)
    BertModel(
        BertConfig(
            vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    ).save_pretrained(path)
    return path


@pytest.fixture(params=["bag", "hashed", "hf"])
def encoder(request: pytest.FixtureRequest, bert: Path) -> Encoder:
    made: dict[str, Encoder] = {
        "bag": Bag(dim=2, pairs=True, chars_from=3, min_frequency=2),
        "hashed": Bag(dim=2, buckets=64),
        "hf": HuggingFace(model=str(bert), max_length=6),
    }
    return made[request.param]


class Told(Tokeniser):
    """A tokeniser that remembers what it told the user."""

    def __init__(self, cache: Path | str, verify: bool = False, source: str = "tiny") -> None:
        self.out = io.StringIO()
        settings = DataSettings(source=source, cache=str(cache), verify=verify)
        super().__init__(settings, Console(file=self.out, width=1000))

    def __call__(self, encoder: Encoder, texts: Sequence[str] = TEXTS) -> tuple[Ragged, str]:
        self.out.truncate(self.out.seek(0))
        self.fit(encoder, texts)
        return self.tokens(encoder, texts, "queries"), self.out.getvalue()


def same(one: Ragged, other: Ragged) -> None:
    for name in ("ids", "offsets", "weights"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    assert one.shortened == other.shortened


def entries(cache: Path, kind: str = "tokens") -> list[Path]:
    return [
        file.parent for file in cache.glob("*/manifest.json") if json.loads(file.read_text())["key"]["kind"] == kind
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1], [""], []], ids=["some", "one", "empty", "none"])
def test_cached_tokens_are_those_of_the_encoder_bit_for_bit(encoder: Encoder, texts: list[str], tmp_path: Path) -> None:
    told = Told(tmp_path)
    first, said = told(encoder, PackedTexts(texts))
    assert "tokens of queries: first build; cached in" in said
    before = contents(tmp_path)
    again, said = told(encoder, texts)
    assert "cached in" not in said
    assert contents(tmp_path) == before
    expected = encoder.tokenise(texts)
    for tokens in (first, again, Told("off")(encoder, texts)[0]):
        same(tokens, expected)
    rows = np.arange(len(texts))[::-1].copy()
    same(first.take(rows), expected.take(rows))
    assert first.take(rows).ids.flags.writeable


def test_no_padding_is_stored(encoder: Encoder, tmp_path: Path) -> None:
    tokens, _ = Told(tmp_path)(encoder)
    (folder,) = entries(tmp_path)
    assert (folder / "ids").stat().st_size == 4 * sum(len(encoder.tokenise([text]).ids) for text in TEXTS)
    assert (folder / "offsets").stat().st_size == 8 * (len(TEXTS) + 1)
    assert isinstance(tokens.ids.base, np.memmap)


@pytest.mark.parametrize("workers", [2, 3, 20])
def test_several_processes_give_the_same_blocks_in_the_same_order(encoder: Encoder, workers: int) -> None:
    encoder.fit(TEXTS)
    for texts in (TEXTS, PackedTexts(TEXTS), []):
        parts = list(tokenise(encoder, texts, workers))
        same(Ragged.join(parts), encoder.tokenise(texts))
        assert [len(part) for part in parts] == ([6] * 6 + [5] if texts else [0])


def test_large_sets_are_shared_out(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def spy(encoder: Encoder, texts: Sequence[str], workers: int) -> object:
        made.append(workers)
        return tokenise(encoder, texts, workers)

    monkeypatch.setattr(module, "tokenise", spy)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(module, "WORTH_SHARING", len(TEXTS))
    same(Told(tmp_path)(encoder)[0], encoder.tokenise(TEXTS))
    Told(tmp_path)(encoder, TEXTS[:-1])
    assert made == ([3, 1] if module.sys.platform == "linux" else [1, 1])


class Fails(Bag):
    def tokenise(self, texts: Sequence[str]) -> Ragged:
        if "bad" in texts:
            raise KeyError("bad text")
        if "refused" in texts:
            raise DataError("refused text")
        if "deadly" in texts:
            os._exit(1)
        return super().tokenise(texts)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("bad", RuntimeError, "KeyError: 'bad text'"),
        ("refused", DataError, "refused text"),
        ("deadly", MemoryLimitError, "a worker process was killed"),
    ],
)
def test_what_goes_wrong_in_a_process_is_reported(text: str, error: type[Exception], message: str) -> None:
    encoder = Fails(dim=2)
    encoder.fit(TEXTS)
    with pytest.raises(error, match=message):
        list(tokenise(encoder, [*TEXTS, text], 2))


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    encoder = Fails(dim=2)
    with pytest.raises(KeyError):
        Told(tmp_path)(encoder, [*TEXTS, "bad"])
    assert entries(tmp_path) == []
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("cache", ["off", "auto", "kept", "given"])
def test_small_sets_are_cached_if_asked_to(cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XMCLAB_CACHE", str(tmp_path))
    if cache == "kept":
        monkeypatch.setattr(module, "WORTH_KEEPING", len(TEXTS))
    Told({"given": str(tmp_path), "kept": "auto"}.get(cache, cache))(Bag(dim=2))
    assert bool(list(tmp_path.iterdir())) == (cache in ("given", "kept"))


@pytest.mark.parametrize("variable", ["XMCLAB_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_where_the_cache_is(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XMCLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(module, "WORTH_KEEPING", 1)
    Told("auto")(Bag(dim=2))
    below = {"XMCLAB_CACHE": "", "XDG_CACHE_HOME": "xmclab", "HOME": ".cache/xmclab"}
    assert len(entries(tmp_path / below[variable])) == 1


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XMCLAB_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(module, "WORTH_KEEPING", 1)
    encoder = Bag(dim=2)
    tokens, _ = Told("auto")(encoder)
    same(tokens, encoder.tokenise(TEXTS))
    assert "tokens of queries are not cached: data.cache=" in caplog.text
    with pytest.raises(StorageError):
        Told(tmp_path / "file" / "cache")(encoder)


def test_the_message_says_what_changed(bert: Path, tmp_path: Path) -> None:
    def said(source: str = "here", texts: list[str] = TEXTS, **options: object) -> str:
        made = HuggingFace(**{"model": str(bert), "max_length": 6, **options})
        return Told(tmp_path, source=source)(made, texts)[1].partition("cached in")[0]

    assert "tokens of queries: first build;" in said()
    assert "tokens of queries: rebuilding, max_length was 6;" in said(max_length=5)
    assert "tokens of queries: rebuilding, texts changed;" in said(texts=[*TEXTS[:-1], "x"])
    assert "tokens of queries: first build;" in said(source="there", texts=TEXTS[1:])
    assert "cached" not in said(lr=1.0, pooling="cls", source="there")
    told = Told(tmp_path, source="here")
    assert "tokens of queries: rebuilding, encoder was xmclab.model.encoders.hf.HuggingFace;" in told(Bag(dim=2))[1]
    assert "vocabulary: rebuilding, lowercase was True; " in told(Bag(dim=2, lowercase=False))[1]
    assert len(entries(tmp_path)) == 6


def test_an_encoder_without_a_key_is_not_cached(letters: Encoder, tmp_path: Path) -> None:
    tokens, said = Told(tmp_path)(letters)
    same(tokens, letters.tokenise(TEXTS))
    assert said == ""
    assert not list(tmp_path.iterdir())


def test_texts_that_are_too_long_are_counted(bert: Path, tmp_path: Path) -> None:
    texts = ["red", "red green blue red", "red green blue red green", "", "red " * 500]
    encoder = HuggingFace(model=str(bert), max_length=6)
    for told in (Told("off"), Told(tmp_path), Told(tmp_path)):
        tokens, said = told(encoder, texts)
        assert tokens.shortened == 2
        assert "queries: truncated 2 of 5 texts to the encoder's maximum length" in said


def test_a_damaged_byte_is_found_if_asked_to(tmp_path: Path) -> None:
    encoder = Bag(dim=2)
    Told(tmp_path)(encoder)
    file = entries(tmp_path)[0] / "ids"
    damaged = bytearray(file.read_bytes())
    damaged[0] ^= 1
    file.write_bytes(damaged)
    told = Told(tmp_path, verify=True)
    tokens, said = told(encoder)
    assert "(ids: checksum mismatch)" in said
    same(tokens, encoder.tokenise(TEXTS))
    assert told(encoder)[1] == ""


def test_a_vocabulary_is_always_verified(tmp_path: Path) -> None:
    Told(tmp_path)(Bag(dim=2))
    file = entries(tmp_path, "vocabulary")[0] / "features.json"
    file.write_text(file.read_text().replace("green", "greet"))
    encoder = Bag(dim=2)
    assert "vocabulary: rebuilding, " in Told(tmp_path)(encoder)[1]
    assert "w green" in encoder.featuriser.vocabulary


@pytest.mark.parametrize("encoder", ["bag", "bag encoder.hidden=8"])
def test_a_run_from_a_cache_gives_the_same_losses_and_weights(tmp_path: Path, encoder: str) -> None:
    def numbers(name: str, cache: Path | str) -> tuple[list[float], dict[str, dict[str, float]], bytes]:
        options = f"data=tiny encoder={encoder} encoder.dim=8 head.de.dim=8 head.clf.dim=8 epochs=1"
        config = resolve([*options.split(), "baseline=none", f"data.cache={cache}"], default_registry())
        result = run(config, tmp_path / name, QUIET)
        records = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
        losses = [record["loss"] for record in records if record["event"] == "step"]
        return losses, result.metrics, (result.folder / "model.safetensors").read_bytes()

    plain = numbers("plain", "off")
    assert plain == numbers("first", tmp_path / "cache") == numbers("again", tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 3
    assert len(entries(tmp_path / "cache", "vocabulary")) == 1


def test_building_holds_a_few_blocks_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "BLOCK", 500)
    monkeypatch.setattr(texts_module, "IN_MEMORY", 10_000)
    encoder = Bag(dim=2, chars_from=3, buckets=1000)
    encoder.fit(TEXTS)

    def peak(rows: int) -> int:
        texts = PackedTexts(f"some words of row {row}" for row in range(rows))
        tracemalloc.start()
        Told(tmp_path).tokens(encoder, texts, "queries")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    assert peak(10_000) < 1.2 * peak(2_000)


def test_fitting_from_a_cache_draws_the_same_parameters(tmp_path: Path) -> None:
    weights = []
    for cache in ("off", tmp_path, tmp_path):
        torch.manual_seed(3)
        encoder = Bag(dim=4, hidden=3)
        Told(cache)(encoder)
        weights.append(encoder.state_dict())
    for state in weights[1:]:
        for name, tensor in weights[0].items():
            assert torch.equal(tensor, state[name])
