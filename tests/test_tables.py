"""A table updates only the rows it looks up, and no row notices."""

from __future__ import annotations

import pytest
import torch

from xmclab.tables import RowOptimizer, RowTable

ROWS, WIDTH, STEPS = 12, 5, 25


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
        else:
            update = gradient
        weight[ids] -= rate * update
    return weight


@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd"])
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


def test_a_step_writes_only_the_rows_it_looked_up() -> None:
    table = make_table()
    before = table.weight.detach().clone()
    optimizer = RowOptimizer([table], decay=0.3)
    table(torch.tensor([2, 5])).sum().backward()
    optimizer.step()
    changed = (table.weight.detach() != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 5]


def test_a_lookup_sees_the_decay_that_its_row_owes() -> None:
    table = make_table()
    optimizer = RowOptimizer([table], decay=0.5)
    before = table.weight.detach().clone()
    for _ in range(3):
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(table(torch.tensor([7])).detach(), before[[7]] * (1 - 0.1 * 0.5) ** 3)


def test_lookups_of_one_row_in_several_chunks_add_up() -> None:
    once, twice = make_table("sgd"), make_table("sgd")
    for table, chunks in ((once, [[3, 4, 4]]), (twice, [[3, 4], [4]])):
        optimizer = RowOptimizer([table])
        for ids in chunks:
            table(torch.tensor(ids)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(once.weight, twice.weight)


def test_rounding_of_lazy_decay_does_not_add_up_in_float32() -> None:
    table = RowTable(2, 1, lr=1e-3, optimizer="sgd")
    torch.nn.init.ones_(table.weight)
    exact = 1.0
    for _ in range(5000):
        table.owe(1 - 1e-4)
        exact *= 1 - 1e-4
        table.settle(torch.tensor([0]))  # row 0 pays at every step, row 1 once at the end
    table.settle()
    assert table.weight[1].item() == pytest.approx(exact, rel=1e-6)
    assert table.weight[0].item() == pytest.approx(exact, rel=1e-4)
