"""Cost of a step with each pytorch-metric-learning loss, next to xmclab's own losses.

A step is the value and the gradient of the scores, from queries to labels, with three positives per query. Times are
medians of interleaved rounds on two threads: compare them within a table. Memory is the growth of the peak resident
size in a separate process, after a smaller step. Writes `results.md` next to this file.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "speed"))

from harness import THREADS, growth, interleaved  # noqa: E402

import xmclab  # noqa: E402
import xmclab_pml  # noqa: E402
from xmclab.errors import MemoryLimitError  # noqa: E402

SIZES = [(256, 768), (1098, 3000)]  # queries and labels of a batch
SMALL = (64, 2000)
POSITIVES = 3
OURS = ["ds", "supcon", "bce"]
LOSSES = [*OURS, *(f"pml.{name}" for name in xmclab_pml.LOSSES)]
MIB = 2**20


def step(loss: str, queries: int, labels: int) -> Callable[[], object]:
    """A step of a loss on random cosines, after a smaller warm-up step."""
    if (queries, labels) != SMALL:
        step(loss, *SMALL)()
    torch.manual_seed(0)
    s_QP = (0.2 * torch.randn(queries, labels)).clamp(-0.9, 0.9).requires_grad_()
    y_QP = torch.zeros(queries, labels, dtype=torch.bool)
    y_QP.scatter_(1, torch.rand(queries, labels).topk(POSITIVES).indices, True)
    objective = xmclab.objective(loss, temperature=0.1)
    return lambda: torch.autograd.grad(objective(s_QP, y_QP), s_QP)


def times(queries: int, labels: int, repeats: int) -> dict[str, float]:
    """Seconds per step of each loss that stays within its memory limit."""
    torch.set_num_threads(THREADS)
    steps = {}
    for loss in LOSSES:
        steps[loss] = step(loss, queries, labels)
        try:
            steps[loss]()
        except MemoryLimitError:
            del steps[loss]
    return interleaved(steps, repeats=repeats, warmup=0)


def memory(loss: str, queries: int, labels: int) -> int:
    """Peak bytes of a step; 0 if it would exceed its memory limit."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_growth, (loss, queries, labels))


def _growth(loss: str, queries: int, labels: int) -> int:
    try:
        return growth(step(loss, queries, labels))
    except MemoryLimitError:
        return 0


def report(seconds: list[dict[str, float]], bytes_: list[dict[str, int]]) -> str:
    """The table of all losses: times and memory at each size."""
    sizes = [f"{queries} × {labels}" for queries, labels in SIZES]
    titles = ["loss", *(f"{size}: {what}" for size in sizes for what in ("ms", "times `ds`", "MiB"))]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    for loss in LOSSES:
        cells = [f"`{loss}`"]
        for time, peak in zip(seconds, bytes_, strict=True):
            if loss in time:
                cells += [f"{1000 * time[loss]:,.1f}", f"{time[loss] / time['ds']:,.1f}", f"{peak[loss] / MIB:,.0f}"]
            else:
                cells += ["refused", "", ""]
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    intro = (__doc__ or "").partition("\n\n")[2].replace(" Writes `results.md` next to this file.", "").strip()
    return f"# Cost of the losses of pytorch-metric-learning\n\n{intro}\n\n{table}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork has only this thread
    bytes_ = [{loss: memory(loss, *size) for loss in LOSSES} for size in SIZES]
    seconds = [times(*size, options.repeats) for size in SIZES]
    text = report(seconds, bytes_)
    (HERE / "results.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
