"""Goal 4: updates of a pool's rows, and a step whose cost does not depend on the number of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from harness import Row, interleaved
from torch import Tensor, nn

import xmclab
from xmclab.api import Encoder, Ragged, Side, Tokens
from xmclab.host.schema import OptimSettings
from xmclab.model.heads.classifier import Classifier
from xmclab.model.model import Model
from xmclab.model.tables import RowOptimizer, RowTable, TableDtype, TableOptimizer
from xmclab.objectives.engine import evaluate_vectors
from xmclab.objectives.truth import Truth
from xmclab.training.optim import Optimizers

DIM, POOL, QUERIES = 64, 3000, 1024
STORED: list[tuple[TableOptimizer, TableDtype, int]] = [
    ("adamw", "float32", 12 * DIM),
    ("adagrad", "float32", 4 * DIM + 4),
    ("adagrad", "bfloat16", 2 * DIM + 4),
]
LABELS, FEW, MANY, FEWEST = 1_000_000, 100_000, 10_000_000, 10_000


def pools(labels: int) -> list[Tensor]:
    """A few random pools, so that rows are not always cached."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(labels, (4 * POOL,), generator=generator).unique()[:POOL] for _ in range(4)]


class Training:
    """A table; every step looks up and updates a pool of its rows."""

    def __init__(self, module: nn.Module, weight: nn.Parameter, optimizer: torch.optim.Optimizer, labels: int) -> None:
        self.module, self.weight, self.optimizer = module, weight, optimizer
        self.ids, self.gradient_PD = cycle(pools(labels)), torch.randn(POOL, DIM)
        for _ in range(4):  # create state, touch every page
            self.step()

    def look_up(self) -> None:
        """Look up rows and backpropagate a gradient."""
        self.weight.grad = None
        self.module(next(self.ids)).backward(self.gradient_PD)

    def update(self) -> None:
        self.optimizer.step()

    def step(self) -> None:
        self.look_up()
        self.update()


def ours(labels: int, rule: TableOptimizer = "adamw", dtype: TableDtype = "float32") -> Training:
    table = RowTable(labels, DIM, lr=1e-3, optimizer=rule, dtype=dtype)
    nn.init.zeros_(table.weight)
    return Training(table, table.weight, RowOptimizer([table], decay=0.01), labels)


def torchs(kind: type[torch.optim.Optimizer], sparse: bool) -> Training:
    table = nn.Embedding(LABELS, DIM, sparse=sparse)
    return Training(table, table.weight, kind(table.parameters(), lr=1e-3), LABELS)  # type: ignore[call-arg]


def beside(peer: str, training: Training, least: float, repeats: int) -> list[Row]:
    """Our update compared with another optimizer's, alone and including lookup and backward."""
    both = {"ours": ours(LABELS), "peer": training}
    calls = {f"{name}, {what}": getattr(t, what) for name, t in both.items() for what in ("look_up", "update")}
    seconds = interleaved(calls, repeats)
    size = f"{POOL} rows of {DIM}, L = {LABELS:,}"
    rows = []
    for what, steps in (("adamw update", ["update"]), ("lookup, backward and adamw update", ["look_up", "update"])):
        of_ours, of_peer = (sum(seconds[f"{name}, {step}"] for step in steps) for name in both)
        rows.append(Row(4, f"{what} of {size}", ms(of_ours), f"{peer} {ms(of_peer)}", of_peer / of_ours, least, ">="))
    return rows


@dataclass(eq=False)
class SmallTransformer(Encoder):
    """Two layers, 128 wide, over twelve tokens."""

    lr: float = 1e-4

    def __post_init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 2, 512, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    @property
    def width(self) -> int:
        return 128

    def forward(self, tokens: Tokens, side: Side = "query") -> Tensor:
        return self.layers(tokens["x_BTD"]).mean(dim=1)

    def fit(self, texts: Sequence[str]) -> None: ...
    def tokenise(self, texts: Sequence[str]) -> Ragged: ...
    def collate(self, tokens: Ragged) -> Tokens: ...
    def save_assets(self, folder: Path) -> None: ...
    def load_assets(self, folder: Path) -> None: ...


def whole_step(labels: int) -> Callable[[], None]:
    """Encode, score, reduce, backpropagate, clip and update, with the classifier head on a pool."""
    torch.manual_seed(0)
    head = Classifier(dim=DIM)
    model = Model(SmallTransformer(), {"clf": head}, labels).train()
    optimizers = Optimizers(model, OptimSettings(), 1000, 100)
    objective = xmclab.objective("ds+bce", temperature=1 / 18, symmetric=True)
    rows, none = np.repeat(np.arange(QUERIES), 2), np.zeros(0, np.int64)
    positives = rows, np.arange(2 * QUERIES), np.ones(len(rows), np.float32)
    truth = Truth.of_lists((QUERIES, POOL), positives, (none, none))
    tokens, ids = {"x_BTD": torch.randn(QUERIES, 12, 128)}, cycle(pools(labels))

    def run() -> None:
        q_QD = head.queries(model.encoder(tokens))
        evaluate_vectors(objective, q_QD, head.labels(None, next(ids)), truth, bound=head.score_bound).total.backward()
        optimizers.clip()
        optimizers.step()

    for _ in range(4):
        run()
    return run


def bytes_per_label(rule: TableOptimizer, dtype: TableDtype) -> float:
    table = RowTable(FEWEST, DIM, lr=1e-3, optimizer=rule, dtype=dtype)
    optimizer = RowOptimizer([table], decay=0.01)
    Training(table, table.weight, optimizer, FEWEST)
    kept = [*table.parameters(), *table.buffers(), *optimizer.state[table.weight].values()]
    return sum(x.numel() * x.element_size() for x in kept if isinstance(x, Tensor)) / FEWEST


def measure() -> list[Row]:
    rows = beside("SparseAdam", torchs(torch.optim.SparseAdam, True), 8, repeats=61)
    rows += beside("dense Adam", torchs(torch.optim.Adam, False), 500, repeats=7)
    for rule, dtype, bound in STORED:
        flat = interleaved({"many": ours(MANY, rule, dtype).step, "few": ours(FEW, rule, dtype).step}, repeats=31)
        name = f"{rule} update in {dtype}, pool {POOL}, d = {DIM}"
        ratio = flat["many"] / flat["few"]
        rows.append(Row(4, name, f"L=10M {ms(flat['many'])}", f"L=100K {ms(flat['few'])}", ratio, 2))
        size = bytes_per_label(rule, dtype)
        rows.append(Row(4, f"bytes per label, {rule} in {dtype}, d = {DIM}", f"{size:g}", f"{bound}", size, bound))
    step = interleaved({"many": whole_step(MANY), "few": whole_step(FEWEST)}, repeats=11)
    what = f"whole step, 2-layer 128-wide encoder, {QUERIES} queries, pool {POOL}, classifier d = {DIM}"
    rows.append(Row(4, what, f"L=10M {ms(step['many'])}", f"L=10K {ms(step['few'])}", step["many"] / step["few"], 1.05))
    return rows


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
