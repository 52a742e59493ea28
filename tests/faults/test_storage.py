"""Faults of storage: a full disk, a read-only folder, damaged files, two runs in one folder.

5  full disk: exit 7 with the bytes needed and free, and the checkpoint before it loads
6  read-only folder, or a file in its place: exit 7 before any training
7  a truncated or changed checkpoint is named, and the one before it is used; with --strict-resume exit 7;
   records that were lost are not made up
8  a checkpoint of another config: exit 2, with the keys that matter; resume.allow lets some differ
9  a checkpoint or a run folder of a newer format: exit 7
11  nothing is written over what was loaded
12  two runs in one folder: the second exits 7 and names the process of the first
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from xmclab.errors import StorageError
from xmclab.host.config import Config
from xmclab.runs import checkpoints, shards, store
from xmclab.runs.lock import claimed
from xmclab.runs.run import run
from xmclab.training.trainer import Trainer

Call = Callable[..., tuple[int, str, str]]
Make = Callable[[Sequence[str]], Any]
QUIET = Console(quiet=True)
TINY = [
    "recipe=none",
    "data=tiny",
    "encoder=bag",
    "encoder.dim=16",
    "head.de.dim=16",
    "head.clf.dim=16",
    "sampler.batch_size=256",
]
TINY += ["epochs=2", "baseline=none"]


# 5


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file may become larger: the system refuses the rest, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit_ends_the_run_and_costs_none(
    mortal: Make, undisturbed: Make, monkeypatch: pytest.MonkeyPatch, waiting_for_checkpoints: None
) -> None:
    """The disk is full from the second checkpoint on."""
    victim = mortal(["checkpoint.every=3", "checkpoint.keep=1"])
    step = Trainer.launch
    with contextlib.ExitStack() as stack:

        def filling(self: Trainer, number: int, prepared: Any) -> Any:
            if number == 5:
                stack.enter_context(small_files(200_000))
            return step(self, number, prepared)

        monkeypatch.setattr(Trainer, "launch", filling)
        with pytest.raises(StorageError, match=r"step-000000006.*cannot be written.*[\d,]+ bytes needed, .* free"):
            run(victim.config, victim.folder, QUIET)
    monkeypatch.undo()
    assert [path.name for path in checkpoints.by_step(victim.folder / "checkpoints")] == ["step-000000003"]
    assert victim.ends() == undisturbed([])
    assert victim.resumed == [3]


@pytest.mark.parametrize(
    ("function", "size"), [("save_start", 20_000), ("save_model", 200_000), ("save_points", 1_000)]
)
def test_a_full_disk_anywhere_in_a_run_exits_7(
    small_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, size: int
) -> None:
    real = getattr(store, function)

    def limited(*arguments: Any) -> None:
        with small_files(size):
            real(*arguments)

    monkeypatch.setattr(store, function, limited)
    with pytest.raises(StorageError, match=r"cannot be written: File too large \(.*free\)"):
        run(small_config(), tmp_path / "run", QUIET)


def test_an_export_to_a_full_disk_exits_7(call: Call, small_run: Path, tmp_path: Path) -> None:
    with small_files(30_000):
        code, out, err = call("export", small_run, "--to", tmp_path / "export")
    assert (code, out) == (7, "")
    assert "cannot be written: File too large" in err
    assert "Traceback" not in err
    assert not (tmp_path / "export").exists()


def test_a_disk_that_is_really_full(call: Call, tmp_path: Path) -> None:
    """A file system of a few megabytes, where that can be mounted; what was there before stays readable."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a file system can only be mounted by root")
    try:
        code, out, err = call("run", *TINY, "encoder.dim=128", "checkpoint.every=4", "--out", disk / "run")
        assert (code, out) == (7, "")
        assert "No space left on device (" in err or "no room for the model and a checkpoint: " in err
        assert "bytes free" in err
        assert "Traceback" not in err
    finally:
        subprocess.run(["umount", disk], check=True)


# 6


def test_a_folder_that_cannot_be_written_exits_7_before_the_data_is_read(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("xmclab.runs.run.open_with_validation", lambda _: pytest.fail("the data was read"))
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        code, stdout, err = call("run", *TINY, "--out", out)
        assert (code, stdout) == (7, "")
        assert f"--out {out}: cannot be written: " in err
    assert (tmp_path / "file").read_text() == "mine"


# 7


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, small_config: Callable[..., Config]
) -> Callable[[Path], tuple[Config, Path]]:
    """A run that ended after its 8th of 10 steps, with checkpoints after 3 and 6; a copy of it for each test."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    config = small_config("checkpoint.every=3")

    class Power(Exception):
        pass

    def fails(self: Trainer, number: int, prepared: Any) -> Any:
        if number == 8:
            raise Power
        return step(self, number, prepared)

    step = Trainer.launch
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Power):
        patch.setattr(Trainer, "launch", fails)
        run(config, folder, QUIET)
    return lambda to: (config, shutil.copytree(folder, to / "run"))


def damaged(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "flipped":
        content[-9] ^= 2
    file.write_bytes(content)
    if how == "missing":
        file.unlink()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("dense-0.safetensors", "flipped"),
        ("dense-0.safetensors", "truncated"),
        ("heads.clf.psi-0.safetensors", "missing"),
        ("manifest.json", "truncated"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    stopped: Any, undisturbed: Make, call: Call, tmp_path: Path, name: str, how: str
) -> None:
    _, folder = stopped(tmp_path)
    damaged(folder / "checkpoints" / "step-000000006" / name, how)
    code, out, err = call("run", "--resume", folder, "--strict-resume")
    assert (code, out) == (7, "")
    assert f"step-000000006/{name}: " in err
    code, _, err = call("run", "--resume", folder)
    assert code == 0, err
    assert f"step-000000006/{name}: " in err
    assert "trying the checkpoint before it" in err
    assert "resuming after step 3 of 10" in err
    assert sorted(json.loads((folder / "result.json").read_text())["metrics"].items()) == sorted(
        undisturbed([]).result[0].items()
    )


@pytest.mark.parametrize("key", ["updates", "records", "batch", "scale", "torch"])
def test_a_number_that_changed_in_a_manifest_is_found(stopped: Any, tmp_path: Path, key: str) -> None:
    """It would otherwise change the run without a trace."""
    _, folder = stopped(tmp_path)
    file = folder / "checkpoints" / "step-000000006" / "manifest.json"
    content = bytearray(file.read_bytes())
    digit = next(at for at in range(content.index(f'"{key}": '.encode()), len(content)) if content[at] in b"0123456789")
    content[digit] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"step-000000006/manifest.json: changed: its sha256 is another one"):
        checkpoints.newest(folder, strict=True)
    found = checkpoints.newest(folder)
    assert found
    assert found.at.step == 3


@pytest.mark.parametrize("left", [0, 500, None])
def test_records_that_were_lost_are_not_made_up(
    stopped: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, left: int | None
) -> None:
    """As a crash of the whole machine may lose them: those of later steps follow the last whole one."""
    config, folder = stopped(tmp_path)
    file = folder / "metrics.jsonl"
    content = file.read_bytes()
    file.unlink() if left is None else file.write_bytes(content[:left])
    run(config, folder, QUIET, resume=True)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [record["step"] for record in records if record["event"] == "step"][-4:] == [6, 7, 8, 9]
    assert file.read_bytes().startswith(content[: content.rfind(b"\n", 0, left or 0) + 1])
    assert f"{file}: {left or 0} of " in caplog.text


def test_without_an_intact_checkpoint_nothing_is_trained(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    for step in checkpoints.by_step(folder / "checkpoints"):
        damaged(step / "dense-0.safetensors", "flipped")
    code, out, err = call("run", "--resume", folder)
    assert (code, out) == (7, "")
    assert err.splitlines()[-1] == f"error: {folder}: no checkpoint is intact (start again in a new folder)"


@pytest.mark.parametrize("kind", ["refresh", "best"])
def test_what_many_checkpoints_share_is_written_again_if_it_was_damaged(
    mortal: Make, undisturbed: Make, signal_at: Any, waiting_for_checkpoints: None, kind: str
) -> None:
    """Though it has the size that it should have."""
    overrides = ["epochs=4", "sampler=cluster", "refresh_every=1", "validate.share=0.2"]
    victim = mortal([*overrides, "checkpoint.every=1", "checkpoint.keep=20"])
    victim.dies(signal_at(Trainer, "launch", 15))
    shared = max((victim.folder / "checkpoints").glob(f"{kind}-*"))
    damaged(next(shared.glob("*.safetensors")), "flipped")
    victim.dies(signal_at(Trainer, "launch", 3))
    assert victim.ends() == undisturbed(overrides)


def test_rows_that_are_missing_are_not_made_up(stopped: Any, tmp_path: Path) -> None:
    """A manifest that matches its files, but whose tables have a gap."""
    _, folder = stopped(tmp_path)
    found = checkpoints.newest(folder)
    assert found
    manifest = dict(found.manifest)
    manifest["tables"]["heads.clf.psi"]["rows"] += 1
    manifest["sha256"] = shards.checksum(manifest)
    (found.folder / "manifest.json").write_text(json.dumps(manifest))
    config, _ = stopped(tmp_path / "other")
    with pytest.raises(StorageError, match="922 of 923 rows of a table"):
        run(config, folder, QUIET, resume=True)


# 8


def test_a_run_with_another_config_is_not_resumed(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    code, out, err = call("run", "--resume", folder, "loss.clf=ds", "pool.beta=2", "encode.chunk=64", "device=cpu")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "error: pool.beta: 3 in the run, 2 in this command",
        "error: loss.clf.expression: ds+bce in the run, ds in this command",
        f"error: resume {folder}: the run has another config "
        "(start in a new folder, or allow it with resume.allow=KEY,KEY)",
    ]
    code, _, err = call("run", "--resume", folder, "optim.decay=0.5", "resume.allow=optim.decay", "checkpoint.every=0")
    assert code == 0, err
    assert "resuming after step 6 of 10" in err


def test_a_key_of_resume_allow_that_is_none_is_named(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    code, out, err = call("run", "--resume", folder, "optim.decay=0.5", "resume.allow=optim.dekay")
    assert (code, out) == (2, "")
    assert "error: resume.allow: unknown key 'optim.dekay' (did you mean 'optim.decay'?)" in err


def test_a_run_is_not_resumed_for_fewer_epochs_than_it_had(stopped: Any, call: Call, tmp_path: Path) -> None:
    """It would end where it stands, as if it were a run of so many epochs."""
    _, folder = stopped(tmp_path)
    code, out, err = call("run", "--resume", folder, "epochs=1", "resume.allow=epochs")
    assert (code, out) == (2, "")
    assert err == "error: epochs=1: the run is in its epoch 2 already (choose as many or more)\n"
    assert checkpoints.newest(folder)
    assert "epochs: 2" in (folder / "config.yaml").read_text()


def test_another_data_set_is_not_taken_for_a_changed_one(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    code, out, err = call("run", "--resume", folder, "data=debian")
    assert (code, out) == (3, "")
    assert "data=debian: not the data of the run, which began with data=tiny" in err


def test_a_run_without_its_manifest_is_not_told_to_do_the_same_again(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    (folder / "manifest.json").unlink()
    code, out, err = call("run", "--resume", folder)
    assert (code, out) == (7, "")
    assert err == f"error: {folder / 'manifest.json'}: missing (restore the file, or train the run again)\n"


def test_a_run_that_starts_over_says_so(stopped: Any, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    shutil.rmtree(folder / "checkpoints")
    code, _, err = call("run", "--resume", folder)
    assert code == 0, err
    assert f"{folder}: no checkpoint, so training starts from the beginning" in err


@pytest.mark.parametrize("thread", [False, True], ids=["between steps", "in the thread"])
def test_a_folder_that_is_moved_away_stays_whole_and_is_resumed_there(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_config: Callable[..., Config],
    waiting_for_checkpoints: None,
    thread: bool,
) -> None:
    """Nothing appears in its old place, and the run ends with an error about it."""
    step, write_folder = Trainer.launch, shards.write_folder
    folder, moved = tmp_path / "run", tmp_path / "moved"

    def moving(self: Trainer, number: int, prepared: Any) -> Any:
        if number == 7 and not thread:
            folder.rename(moved)
        return step(self, number, prepared)

    def writing(root: Path, name: str, *rest: Any) -> Path:
        if name == "step-000000008" and thread:
            folder.rename(moved)
        return write_folder(root, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "launch", moving)
        patch.setattr(checkpoints, "write_folder", writing)
        with pytest.raises(StorageError, match="No such file or directory"):
            run(small_config("checkpoint.every=2"), folder, QUIET)
    assert not folder.exists()
    code, _, err = call("run", "--resume", moved)
    assert code == 0, err
    assert "resuming after step 6 of 10" in err


def test_a_run_on_other_data_is_not_resumed(call: Call, tmp_path: Path) -> None:
    assert call("data", "convert", "tiny", tmp_path / "data", "--to", "table")[0] == 0
    code, _, err = call("run", *TINY, f"data={tmp_path / 'data'}", "--out", tmp_path / "run")
    assert code == 0, err
    (tmp_path / "run" / "result.json").unlink()
    file = next((tmp_path / "data").glob("test*"))
    file.write_text(file.read_text() + file.read_text().splitlines(keepends=True)[-1])
    code, out, err = call("run", "--resume", tmp_path / "run")
    assert (code, out) == (3, "")
    assert "the files changed since the run began" in err


# 9


def test_a_newer_format_is_refused(stopped: Any, small_run: Path, call: Call, tmp_path: Path) -> None:
    _, folder = stopped(tmp_path)
    model = shutil.copytree(small_run, tmp_path / "model")
    for manifest, arguments in [
        (folder / "checkpoints" / "step-000000006" / "manifest.json", ["run", "--resume", folder, "--strict-resume"]),
        (model / "manifest.json", ["predict", model, "--text", "perl"]),
    ]:
        document = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**document, "format": 99, "xmclab": "9.9"}))
        code, out, err = call(*arguments)
        assert (code, out) == (7, "")
        assert "written by xmclab 9.9, format 99; this is " in err


# 11


def test_what_was_loaded_is_never_written_over(stopped: Any, tmp_path: Path) -> None:
    """Not even by the checkpoint of the same step: files are replaced as a whole, or not at all."""
    config, folder = stopped(tmp_path)
    file = folder / "checkpoints" / "step-000000006" / "dense-0.safetensors"
    with file.open("rb") as opened:
        before = opened.read()
        run(config, folder, QUIET, resume=True)
        opened.seek(0)
        assert opened.read() == before


# 12


def test_a_folder_in_use_is_refused_with_its_process(stopped: Any, call: Call, tmp_path: Path, in_child: Any) -> None:
    """And the lock of a dead process is none."""
    config, folder = stopped(tmp_path)
    go, busy = tmp_path / "go", tmp_path / "busy"

    def hold() -> None:
        with claimed(folder, "", resume=True):
            busy.write_text(str(os.getpid()))
            while not go.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), 9)

    def meanwhile() -> None:
        while not busy.exists():
            time.sleep(0.01)
        code, out, err = call("run", "--resume", folder)
        assert (code, out) == (7, "")
        assert f"the folder is in use by process {busy.read_text()} on {os.uname().nodename}" in err
        go.touch()

    assert in_child(hold, meanwhile) == -9
    assert run(config, folder, QUIET, resume=True).metrics


def test_of_two_runs_that_start_together_one_trains(tmp_path: Path, small_config: Callable[..., Config]) -> None:
    with claimed(tmp_path / "run", ""), pytest.raises(StorageError, match="in use by process"):
        run(small_config(), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


# 8: runs that have ended


def test_a_run_that_has_ended_is_shown_and_not_trained_again(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the command asks for another one."""
    arguments = ["run", *TINY, "--out", tmp_path / "run", "--resume", "auto", "--json"]
    code, first, err = call(*arguments)
    assert code == 0, err
    monkeypatch.setattr(Trainer, "launch", lambda *_: pytest.fail("it was trained again"))
    assert call(*arguments)[:2] == (0, first)
    assert call("run", "--resume", tmp_path / "run", "--json")[:2] == (0, first)
    code, out, err = call(*arguments, "pool.beta=2")
    assert (code, out) == (2, "")
    reason = "the run has ended (to train on, start a new one from its weights: start="
    assert err.startswith(f"error: resume {tmp_path / 'run'}: {reason}")
    assert "error: pool.beta: 3 in the run, 2 in this command" in err
    assert "resume.allow" not in err, "nothing can be allowed"


def test_a_run_that_has_ended_says_what_has_no_effect(call: Call, tmp_path: Path) -> None:
    code, _, err = call("run", *TINY, "--out", tmp_path / "run")
    assert code == 0, err
    assert call("run", "--resume", tmp_path / "run", "device=cpu")[2] == ""
    code, _, err = call("run", "--resume", tmp_path / "run", "epochs=9", "resume.allow=epochs", "data=debian")
    assert code == 0
    assert err.splitlines() == [
        "warning: the run has ended, so this has no effect: epochs: 2 in the run, 9 in this command",
        "warning: the run has ended, so this has no effect: data: tiny in the run, debian in this command",
    ]


def test_to_resume_needs_a_run(call: Call, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    for arguments, expected, message in [
        (["--resume", "auto"], 2, "--resume auto: needs --out DIR"),
        (["--resume", tmp_path / "other"], 7, "not a run folder (it has no config.yaml)"),
        (["--resume", tmp_path / "nowhere"], 7, "not a run folder (it has no config.yaml)"),
        (["--resume", "auto", "--out", tmp_path / "other"], 7, "the folder is not empty"),
        (["--resume", tmp_path / "other", "recipe=unidec"], 2, "recipe=unidec: the recipe is that of"),
        (["--resume", tmp_path / "a", "--out", tmp_path / "b"], 2, "the run goes on in"),
    ]:
        code, out, err = call("run", *TINY[1:], *arguments)  # without a recipe: it is that of the run
        assert (code, out) == (expected, "")
        assert message in err
    assert (tmp_path / "other" / "mine.txt").read_text() == "mine"
