"""Attack real runs for some minutes, and count the faults they survive: `results.md` and `results.json` beside this.

A fault is survived if the run, continued, ends with the numbers of an undisturbed run, bit for bit: losses and gradient
norms of all steps, each once; metrics of evaluations and of the result; the bytes of the weights and of other files.

python benchmarks/chaos/chaos.py [--seed N] [--kills N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

# Before torch is imported: one thread each, as two runs share two cores, and forks must find no other.
for name, value in {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}.items():
    os.environ.setdefault(name, value)
os.environ["HF_HUB_OFFLINE"] = "1"

from attacks import GROUPS, Job, Outcome, damage, disks, kills, pairs, saves, signals, undisturbed  # noqa: E402
from victims import SUBJECTS, die_with_parent, import_all, make_transformer  # noqa: E402

HERE = Path(__file__).parent
AT_ONCE = 2
FRESH = "recipe=unidec"  # is attacked in processes of its own
Attack = Callable[..., Outcome]


def attacks(jobs: dict[str, Job], number: int) -> list[tuple[Attack, Job, tuple[Any, ...]]]:
    """All of them; the long ones first.

    Args:
        number: of kills.
    """
    of_fresh = number // 10
    forked = [job for name, job in jobs.items() if name != FRESH]
    shares = [(number - of_fresh + place) // (2 * len(forked)) for place in range(2 * len(forked))]
    found: list[tuple[Attack, Job, tuple[Any, ...]]] = [(kills, jobs[FRESH], (of_fresh, True))]
    found += [(kills, forked[place // 2], (share,)) for place, share in enumerate(shares)]
    found += [(damage, job, (10, True)) for job in forked[:4]]
    found += [(damage, job, (8, False)) for job in (forked[0], forked[3])]
    found += [(disks, job, (6,)) for job in forked[:3]]
    stops = [(forked[0], signal.SIGTERM), (forked[1], signal.SIGINT), (forked[2], signal.SIGHUP)]
    found += [(signals, job, (int(sent), 8)) for job, sent in (*stops, (forked[4], signal.SIGTERM))]
    found += [(pairs, job, (6,)) for job in forked[:3]]
    return [*found, (saves, forked[0], (6,))]


def attacked(attack: Attack, job: Job, arguments: tuple[Any, ...]) -> Outcome:
    """An attack in a folder of its own; one that fails itself is no success."""
    job.root.mkdir()
    started = time.perf_counter()
    try:
        outcome = attack(job, *arguments)
    except Exception:
        outcome = Outcome(attack.__name__, job.subject)
        outcome.judge(1, [traceback.format_exc()])
    outcome.seconds = time.perf_counter() - started
    return outcome


def run_all(seed: int, number: int, root: Path) -> list[Outcome]:
    """Prepare, attack, and say what happened."""
    import_all()
    context = multiprocessing.get_context("fork")
    outcomes = []
    with ProcessPoolExecutor(AT_ONCE, context, die_with_parent) as pool:
        pool.submit(make_transformer, root / "bert").result()
        whole: dict[str, tuple[Job, Future[Any]]] = {}
        for name, words in SUBJECTS.items():
            words = [word.replace("MODEL", str(root / "bert")) for word in words]
            (root / name).mkdir()
            job = Job(name, words, root / name, seed, {}, {}, 0.0)
            whole[name] = job, pool.submit(undisturbed, job)
        jobs = {name: replace(job, **_known(future.result())) for name, (job, future) in whole.items()}
        waiting = []
        for place, (attack, job, arguments) in enumerate(attacks(jobs, number)):
            own = replace(job, root=root / f"attack{place}", seed=1000 * seed + place)
            waiting.append(pool.submit(attacked, attack, own, arguments))
        for future in waiting:
            outcomes.append(outcome := future.result())
            numbers = f"{outcome.survived}/{outcome.faults} survived, {outcome.seconds:.0f} s"
            print(f"{outcome.attack}, {outcome.subject}: {numbers}", flush=True)
            for problem in outcome.problems:
                print(f"  {problem}", flush=True)
    return outcomes


def _known(found: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("expected", "longest", "seconds"), found, strict=True))


def summary(outcomes: list[Outcome], seed: int, seconds: float) -> dict[str, Any]:
    """The sums as JSON values."""
    rows: dict[str, dict[str, int]] = {}
    hits: Counter[str] = Counter()
    for outcome in outcomes:
        row = rows.setdefault(outcome.attack, {"faults": 0, "survived": 0, "replayed": 0})
        for key in row:
            row[key] += getattr(outcome, key)
        if outcome.attack.startswith("kill"):
            hits += outcome.hits
    reached = {group: sum(hits[phase] for phase in phases) for group, phases in GROUPS.items()}
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    problems += [f"no kill -9 hit: {group}" for group, times in reached.items() if not times]
    if not sum(row["replayed"] for name, row in rows.items() if name.startswith("kill")):
        problems.append("no step was replayed: nothing is proved")
    return {
        "seed": seed,
        "attacks": rows,
        "phases": dict(hits.most_common()),
        "groups": reached,
        "problems": problems,
        "seconds": round(seconds),
    }


def report(found: dict[str, Any]) -> str:
    """The summary as Markdown."""
    rows = found["attacks"]
    total, survived = (sum(row[key] for row in rows.values()) for key in ("faults", "survived"))
    lines = [
        "# Chaos: faults survived by runs",
        "",
        f"{survived} of {total} faults were survived (seed {found['seed']}, {found['seconds']} s): the run, continued, "
        "ended with the",
        "numbers of an undisturbed one, bit for bit; or was refused, where that is right. Made by `make chaos`.",
        "Replayed: steps done more than once; those of stops are due to second signals and to ends without a step.",
        "",
        "| attack | faults | survived | steps replayed |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {row['faults']} | {row['survived']} | {row['replayed'] or '–'} |" for name, row in rows.items()),
        "",
        "Where `kill -9` hit:",
        "",
        "| phase | kills |",
        "| --- | ---: |",
        *(f"| {phase} | {times} |" for phase, times in found["phases"].items()),
    ]
    if found["problems"]:
        lines += ["", "Not survived:", "", "```", *found["problems"], "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=100, help="times that a run is killed with SIGKILL")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="xmclab-chaos-") as root:
        outcomes = run_all(options.seed, options.kills, Path(root))
    found = summary(outcomes, options.seed, time.perf_counter() - started)
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(report(found), encoding="utf-8")
    print(report(found))
    sys.exit(1 if found["problems"] else 0)


if __name__ == "__main__":
    main()
