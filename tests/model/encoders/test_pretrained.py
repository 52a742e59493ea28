"""Transformers models: what is read, what is refused, and the errors of everything else."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from xmclab.errors import DataError
from xmclab.model.encoders.pretrained import _hub_answers, load


def test_a_folder_gives_its_tokenizer_and_its_weights_or_random_ones(tiny_bert: Path) -> None:
    (tokenizer, trained), (_, again), (_, random) = (
        load(str(tiny_bert), "m", weights) for weights in (True, True, False)
    )
    assert tokenizer("red")["input_ids"]
    name = "embeddings.word_embeddings.weight"
    assert (trained.state_dict()[name] == again.state_dict()[name]).all()
    assert (trained.state_dict()[name] != random.state_dict()[name]).any()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors"])
def test_any_damage_is_a_data_error(tiny_bert: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    for content in (b"", b"\xff\xfe", b"[]", b"{}", b'{"model": 3}', (folder / name).read_bytes()[:-40]):
        if (name, content) == ("config.json", b"{}"):
            continue
        (folder / name).write_bytes(content)
        with pytest.raises(DataError, match="encoder"):
            load(str(folder), "encoder", weights=True)


def test_running_out_of_memory_is_not_the_fault_of_the_files(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("transformers.AutoModel.from_pretrained", fail)
        with pytest.raises(type(error)):
            load(str(tiny_bert), "encoder", weights=True)


def test_what_transformers_logs_is_printable(tiny_bert: Path) -> None:
    load(str(tiny_bert), "encoder", weights=False)
    record = logging.LogRecord("transformers", logging.WARNING, "", 0, "type %s", ("\x1b[2J",), None)
    for handler in logging.getLogger("transformers").handlers:
        handler.filter(record)
    assert record.getMessage() == r"type \x1b[2J"


def test_no_bars_are_shown(tiny_bert: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, network = load(str(tiny_bert), "encoder", weights=True)
    network.save_pretrained(tmp_path / "copy")
    load(str(tmp_path / "copy"), "encoder", weights=True)
    assert "%|" not in capfd.readouterr().err


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "https://no-such-host.invalid"])
def test_without_a_network_the_hub_is_asked_once(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("waits to try again"))
    _hub_answers.cache_clear()
    try:
        with pytest.raises(DataError, match=r"no connection to the hub, and not in .*models--nobody--nothing"):
            load("nobody/nothing", "encoder", weights=True)
    finally:
        _hub_answers.cache_clear()
