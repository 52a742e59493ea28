"""Transformers models from folders and the cache, opened so that nothing in them can run.

Code of the model's own runs only under `trusting_remote_code()`. Weights are safetensors: no pickle is read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xmclab.errors import DataError, Problem, XmclabError
from xmclab.system.terminal import printable
from xmclab.system.trust import FLAG, remote_code_is_trusted

HINT = "give a folder with config.json, tokenizer and weights (safetensors), or the name of a model in the local cache"
PATIENCE = 5.0  # seconds that the hub has to answer
SHARDS = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
NOT_HERE = {  # keys of config.json that have transformers import or unpickle something; None and absent are fine
    "quantization_config": "quantised networks cannot be trained",
    "transformers_weights": "the weights must be in model.safetensors",
}


def load(source: str, where: str, weights: bool) -> tuple[Any, Any]:
    """(tokenizer, network) of a model.

    Args:
        source: a folder, or a name for the hub and its cache.
        where: what the user set, for errors.
        weights: read the weights too; otherwise they are random.

    Raises:
        DataError: there is no such model, it is damaged, or it needs code of its own and nobody allowed that.
    """
    with _readable(source, where):
        from transformers import AutoConfig, AutoModel, AutoTokenizer, PretrainedConfig

        _make_quiet()
        trusted = remote_code_is_trusted()
        local = not Path(source).is_dir() and not _hub_answers()
        if not trusted:
            _refuse(PretrainedConfig.get_config_dict(source, local_files_only=local)[0], Path(source), where)
        # False, not None: transformers would ask on the terminal.
        code = {"trust_remote_code": trusted}
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local, **code)
        if weights:
            return tokenizer, AutoModel.from_pretrained(source, use_safetensors=True, local_files_only=local, **code)
        config = AutoConfig.from_pretrained(source, local_files_only=local, **code)
        return tokenizer, AutoModel.from_config(config, **code)


def _refuse(config: Any, folder: Path, where: str) -> None:
    """Refuse what makes transformers fetch, import or unpickle more than the files of the model."""
    if not isinstance(config, dict):
        raise DataError(Problem(where, "config.json is not an object", HINT))
    for key, reason in NOT_HERE.items():
        if config.get(key) is not None:
            raise DataError(Problem(where, f"config.json sets {key!r}: {reason}"))
    for key, value in _entries(config):
        if key.endswith("_implementation") and "/" in str(value):
            raise DataError(Problem(where, "config.json asks for a kernel from the hub, which is code", _allow()))
    if (folder / ADAPTER).is_file():
        raise DataError(Problem(where, f"holds an adapter ({ADAPTER})", "merge it into its base model"))
    if (folder / SHARDS).is_file():
        names = json.loads((folder / SHARDS).read_text(encoding="utf-8"))["weight_map"].values()
        if strange := [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]:
            raise DataError(Problem(where, f"{SHARDS} names {strange[0]!r}, which is not a safetensors file in it"))


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a JSON document, at any depth, with its value."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield key, value
            yield from _entries(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _entries(value)


@contextlib.contextmanager
def _readable(source: str, where: str) -> Iterator[None]:
    """Whatever transformers raises over the files of a model, as an error about them."""
    try:
        yield
    except (XmclabError, MemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, RuntimeError) and "alloc" in reason:  # the caller knows what to do without memory
            raise
        if "trust_remote_code" in str(error):
            raise DataError(Problem(where, "needs Python code of its own, which was not run", _allow())) from error
        if not Path(source).is_dir():
            reason += f" (looked in {_cached(source)})"
            if not _cached(source).is_dir() and not _hub_answers():
                reason = f"no connection to the hub, and not in {_cached(source)}"
        raise DataError(Problem(where, reason, HINT)) from error


def _allow() -> str:
    return f"if you trust its author, pass {FLAG}; nothing else allows it"


def _cached(name: str) -> Path:
    """Where the cache keeps a model."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


@cache
def _hub_answers() -> bool:
    """Whether the hub can be reached at all; without a network, its client would try again for a minute."""
    from huggingface_hub import constants

    if constants.is_offline_mode():  # nothing is tried
        return True
    url = urllib.parse.urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies().get(url.scheme):  # the proxy is the one to know
        return True
    answers: list[bool] = []

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((url.hostname or "", url.port or 443), PATIENCE):
            answers.append(True)

    thread = threading.Thread(target=connect, daemon=True)  # looking up a name has no time-out of its own
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)


def _make_quiet() -> None:
    """No bars of transformers and the hub; what transformers logs may quote the files of a model."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    for handler in logging.getLogger("transformers").handlers:
        if _printable not in handler.filters:
            handler.addFilter(_printable)


def _printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage(), lines=True), ()
    return True
