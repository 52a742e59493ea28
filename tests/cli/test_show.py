"""What is printed of a config and of parts."""

from __future__ import annotations

import json
from typing import Any

import yaml

import xmclab
from xmclab.host.hookspecs import KINDS


def test_dry_run_prints_a_recipe(call: Any, trainer: list[tuple[Any, ...]]) -> None:
    code, out, _ = call("run", "recipe=unidec", "pool.beta=9", "--dry-run")
    assert code == 0
    document = yaml.safe_load(out)
    assert document["pool"]["beta"] == 9
    assert document["head"]["clf"]["name"] == "classifier"
    _, as_json, _ = call("run", "recipe=unidec", "pool.beta=9", "--dry-run", "--json")
    assert json.loads(as_json) == document
    assert trainer == []


def test_why_says_who_set_a_value(call: Any, trainer: list[tuple[Any, ...]]) -> None:
    code, out, _ = call("run", "recipe=unidec", "pool.beta=9", "--why")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["pool.beta"] == ["9", "override"]
    assert rows["reduction.de"][0] == "psl"
    assert rows["reduction.de"][1].startswith("unidec.yaml:")
    assert rows["encoder.hidden"][1:] == ["default", "of", "bag"] or rows["encoder.hidden"][1].startswith("unidec.yaml")
    _, as_json, _ = call("run", "recipe=unidec", "--why", "--json")
    assert {"key": "seed", "value": 0, "source": "default"} in json.loads(as_json)
    assert trainer == []


def test_parts_shows_everything(call: Any) -> None:
    code, out, _ = call("parts", "--json")
    assert code == 0
    document = json.loads(out)
    assert {part["kind"] for part in document["parts"]} == set(KINDS)
    assert document["problems"] == []
    [ds] = [part for part in document["parts"] if (part["kind"], part["name"]) == ("loss", "ds")]
    assert (ds["distribution"], ds["version"], ds["plugin"]) == ("xmclab", xmclab.__version__, "losses")
    assert ds["summary"]
    assert [option["name"] for option in ds["options"]] == ["temperature"]

    [bag] = [part for part in document["parts"] if (part["kind"], part["name"]) == ("encoder", "bag")]
    assert {option["name"]: option["search"] for option in bag["options"]}["lr"] == "log(0.001, 0.03)"
    assert "[tuned: log(0.001, 0.03)]" in call("parts", "encoder")[1]

    code, out, _ = call("parts", "sampler")
    assert code == 0
    assert out.startswith("sampler\n")
    assert "batch_size: int = 1024 >= 1" in out
    assert "decoupled" not in out.lower()


def test_listings_have_no_colour_codes_outside_a_terminal(call: Any) -> None:
    for arguments in (["recipes"], ["parts", "loss"], ["run", "--why"]):
        assert "\x1b" not in call(*arguments)[1]
