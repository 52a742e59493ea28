"""Compiled updates of rows are the plain ones."""

from __future__ import annotations

import pytest
import torch

from xmclab.kernels import dispatch
from xmclab.kernels import tables as table_loops
from xmclab.model import tables
from xmclab.model.tables import RowOptimizer, RowTable


def trained(rule: str, dtype: str, width: int, in_blocks: bool) -> list[torch.Tensor]:
    """The rows and their state after some steps with rows in any order, some of them without a gradient."""
    torch.manual_seed(3)
    table = RowTable(200, width, lr=0.1, optimizer=rule, dtype=dtype)
    torch.nn.init.normal_(table.weight)
    optimizer = RowOptimizer([table], decay=0.3)
    for _ in range(4):
        ids, gradient = torch.randperm(200)[:150], torch.randn(150, width)
        if in_blocks:
            table.settle()
            optimizer.update_block(table, slice(7, 157), gradient)
        else:
            table(ids).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
    state = [value for value in optimizer.state[table.weight].values() if isinstance(value, torch.Tensor)]
    return [table.weight.detach(), table(torch.arange(200)).detach(), *state]


@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("in_blocks", [False, True])
def test_compiled_updates_give_the_same_rows(
    rule: str, dtype: str, width: int, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(rule, dtype, width, in_blocks)
    monkeypatch.setattr(dispatch, "WORTH_LOADING", 0)
    for name in ("read", "write") if not in_blocks else ():
        monkeypatch.setattr(tables, name, None)
    for worth in (1 << 62, 1):  # one thread, and several
        monkeypatch.setattr(table_loops, "WORTH_A_THREAD", worth)
        for one, two in zip(plain, trained(rule, dtype, width, in_blocks), strict=True):
            # A root may differ in its last bit, which now and then turns a rounding to bfloat16.
            torch.testing.assert_close(one, two, **({} if rule == "adamw" else {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("rule", ["adamw", "adagrad", "sgd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [[], [3], [3, 3, 0], [2, 1], [0, 1, 2, 3]])
def test_compiled_updates_of_few_and_repeated_rows(
    rule: str, dtype: str, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    for worth in (1 << 62, 0):
        monkeypatch.setattr(dispatch, "WORTH_LOADING", worth)
        torch.manual_seed(4)
        table = RowTable(4, 7, lr=0.1, optimizer=rule, dtype=dtype)
        torch.nn.init.normal_(table.weight)
        optimizer = RowOptimizer([table], decay=0.3)
        for _ in range(3):
            table(torch.tensor(ids, dtype=torch.int64)).backward(torch.randn(len(ids), 7))
            optimizer.step()
            optimizer.zero_grad()
        rows.append(table(torch.arange(4)).detach())
    torch.testing.assert_close(*rows, **({} if rule == "adamw" else {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64])
def test_totals_grow_by_the_mean_square(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    totals = []
    for worth in (1 << 62, 0):
        monkeypatch.setattr(dispatch, "WORTH_LOADING", worth)
        total, rows = torch.ones(9), torch.tensor([8, 2, 3, 0, 5])
        assert torch.equal(tables.add_mean_squares(total, rows, g), total[rows])
        totals.append(total)
    assert torch.equal(*totals)
    torch.testing.assert_close(total[rows], 1 + g.square().mean(dim=1))
