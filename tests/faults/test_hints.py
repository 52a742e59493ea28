"""Hints lead somewhere: every command, key and option that an error names can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from xmclab.host.config import CHOICES, setting_options
from xmclab.host.registry import default_registry
from xmclab.host.resolver import resolve

Call = Callable[..., tuple[int, str, str]]
COMMAND = re.compile(r"xmclab ((?:[a-z]+)(?: [^\s;()]+)*)")
PAIR = re.compile(r"(?<![\w=(])((?:[a-z_]+\.)*[a-z_]+=[^\s,;()?'\"]+)")
OPTION = re.compile(r"(?<![\w-])(--[a-z-]+)")
KEY = re.compile(r"(?<![\w.])((?:[a-z_]+\.)+[a-z_]+)(?![\w.=(])")
SETS = ("FILE", "DIR", "FOLDER", "NAME", "CLASS")  # words that stand for what only the reader knows

ERRORS = [
    ["run", "unidec"],
    ["run", "seed=0,1,2"],
    ["run", "--epochs", "3"],
    ["run", "--batch-size", "64", "--data", "tiny"],
    ["run", "evaluate.k=1,500"],
    ["run", "evaluate.test=false", "data=tiny"],
    ["run", "encoder.trust_remote_code=true"],
    ["run", "batch_size=3"],
    ["run", "sampler.batch_sise=3"],
    ["run", "head.clf=none", "head.de=none"],
    ["run", "validate.share=0.1", "validate.file=x", "data=tiny"],
    ["run", "--resume", "auto"],
    ["run", "loss.clf=ds", "reduction.clf=ova"],
    ["bench"],
    ["check"],
    ["predict", "RUN"],
    ["predict", "RUN", "a", "--out", "a.xml"],
    ["score", "p.csv", "--data", "tiny", "data=debian"],
    ["score", "p.csv", "data.same_text=keep"],
    ["predict", "RUN", "--text", "a", "--head", "nothing"],
    ["eval", "RUN", "epochs=3"],
    ["new", "losss", "mine"],
    ["parts", "losss"],
    ["data", "check", "no-such-set"],
]


def hints(error: str) -> Iterator[str]:
    """What stands in brackets at the end of each line."""
    for line in error.splitlines():
        if line.startswith("error: ") and line.endswith(")"):
            depth = 0
            for place in reversed(range(len(line))):
                depth += {")": 1, "(": -1}.get(line[place], 0)
                if depth == 0:
                    yield line[place + 1 : -1]
                    break


def test_hints_are_taken_from_the_end_of_lines() -> None:
    assert list(hints("error: a: b (of c) (did d(e)?)\nnote: f (g)\nerror: h\n")) == ["did d(e)?"]


@pytest.mark.parametrize("arguments", ERRORS, ids=" ".join)
def test_what_a_hint_names_can_be_typed(
    call: Call, arguments: list[str], small_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*(small_run if word == "RUN" else word for word in arguments))
    found = list(hints(err)) or err.splitlines()  # some say it in the message itself
    assert code == 2 or (code == 3 and arguments[0] == "data"), err
    for hint in found:
        follow(call, hint, arguments[0])


def follow(call: Call, hint: str, command: str) -> None:
    """Type what a hint names."""
    for typed in COMMAND.findall(hint):
        words = shlex.split(typed)
        dry = ["--dry-run"] if words[0] in ("run", "bench") and "--list" not in words else []
        code, _, err = call(*words, *dry)
        assert code == 0, f"{typed}: {err}"
    rest = COMMAND.sub("", hint)
    for pair in PAIR.findall(rest):
        key, _, value = pair.partition("=")
        if value.strip(".") and value not in SETS:
            resolve(["recipe=unidec", pair], default_registry())
        else:
            assert is_key(key), key
    for key in KEY.findall(PAIR.sub("", rest)):
        assert is_key(key), key
    for option in OPTION.findall(rest):
        assert option in call(command, "--help")[1], option


def is_key(key: str) -> bool:
    slot, _, _ = key.rpartition(".")
    return key in {*setting_options(), *CHOICES, "data", "plugin", "recipe", "preset"} or slot in CHOICES


def test_plugin_files_are_spelled_alike_in_all_commands(call: Call, tmp_path: Path, small_run: Path) -> None:
    """`plugin=FILE` reaches every command that takes one: a missing file is the same error in all."""
    missing = tmp_path / "none.py"
    for command in (
        ["run", "recipe=unidec"],
        ["parts", "loss"],
        ["recipes"],
        ["check", "loss:ds"],
        ["predict", small_run, "--text", "a"],
        ["eval", small_run],
        ["export", small_run, "--to", tmp_path / "to"],
        ["score", "--pred", tmp_path / "predictions", "--data", "tiny"],
    ):
        code, _, err = call(*command, f"plugin={missing}")
        assert (code, err) == (2, f"error: plugin={missing}: no such file\n"), command
        assert "--plugin" not in call(command[0], "--help")[1]
