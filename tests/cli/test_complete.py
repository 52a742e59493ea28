"""What a shell is offered: keys, the options of the parts that are chosen, and values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from xmclab.cli.complete import complete_override

TERMS = ("supcon.weight", "supcon.temperature", "pml.NCALoss.weight")
BASH = {
    "xmclab ru": ["run"],
    "xmclab run epo": ["epochs=", "epochs=10"],
    "xmclab run recipe=unidec_": ["unidec_paper", "unidec_release", "unidec_transformer"],
    "xmclab run epochs=3 sampler=": ["cluster", "cluster_mix", "random"],
    "xmclab plan loss.clf=0.7*ds+softm": ["0.7*ds+softmax"],
    "xmclab run data=ti": ["tiny"],
    "xmclab parts sam": ["sampler"],
    "xmclab run --dry": ["--dry-run"],
    "xmclab run loss.clf=focal+0.5*ds loss.clf.focal.": [
        f"loss.clf.focal.{name}=" for name in ("weight", "temperature", "gamma", "alpha")
    ],
    "xmclab plan head.clf=none head.de.init=": ["default", "identity", "xavier", "normal"],
}
PROGRAM = """
import contextlib, io, json, os, sys
sys.modules["torch"] = None
sys.argv = ["xmclab"]
from xmclab.cli import main
for variables in json.loads(sys.stdin.read()):
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    print(json.dumps(out.getvalue().split()))
"""


def of_bash(words: str) -> dict[str, str]:
    """What bash hands over for these words; `=` is a word of its own."""
    typed = words.replace("=", " = ").split() + [""] * words.endswith(" ")
    return {"_XMCLAB_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1)}


def of_fish(words: str) -> dict[str, str]:
    """What fish does, which keeps words whole."""
    fish = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return {"_XMCLAB_COMPLETE": "complete_fish", **fish}


def test_a_shell_is_offered_what_a_word_could_become_without_torch() -> None:
    asked = [*map(of_bash, BASH), of_fish("xmclab run recipe=unidec_r"), of_fish("xmclab run head.de.init=x")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    *bash, recipe, init = map(json.loads, done.stdout.splitlines())
    offered = [[word for word in words if not word.startswith("slices")] for words in bash]  # of an example
    assert dict(zip(BASH, offered, strict=True)) == BASH
    assert (recipe, init) == (["recipe=unidec_release"], ["head.de.init=xavier"])


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sampler.bat"], ["sampler.batch_size=", "sampler.batch_size=1024"]),
        (["recipe=none", "miner.dep"], []),
        (["miner=ann", "miner.dep"], ["miner.depth=", "miner.depth=0"]),
        (["head.clf.table=a"], ["head.clf.table=adamw", "head.clf.table=adagrad"]),
        (["head.clf.clus"], []),
        (["head.clf=label_clusters", "head.clf.clus"], ["head.clf.clusters=", "head.clf.clusters=65536"]),
        (["head.clf=none", "head.clf."], []),
        (["loss=supcon+pml.NCALoss", "loss.de."], [f"loss.de.{term}=" for term in TERMS]),
        (["loss.clf=ds+", "loss.clf."], []),
        (["reader.test_"], ["reader.test_share=", "reader.test_share=0.1"]),
        (["tracker=tensorboard+mlflow", "tracker.ur"], ["tracker.uri="]),
        (["encode.chunk="], ["encode.chunk=auto"]),
        (["validate.share="], ["validate.share=none"]),
        (["sampler", "=", "cluster", "sampler", "=", "ra"], ["random"]),
        (["head.de.init", "="], ["default", "identity", "xavier", "normal"]),
        (["head.de.init", ""], ["default", "identity", "xavier", "normal"]),
        (["head.de.init", "=", "x"], ["xavier"]),
        (["plugin=/no/such.py", "recipe=nothing", "head.de.init=x"], ["head.de.init=xavier"]),
    ],
)
def test_options_are_those_of_the_parts_chosen_so_far(typed: list[str], offered: list[str]) -> None:
    *before, last = typed
    context: Any = SimpleNamespace(params={"overrides": before})
    assert complete_override(context, last.removeprefix("=")) == offered, "click hands over = as nothing"
