"""`make bench-plan`: what `xmclab plan` says beside what the run then takes.

python benchmarks/plan/compare.py [--rounds 2] [--only NAME]

Each plan and each run is a process of its own, a plan directly followed by its run. Seconds are those of the process on
its cores (of all its threads), because other work on the machine would slow down one of a pair and not the other;
`--wall` takes the clock on the wall. Every pair is measured more than once and shown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "speed"))
BERT = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
ON_CORES = "import time; time.perf_counter = time.process_time; from xmclab.cli import main; main()"
SIZES = ("--train", "100000", "--test", "5000", "--labels", "200000")
NARROW = ("encoder.dim=64", "head.de.dim=64", "head.clf.dim=64")


@dataclass(frozen=True)
class Case:
    """A configuration."""

    name: str
    overrides: tuple[str, ...]


def cases(folder: Path) -> list[Case]:
    bert, synthetic = f"encoder.model={folder / 'bert'}", f"data={folder / 'synthetic'}"
    often = ("epochs=2", "refresh_every=1")
    return [
        Case("unidec, debian", ("recipe=unidec", "data=debian", "epochs=2")),
        Case("unidec_transformer, debian", ("recipe=unidec_transformer", bert, "data=debian", *often)),
        Case("unidec, 200,000 labels", ("recipe=unidec", synthetic, *often, *NARROW, "baseline=none")),
    ]


def make_bert(folder: Path) -> None:
    """A small random BERT that knows the words of the embedded data."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from xmclab.data import open_dataset
    from xmclab.host import default_registry

    folder.mkdir()
    texts = open_dataset("debian", "title", default_registry()).label_texts
    words = sorted({word for text in texts for word in text.lower().split() if word.isalpha()})
    letters = [mark + chr(code) for code in range(33, 127) for mark in ("", "##")]
    vocabulary = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]))
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), **BERT)).save_pretrained(folder)


def xmclab(*words: str, wall: bool = True) -> Any:
    """The JSON document of a command."""
    start = ["-m", "xmclab"] if wall else ["-c", ON_CORES]
    command = [sys.executable, *start, *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    return json.loads(done.stdout)


def measure(case: Case, out: Path, round_: int, wall: bool) -> dict[str, Any]:
    """A plan, then its run."""
    planned = xmclab("plan", *case.overrides, wall=wall)
    ran = xmclab("run", *case.overrides, "--out", str(out), wall=wall)
    parts = {part["name"]: part["seconds"] * part["times"] for part in planned["seconds"]["parts"]}
    row = {
        "case": case.name,
        "round": round_ + 1,
        "planned": {
            "epoch": planned["seconds"]["epoch"],
            "total": planned["seconds"]["total"],
            "memory": planned["memory"]["host"]["peak"],
            "disk": planned["disk"]["total"],
        },
        "actual": {
            "epoch": ran["seconds"]["train"] / planned["epochs"],
            "total": ran["seconds"]["total"],
            "memory": ran["memory"]["peak"],
            "disk": sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
        },
        "parts": {"planned": parts, "actual": ran["seconds"]},
    }
    print(json.dumps(row), flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Planned, actual and their ratio."""
    units = {"epoch": (1, "s"), "total": (1, "s"), "memory": (2**30, "GiB"), "disk": (2**20, "MiB")}
    titles = ("an epoch", "the whole run", "peak memory", "disk")
    lines = [f"| run | round | {' | '.join(titles)} |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: str(row["case"])):
        cells = []
        for name, (unit, word) in units.items():
            planned, actual = row["planned"][name] / unit, row["actual"][name] / unit
            digits = 2 if word == "GiB" else 1
            cells.append(f"{planned:.{digits}f} / {actual:.{digits}f} {word}, **{planned / actual:.2f}**")
        lines.append(f"| {row['case']} | {row['round']} | {' | '.join(cells)} |")
    return "Planned / actual, **ratio**. Seconds are those of the process on its cores.\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--wall", action="store_true", help="seconds on the wall, for a machine without other work")
    given = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from run import machine

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XMCLAB_CACHE"] = "off"  # a plan caches nothing: neither shall its run
        make_bert(folder / "bert")
        xmclab("synthetic", str(folder / "synthetic"), *SIZES)
        chosen = [case for case in cases(folder) if given.only in case.name]
        for round_ in range(given.rounds):
            for number, case in enumerate(chosen):
                rows.append(measure(case, folder / f"run-{number}-{round_}", round_, given.wall))
                if not given.only and not given.wall:
                    document = {"machine": machine(), "rows": rows}
                    (HERE / "results.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
                    (HERE / "results.md").write_text(table(rows), "utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
