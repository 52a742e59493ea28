"""XR-Linear with the settings of libpecos on matrices in a folder; xmclab is not needed.

    python xr_linear.py FOLDER --depth 100

Reads `train.npz` [N, F], `targets.npz` [N, L] and `test.npz` [Q, F], written by `scipy.sparse.save_npz`; writes
`scores.npz` [Q, L], with as many labels of each query as asked for, and prints what it took as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

SPLITS, LEAF = 16, 100  # of the tree over the labels
SEED = 0  # of its clusters


def matrix(file: Path) -> sp.csr_matrix:
    """A matrix as libpecos takes it: csr_matrix, not csr_array, of float32 and with sorted rows."""
    found = sp.csr_matrix(sp.load_npz(file), dtype=np.float32)
    found.sort_indices()
    return found


def scores(
    train_NF: sp.csr_matrix, targets_NL: sp.csr_matrix, test_QF: sp.csr_matrix, depth: int, beam: int, threads: int
) -> sp.csr_matrix:
    """[Q, L] the scores of the `depth` best labels of each query."""
    targets_NL.data[:] = 1
    # A label is described by the features of its training queries.
    labels_LF = LabelEmbeddingFactory.create(targets_NL, train_NF, method="pifa", threads=threads)
    tree = Indexer.gen(
        labels_LF,
        indexer_type="hierarchicalkmeans",
        nr_splits=SPLITS,
        max_leaf_size=LEAF,
        seed=SEED,
        threads=threads,
    )
    model = XLinearModel.train(train_NF, targets_NL.tocsc(), C=tree, threads=threads)
    return sp.csr_matrix(model.predict(test_QF, beam_size=beam, only_topk=depth, threads=threads))


def peak() -> int:
    """Bytes that this process has held at most; 0 where the system does not tell.

    Not `ru_maxrss`, which starts from the peak of the process that started this one.
    """
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--depth", type=int, default=100, help="labels of each query")
    parser.add_argument("--beam", type=int, default=10, help="nodes of a level that a query visits")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    inputs = [matrix(options.folder / f"{name}.npz") for name in ("train", "targets", "test")]
    cpu, held = time.process_time(), peak()
    found = scores(*inputs, options.depth, options.beam, options.threads)
    taken = {"cpu": time.process_time() - cpu, "memory": peak() - held}
    sp.save_npz(options.folder / "scores.npz", found)
    try:
        release = version("libpecos")
    except PackageNotFoundError:
        release = "unknown"
    print(json.dumps({**taken, "version": release}))


if __name__ == "__main__":
    main()
