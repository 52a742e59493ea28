"""Faults around trust: opening a folder, a recipe or a data file runs nothing and leads nowhere else.

44  expressions and YAML tags are not executed
45  recipe files that are not recipes
47  models that are not there, and models with code of their own
48  devices that are not there
50  an index or vectors of another model
"""

from __future__ import annotations

import builtins
import hashlib
import json
import logging
import os
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from xmclab.host.registry import default_registry
from xmclab.plan.indexes.faiss import Faiss
from xmclab.serve.export import write_export
from xmclab.serve.open import open_predictor
from xmclab.system.trust import trusting_remote_code

Call = Callable[..., tuple[int, str, str]]
QUESTION = ["--text", "red green blue", "-k", "2", "--json"]
CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizerFast

Path({marker!r}).touch()

class EvilConfig(BertConfig):
    model_type = "evil"

class EvilModel(BertModel):
    config_class = EvilConfig

class EvilTokenizer(BertTokenizerFast):
    pass
"""


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.fixture(autouse=True)
def _quiet_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers logs to the stderr of the test that imported it, which is closed by now."""
    monkeypatch.setattr(logging, "raiseExceptions", False)


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears as soon as anything hostile runs; and nobody is there to answer questions."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))

    def asked(*_: object) -> str:
        raise AssertionError("a prompt")

    monkeypatch.setattr(builtins, "input", asked)
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def bert_run(train: Callable[..., Path], tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a transformer; not to be written to."""
    encoder = ("encoder=hf", f"encoder.model={tiny_bert}", "encoder.max_length=8")
    return train(tmp_path_factory.mktemp("runs") / "bert", "head.de.dim=8", "head.clf=none", encoder=encoder)


@pytest.fixture
def exported(small_run: Path, tmp_path: Path) -> Path:
    write_export(open_predictor(small_run, default_registry(), "cpu"), small_run, tmp_path / "export", None)
    return tmp_path / "export"


def edit(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def plant(folder: Path, marker: Path, model_type: str) -> None:
    """Make the folder of a transformer hostile: code to import, and pickles under every name that was ever loaded."""
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    auto_map = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}
    edit(folder / "config.json", auto_map=auto_map, model_type=model_type)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]})
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "tokenizer.pkl", "flax_model.msgpack"):
        (folder / name).write_bytes(pickle.dumps(Bomb(marker)))


def configure(run: Path, **options: Any) -> None:
    """Set options of the encoder in the config of a run."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["encoder"] |= options
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def reseal(folder: Path) -> None:
    """Bring the checksums of an export up to date, as whoever changes its files can."""
    manifest = json.loads((folder / "index.json").read_text())
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "index.json").write_text(json.dumps(manifest))


# 47: code of a model


def commands(run: Path, tmp_path: Path) -> dict[str, list[object]]:
    """Everything that opens a run folder."""
    return {
        "predict": ["predict", run, *QUESTION],
        "eval": ["eval", run, "--json"],
        "export": ["export", run, "--to", tmp_path / "export"],
        "run": [
            "run",
            f"recipe={run / 'config.yaml'}",
            f"encoder.model={run / 'encoder'}",
            "--out",
            tmp_path / "again",
        ],
        "report": ["report", run, "--out", tmp_path / "report"],
    }


@pytest.mark.parametrize("model_type", ["bert", "evil"])
@pytest.mark.parametrize("command", ["predict", "eval", "export", "run", "report"])
def test_no_command_runs_what_a_folder_brings(
    call: Call, bert_run: Path, tmp_path: Path, marker: Path, model_type: str, command: str
) -> None:
    """With a known architecture its own implementation is used; otherwise the command says what is missing."""
    run = shutil.copytree(bert_run, tmp_path / "stranger", ignore=shutil.ignore_patterns("manifest.json"))
    plant(run / "encoder", marker, model_type)
    code, out, err = call(*commands(run, tmp_path)[command])
    assert not marker.exists()
    assert "Traceback" not in err
    if command == "report" or (command != "run" and model_type == "bert"):
        assert code == 0, err
    else:  # `run` needs weights, and those of the folder are pickles
        assert (code, out) == (3, "")
    if model_type == "evil" and command != "report":
        assert "needs Python code of its own, which was not run" in err
        assert "pass --trust-remote-code; nothing else allows it" in err


@pytest.mark.parametrize("command", ["predict", "eval", "export"])
def test_the_typed_flag_allows_it_for_this_command(
    call: Call, bert_run: Path, tmp_path: Path, marker: Path, command: str
) -> None:
    run = shutil.copytree(bert_run, tmp_path / "friend", ignore=shutil.ignore_patterns("manifest.json"))
    plant(run / "encoder", marker, "evil")
    code, _, err = call(*commands(run, tmp_path)[command], "--trust-remote-code")
    assert code == 0, err
    assert marker.exists()
    marker.unlink()
    assert call(*commands(run, tmp_path)["predict"])[0] == 3
    assert not marker.exists()


def test_trust_in_python_ends_with_its_block(bert_run: Path, tmp_path: Path, marker: Path) -> None:
    run = shutil.copytree(bert_run, tmp_path / "friend", ignore=shutil.ignore_patterns("manifest.json"))
    plant(run / "encoder", marker, "evil")
    with trusting_remote_code():
        open_predictor(run, default_registry(), "cpu")
    assert marker.exists()
    with pytest.raises(Exception, match="--trust-remote-code"):
        open_predictor(run, default_registry(), "cpu")


@pytest.mark.parametrize("command", ["predict", "eval", "export", "run"])
def test_a_config_cannot_ask_for_trust(call: Call, bert_run: Path, tmp_path: Path, marker: Path, command: str) -> None:
    run = shutil.copytree(bert_run, tmp_path / "stranger", ignore=shutil.ignore_patterns("manifest.json"))
    plant(run / "encoder", marker, "evil")
    configure(run, trust_remote_code=True)
    code, out, err = call(*commands(run, tmp_path)[command], "--trust-remote-code")
    assert (code, out) == (2, "")
    assert "config.yaml:" in err
    assert "encoder.trust_remote_code: no longer a setting (pass --trust-remote-code if you trust the author" in err
    assert not marker.exists()


def test_a_run_of_an_earlier_version_that_trusted_nobody_still_loads(
    call: Call, bert_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(bert_run, tmp_path / "old", ignore=shutil.ignore_patterns("manifest.json"))
    configure(run, trust_remote_code=False)
    code, out, err = call("predict", run, *QUESTION)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    code, out, _ = call("run", "encoder=hf", "encoder.trust_remote_code=false", "--dry-run")
    assert code == 0
    assert "trust" not in out


def test_weights_in_a_pickle_are_not_read(call: Call, tiny_bert: Path, tmp_path: Path, marker: Path) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for content in (state, Bomb(marker)):
        torch.save(content, folder / "pytorch_model.bin")
        code, out, err = call(
            "run", "recipe=none", "data=tiny", "encoder=hf", f"encoder.model={folder}", "--out", tmp_path / "run"
        )
        assert (code, out) == (3, "")
        assert "safetensors" in err
        assert not marker.exists()
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"attn_implementation": "stranger/kernel"}, "a kernel from the hub"),
        ("config.json", {"sub": [{"_attn_implementation": "stranger/kernel"}]}, "a kernel from the hub"),
        ("config.json", {"quantization_config": {"quant_method": "torchao"}}, "'quantization_config'"),
        ("config.json", {"transformers_weights": "adapter_model.bin"}, "'transformers_weights'"),
        ("adapter_config.json", {"base_model_name_or_path": "/elsewhere"}, "adapter"),
        ("model.safetensors.index.json", {"weight_map": {"a": "../x.safetensors"}}, "'../x.safetensors'"),
        ("model.safetensors.index.json", {"weight_map": {"a": "x.bin"}}, "'x.bin'"),
    ],
)
def test_what_leads_out_of_a_model_is_refused(
    call: Call, tiny_bert: Path, tmp_path: Path, name: str, content: dict[str, Any], message: str
) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    if not (folder / name).exists():
        (folder / name).write_text("{}")
    edit(folder / name, **content)
    code, out, err = call(
        "run", "recipe=none", "data=tiny", "encoder=hf", f"encoder.model={folder}", "--out", tmp_path / "run"
    )
    assert (code, out) == (3, "")
    assert message in err
    assert "Traceback" not in err


def test_a_model_that_is_not_in_the_cache_is_said_at_once(call: Call, tmp_path: Path) -> None:
    import transformers.models.auto  # noqa: F401

    started = time.monotonic()
    code, out, err = call(
        "run", "recipe=none", "data=tiny", "encoder=hf", "encoder.model=nobody/nothing", "--out", tmp_path / "run"
    )
    assert time.monotonic() - started < 2
    assert (code, out) == (3, "")
    assert "encoder.model=nobody/nothing" in err
    assert "models--nobody--nothing)" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "config",
    ["{", "[]", "null", '{"model_type": 5}', '{"model_type": "bert", "hidden_size": "x"}', '{"model_type": "nothing"}'],
)
def test_a_model_with_a_bad_config_is_a_data_error(call: Call, tiny_bert: Path, tmp_path: Path, config: str) -> None:
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    (folder / "config.json").write_text(config)
    code, out, err = call(
        "run", "recipe=none", "data=tiny", "encoder=hf", f"encoder.model={folder}", "--out", tmp_path / "run"
    )
    assert (code, out) == (3, "")
    assert f"encoder.model={folder}" in err
    assert "Traceback" not in err


# 44, 45: pickles, plugins, tags


def object_array(marker: Path) -> np.ndarray[Any, Any]:
    array = np.empty(1, dtype=object)
    array[0] = Bomb(marker)
    return array


def test_no_array_is_unpickled(call: Call, exported: Path, small_run: Path, tmp_path: Path, marker: Path) -> None:
    np.save(tmp_path / "bomb.npy", object_array(marker))
    names = ("indices", "metrics", *(f"found {search}" for search in ("de", "clf", "de+clf")))
    np.savez(tmp_path / "bomb.npz", **{name: object_array(marker) for name in names})
    sources = (tmp_path / "bomb.npy", tmp_path / "bomb.npz")
    for file in sources:
        assert call("score", "--pred", file, "--data", "tiny")[0] == 3
        assert call("score", "--pred", file, "--truth", file, "--train", file)[0] == 3

    run = shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("manifest.json"))
    shutil.copy(tmp_path / "bomb.npz", run / "points.npz")
    code, _, err = call("report", run, small_run, "--out", tmp_path / "report")
    assert code == 3
    assert "points.npz: cannot be read" in err
    shutil.copy(tmp_path / "bomb.npy", run / "encoder" / "idf.npy")
    assert call("predict", run, *QUESTION)[0] == 7

    shutil.copy(tmp_path / "bomb.npy", exported / "vectors" / "de.npy")
    reseal(exported)
    code, out, err = call("predict", exported, *QUESTION)
    assert (code, out) == (7, "")
    assert "Object arrays cannot be loaded" in err
    assert not marker.exists()


@pytest.mark.parametrize("place", ["comment", "key", "tag"])
def test_a_run_folder_loads_no_plugin_and_no_object(
    call: Call, small_run: Path, tmp_path: Path, marker: Path, place: str
) -> None:
    plugin = tmp_path / "evil.py"
    plugin.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    run = shutil.copytree(small_run, tmp_path / "run", ignore=shutil.ignore_patterns("manifest.json"))
    text = (run / "config.yaml").read_text()
    lines = {
        "comment": f"# made with plugin={plugin}\n{text}",
        "key": f"plugin: {plugin}\n{text}",
        "tag": f"{text}extra: !!python/object/apply:os.system ['touch {marker}']\n",
    }
    (run / "config.yaml").write_text(lines[place])
    for arguments in (
        ["predict", run, *QUESTION],
        ["eval", run],
        ["run", f"recipe={run / 'config.yaml'}", "--dry-run"],
    ):
        code, _, err = call(*arguments)
        assert code == (0 if place == "comment" else 2)
        assert "Traceback" not in err
    code, _, err = call("report", run, "--out", tmp_path / "report")
    assert code == (3 if place == "tag" else 0)
    assert "Traceback" not in err
    assert not marker.exists()


# 50: files that fit their checksums, but not each other


def vectors_of(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "vectors" / "de.npy"
        z_LD = np.load(path)
        changed = {
            "narrow": z_LD[:, :-2],
            "wide": np.pad(z_LD, ((0, 0), (0, 5))),
            "short": z_LD[:-1],
            "long": np.concatenate([z_LD, z_LD]),
            "double": z_LD.astype(np.float64),
            "integer": z_LD.astype(np.int32),
            "flat": z_LD.ravel(),
            "empty": z_LD[:0],
        }
        np.save(path, changed[name])

    return change


def index_of(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        z_LD = torch.from_numpy(np.hstack([np.load(folder / "vectors" / f"{head}.npy") for head in ("de", "clf")]))
        made = {"narrow": z_LD[:, :-1], "short": z_LD[:-1], "long": torch.cat([z_LD, z_LD]), "hnsw": z_LD}[name]
        index = Faiss(type="hnsw" if name == "hnsw" else "flat")
        index.build(made)
        index.write(folder / "index.faiss")

    return change


def labels_of(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        lines = (folder / "labels.jsonl").read_text().splitlines()
        changed = {"short": lines[:-1], "long": [*lines, lines[0]], "number": ['{"name": 1, "text": "a"}', *lines[1:]]}
        (folder / "labels.jsonl").write_text("\n".join(changed[name]) + "\n")

    return change


def garbage(folder: Path) -> None:
    (folder / "index.faiss").write_bytes(b"IxFI" + bytes(range(256)))


MISFITS = {
    **{f"vectors {name}": vectors_of(name) for name in ("narrow", "wide", "short", "long", "double", "integer")},
    **{f"vectors {name}": vectors_of(name) for name in ("flat", "empty")},
    **{f"index {name}": index_of(name) for name in ("narrow", "short", "long", "hnsw")},
    **{f"labels {name}": labels_of(name) for name in ("short", "long", "number")},
    "index garbage": garbage,
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("arguments", [["predict", *QUESTION], ["eval", "--json"]], ids=["predict", "eval"])
def test_an_export_whose_files_do_not_fit_is_refused(
    call: Call, exported: Path, misfit: str, arguments: list[str]
) -> None:
    MISFITS[misfit](exported)
    reseal(exported)
    if misfit.startswith("vectors"):
        edit(exported / "index.json", index=None)
    command, *rest = arguments
    code, out, err = call(command, exported, *rest)
    assert (code, out) == (7, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error: {exported}")


def test_what_a_search_learned_is_checked(call: Call, train: Callable[..., Path], tmp_path: Path) -> None:
    run = train(tmp_path / "run", "search=neighbours", "head.de.dim=8", "head.clf=none")
    file = run / "search" / "neighbours.safetensors"
    tensors = load_file(file)
    changes = {
        "labels": torch.full_like(tensors["labels"], 10**6),
        "offsets": tensors["offsets"].flip(0),
        "directions": tensors["directions"][:-1].clone(),
    }
    for name, tensor in changes.items():
        save_file({**tensors, name: tensor}, file)
        code, out, err = call("predict", run, *QUESTION)
        assert (code, out) == (7, ""), name
        assert "Traceback" not in err


# Names that lead out of their folder


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret.txt", "a/../../secret.txt", "..\\secret.txt", "link", "a\0b"]
)
def test_a_manifest_names_files_of_its_folder(call: Call, exported: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("password")
    (exported / "link").symlink_to(tmp_path / "secret.txt")
    manifest = json.loads((exported / "index.json").read_text())
    edit(exported / "index.json", files={**manifest["files"], name: {"bytes": 1, "sha256": ""}})
    code, out, err = call("predict", exported, *QUESTION)
    assert (code, out) == (7, "")
    assert "index.json: damaged: the file name" in err
    assert "8" not in err.partition("damaged")[2]  # its size


@pytest.mark.parametrize("entry", [None, 3, {"bytes": "x"}, {}])
def test_an_entry_of_a_manifest_that_says_nothing(call: Call, exported: Path, entry: Any) -> None:
    manifest = json.loads((exported / "index.json").read_text())
    edit(exported / "index.json", files={**manifest["files"], "labels.jsonl": entry})
    code, _, err = call("predict", exported, *QUESTION)
    assert code == 7
    assert "the entry of labels.jsonl is invalid" in err


@pytest.mark.parametrize("base", ["/etc/passwd", "../secret.yaml", "./a/../../secret.yaml", "link.yaml"])
def test_the_base_of_a_recipe_is_in_its_folder(call: Call, tmp_path: Path, base: str) -> None:
    (tmp_path / "secret.yaml").write_text("password: hunter2\n")
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "mine.yaml").write_text(f"base: {base}\n")
    code, out, err = call("run", f"recipe={folder / 'mine.yaml'}", "--dry-run")
    assert (code, out) == (2, "")
    assert "mine.yaml:1:1: base" in err
    assert "password" not in err
    assert "root:x" not in err


def test_a_base_below_the_recipe_and_a_recipe_anywhere_are_fine(call: Call, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.yaml").write_text("epochs: 3\n")
    (tmp_path / "mine.yaml").write_text("base: parts/base.yaml\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "mine.yaml")
    for name in ("mine.yaml", "parts/../mine.yaml", "link.yaml"):
        code, out, _ = call("run", f"recipe={tmp_path / name}", "--dry-run")
        assert code == 0
        assert yaml.safe_load(out)["epochs"] == 3


@pytest.mark.parametrize(
    "content",
    [
        "root:x:0:0:hunter2:/root:/bin/bash\n",
        "a: 'hunter2\n",
        "hunter2\nb: [hunter2\n",
        'key: "hunter2\\q"\n',
        "a: !hunter2!x y\n",
        "a: &hunter2 1\nb: &hunter2 2\n",
        "%hunter2 1\n",
        "hunter2: {a: b: c}\n",
    ],
)
def test_the_text_of_a_file_that_is_no_recipe_is_not_shown(call: Call, tmp_path: Path, content: str) -> None:
    (tmp_path / "file.yaml").write_text(content)
    code, _, err = call("run", f"recipe={tmp_path / 'file.yaml'}", "--dry-run")
    assert code == 2
    assert "file.yaml:" in err
    assert "hunter2" not in err


# 48: devices


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps", "meta", "xpu", "cpu:1", "teapot"])
def test_a_device_that_cannot_be_used_is_refused(
    call: Call, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for arguments in (
        ["run", "recipe=none", "data=tiny", f"device={device}", "--out", tmp_path / "run"],
        ["predict", small_run, *QUESTION, "--device", device],
        ["eval", small_run, "--device", device],
        ["export", small_run, "--to", tmp_path / "export", "--device", device],
    ):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert f"device={device}: " in err
        assert "CUDA devices found" in err or device == "teapot"
    assert not (tmp_path / "run").exists()


def test_auto_says_that_it_fell_to_the_cpu(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ["recipe=none", "data=tiny", "epochs=1", "baseline=none", "encoder.dim=8", "head.clf=none"]
    code, _, err = call("run", *small, "--out", tmp_path / "run")
    assert code == 0
    first = next(line for line in err.splitlines() if "training queries" in line)
    assert first.endswith("on cpu (device=auto: no CUDA device found)")
    assert "device=auto" not in call("run", *small, "device=cpu", "--out", tmp_path / "again")[2]


# More than there is


@pytest.mark.parametrize("miner", ["random", "ann"])
@pytest.mark.parametrize("eta", [900, 100_000_000])
def test_more_negatives_than_labels_are_clipped(call: Call, tmp_path: Path, miner: str, eta: int) -> None:
    small = ["data=tiny", "epochs=2", "refresh_every=1", "baseline=none", "encoder.dim=8", "head.clf=none"]
    started = time.monotonic()
    code, _, err = call("run", *small, f"miner={miner}", f"pool.eta={eta}", "--out", tmp_path / "run")
    assert code == 0, err
    assert time.monotonic() - started < 60
    note = f"note: pool.eta={eta}: there are only 922 labels; no more are used"
    assert (note in err) == (eta > 922)


def test_searches_deeper_than_the_labels_are_clipped(call: Call, tmp_path: Path) -> None:
    deep = [
        "evaluate.depth=2000000000",
        "search=neighbours",
        "search.neighbours=2000000000",
        "baseline=tfidf_neighbours",
    ]
    small = ["recipe=none", "data=tiny", "epochs=1", "encoder.dim=8", "head.clf=none", "baseline.neighbours=2000000000"]
    code, _, err = call("run", *small, *deep, "--out", tmp_path / "run")
    assert code == 0, err
    assert "note: evaluate.depth=2000000000: there are only 922 labels; no more are used" in err
    assert "note: search.neighbours=2000000000: there are only 1262 training queries; no more are used" in err
    code, _, err = call("eval", tmp_path / "run")
    assert code == 0, err


# Where files are written


def test_out_replaces_a_link_and_leaves_what_it_points_to(call: Call, small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "mine.txt")
    assert call("predict", small_run, *QUESTION, "--out", tmp_path / "out.jsonl")[0] == 7, "it is there"
    assert call("predict", small_run, *QUESTION, "--out", tmp_path / "out.jsonl", "--overwrite")[0] == 0
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "out.jsonl").is_symlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "export").symlink_to(tmp_path / "elsewhere")
    code, _, err = call("export", small_run, "--to", tmp_path / "export")
    assert code == 7
    assert "Traceback" not in err
    assert not os.listdir(tmp_path / "elsewhere")
