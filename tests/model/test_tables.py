"""Tables: looked-up rows alone are updated, and decay reaches all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xmclab.kernels import dispatch
from xmclab.model import tables
from xmclab.model.tables import RowOptimizer, RowTable, rounded_at_random

ROWS, WIDTH, STEPS = 12, 5, 25


@pytest.fixture(params=["plain", "compiled"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with torch, and with the compiled loops."""
    monkeypatch.setattr(dispatch, "WORTH_LOADING", 1 << 62 if request.param == "plain" else 0)


def make_table(optimizer: str = "adamw", lr: float = 0.1) -> RowTable:
    table = RowTable(ROWS, WIDTH, lr=lr, optimizer=optimizer).double()
    torch.nn.init.normal_(table.weight, generator=torch.Generator().manual_seed(1))
    return table


def draws() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Unique ids and a target for their rows, per step; row 11 is never drawn, row 0 only in the last step."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for step in range(STEPS):
        ids = 1 + torch.randperm(ROWS - 2, generator=generator)[:4]
        ids = torch.cat([ids, torch.tensor([0])]) if step == STEPS - 1 else ids
        batches.append((ids, torch.randn(len(ids), WIDTH, generator=generator, dtype=torch.float64)))
    return batches


def train(table: RowTable, decay: float, eps: float = 1e-8) -> None:
    optimizer = RowOptimizer([table], decay=decay, eps=eps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for ids, target in draws():
        (table(ids) - target).square().sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    table.settle()


def reference(rule: str, decay: float, lr: float = 0.1) -> torch.Tensor:
    """The same training, with every row decayed at every step and the update written out."""
    weight = make_table().weight.detach().clone()
    mean, square, total = torch.zeros_like(weight), torch.zeros_like(weight), torch.zeros(ROWS, dtype=torch.float64)
    for step, (ids, target) in enumerate(draws()):
        rate = lr / (1 + step)
        gradient = 2 * (weight[ids] - target)
        weight *= 1 - rate * decay
        if rule == "adamw":
            mean[ids] = 0.9 * mean[ids] + 0.1 * gradient
            square[ids] = 0.999 * square[ids] + 0.001 * gradient**2
            update = (mean[ids] / (1 - 0.9 ** (step + 1))) / ((square[ids] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
        elif rule == "adagrad":
            total[ids] += (gradient**2).mean(1)
            update = gradient / (total[ids].sqrt() + 1e-8).unsqueeze(1)
        elif rule == "momentum":
            mean[ids] = update = 0.9 * mean[ids] + gradient
        else:
            update = gradient
        weight[ids] -= rate * update
    return weight


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd", "momentum"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lazy_decay_equals_decaying_every_row_at_every_step(rule: str, decay: float) -> None:
    table = make_table(rule)
    train(table, decay)
    torch.testing.assert_close(table.weight.detach(), reference(rule, decay), rtol=1e-12, atol=1e-12)


def test_adamw_without_decay_is_sparse_adam() -> None:
    table = make_table()
    train(table, decay=0.0, eps=1e-30)  # SparseAdam adds eps before the bias correction: take it out of both
    peer = torch.nn.Embedding(ROWS, WIDTH, sparse=True, dtype=torch.float64)
    peer.weight.data.copy_(make_table().weight.data)
    optimizer = torch.optim.SparseAdam(peer.parameters(), lr=0.1, eps=1e-30)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for ids, target in draws():
        optimizer.zero_grad()
        (peer(ids) - target).square().sum().backward()
        optimizer.step()
        schedule.step()
    torch.testing.assert_close(table.weight.detach(), peer.weight.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("rule", "dense"),
    [
        ("dense_adamw", lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.3)),
        ("momentum", lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)),
    ],
)
def test_rules_of_torch_are_met_where_every_row_moves(
    rule: str, dense: Callable[[Any], torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW moves rows that were touched earlier at every step; SGD with momentum is met if all are touched."""
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 5)
    table, peer = make_table(rule), torch.nn.Parameter(make_table().weight.detach().clone())
    optimizers = RowOptimizer([table], decay=0.3 if rule == "dense_adamw" else 0.0), dense([peer])
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in optimizers]
    for ids, target in draws():
        if rule == "momentum":
            ids, target = torch.arange(ROWS), target[torch.arange(ROWS) % len(target)]
        (table(ids) - target).square().sum().backward()
        (peer[ids] - target).square().sum().backward()
        for each, schedule in zip(optimizers, schedules, strict=True):
            each.step()
            schedule.step()
            each.zero_grad()
    table.settle()
    torch.testing.assert_close(table.weight.detach(), peer.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("both")
def test_a_step_writes_only_the_rows_it_looked_up() -> None:
    table = make_table()
    before = table.weight.detach().clone()
    optimizer = RowOptimizer([table], decay=0.3)
    table(torch.tensor([2, 5])).sum().backward()
    optimizer.step()
    changed = (table.weight.detach() != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 5]


@pytest.mark.usefixtures("both")
def test_a_lookup_sees_the_decay_that_its_row_owes() -> None:
    table = make_table()
    optimizer = RowOptimizer([table], decay=0.5)
    before = table.weight.detach().clone()
    for _ in range(3):
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(table(torch.tensor([7])).detach(), before[[7]] * (1 - 0.1 * 0.5) ** 3)


@pytest.mark.usefixtures("both")
def test_lookups_of_one_row_in_several_chunks_add_up() -> None:
    once, twice = make_table("sgd"), make_table("sgd")
    for table, chunks in ((once, [[3, 4, 4]]), (twice, [[3, 4], [4]])):
        optimizer = RowOptimizer([table])
        for ids in chunks:
            table(torch.tensor(ids)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(once.weight, twice.weight)


def test_lazy_decay_is_exact_in_float32_and_survives_many_halvings() -> None:
    table = RowTable(1, 1, lr=1e-3, optimizer="sgd")
    torch.nn.init.ones_(table.weight)
    for _ in range(5000):
        table.decay(1 - 1e-2)  # 1e-22 at the end: the scale is folded into the weight on the way
    assert table(torch.tensor([0])).item() == pytest.approx((1 - 1e-2) ** 5000, rel=1e-5)
    table.settle()
    assert table.weight.item() == pytest.approx((1 - 1e-2) ** 5000, rel=1e-5)


@pytest.mark.usefixtures("both")
def test_the_gradient_is_that_of_the_row_whatever_its_scale() -> None:
    table = make_table()
    table.decay(0.25)
    table(torch.tensor([2])).sum().backward()
    ids_P, g_PD = table.gradient()
    assert (ids_P.tolist(), g_PD.tolist()) == ([2], [[1.0] * WIDTH])
    assert table.weight.grad is None, "a dense one would be as large as the table"


@pytest.mark.parametrize(
    ("ids", "distinct", "sorts"),
    [([2, 5, 7], False, 0), ([5, 2, 7], False, 1), ([2, 2, 7], False, 1), ([5, 2, 7], True, 0)],
)
def test_ids_that_are_distinct_are_not_sorted(
    monkeypatch: pytest.MonkeyPatch, ids: list[int], distinct: bool, sorts: int
) -> None:
    calls, unique = [], torch.Tensor.unique
    monkeypatch.setattr(torch.Tensor, "unique", lambda self, **rest: (calls.append(1), unique(self, **rest))[1])
    table = make_table("sgd")
    table(torch.tensor(ids), distinct).sum().backward()
    RowOptimizer([table]).step()
    assert len(calls) == sorts


def test_gradients_of_several_lookups_add_up_until_they_are_cleared() -> None:
    table = make_table("sgd")
    optimizer = RowOptimizer([table])
    for ids in ([1, 3], [3, 6], [3, 1]):
        table(torch.tensor(ids), distinct=True).sum().backward()
    ids_P, g_PD = table.gradient()
    assert dict(zip(ids_P.tolist(), g_PD[:, 0].tolist(), strict=True)) == {1: 2.0, 3: 3.0, 6: 1.0}
    optimizer.zero_grad()
    assert table.gradient() is None
    before = table.weight.clone()
    optimizer.step()
    assert torch.equal(table.weight, before)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd", "momentum", "dense_adamw"])
def test_blocks_update_as_lookups_of_every_row_do(rule: str) -> None:
    tables = [make_table(rule) for _ in range(2)]
    optimizers = [RowOptimizer([table], decay=0.3) for table in tables]
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        gradient = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        tables[0](torch.arange(ROWS)).backward(gradient)
        tables[1].settle()
        for start in range(0, ROWS, 5):
            block = slice(start, min(start + 5, ROWS))
            optimizers[1].update_block(tables[1], block, gradient[block])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for table in tables:
        table.settle()
    torch.testing.assert_close(tables[1].weight, tables[0].weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "dtype", "decay", "bytes_per_row"),
    [
        ("adamw", "float32", 0.1, 12 * WIDTH),
        ("adagrad", "float32", 0.1, 4 * WIDTH + 4),
        ("sgd", "float32", 0.1, 4 * WIDTH),
        ("momentum", "float32", 0.1, 8 * WIDTH),
        ("dense_adamw", "float32", 0.1, 12 * WIDTH),
        ("adagrad", "bfloat16", 0.1, 2 * WIDTH + 4),
        ("sgd", "bfloat16", 0.1, 2 * WIDTH),
    ],
)
def test_a_row_costs_what_is_promised(rule: str, dtype: str, decay: float, bytes_per_row: int) -> None:
    table = RowTable(ROWS, WIDTH, lr=0.1, optimizer=rule, dtype=dtype)
    torch.nn.init.normal_(table.weight)
    optimizer = RowOptimizer([table], decay=decay)
    table(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    kept = [*table.parameters(), *table.buffers(), *optimizer.state[table.weight].values()]
    tensors = [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == ROWS * bytes_per_row


@pytest.mark.usefixtures("both")
def test_small_updates_add_up_in_bfloat16() -> None:
    """Each is a hundredth of the distance to the next bfloat16 number: rounding to the nearest would lose them all."""
    torch.manual_seed(0)
    table = RowTable(400, 4, lr=1.0, optimizer="sgd", dtype="bfloat16")
    torch.nn.init.ones_(table.weight)
    optimizer = RowOptimizer([table])
    ids = torch.arange(0, 400, 2)
    for _ in range(100):
        table(ids).backward(torch.full((200, 4), -(2.0**-7) / 100))
        optimizer.step()
        optimizer.zero_grad()
    assert table.weight.dtype == torch.bfloat16
    assert table(ids).mean().item() == pytest.approx(1 + 2.0**-7, abs=2.0**-7 / 20)
    assert (table(ids + 1) == 1).all()


def test_rounding_at_random_is_right_on_average_and_keeps_what_fits() -> None:
    torch.manual_seed(0)
    for exact in (1.003, -1.003, 1e-20, 12345.678):
        draws_ = rounded_at_random(torch.full((20000,), exact)).float()
        assert draws_.unique().numel() == 2
        assert draws_.mean().item() == pytest.approx(exact, rel=1e-4)
    kept = torch.tensor([0.0, 1.5, -3.0, float("inf"), -float("inf")])
    assert torch.equal(rounded_at_random(kept.clone()).float(), kept)


def test_random_bits_are_all_fair() -> None:
    torch.manual_seed(0)
    bits = tables.random_bits(torch.empty(1001, 13))
    assert bits.shape == (1001, 13)
    share = [((bits >> bit) & 1).float().mean().item() for bit in range(16)]
    assert share == pytest.approx([0.5] * 16, abs=0.02)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("row", [-1, ROWS])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    with pytest.raises(IndexError):
        make_table()(torch.tensor([2, row]))
