"""The two kernels. A program has a tile of scores in registers, of some queries and some labels of a block.

Both compute s = scale * q z' with float32 sums, and cut listed cells, whose scores they store, to -inf. The lists are
sorted by tile: those of tile t are `starts[t]` to `starts[t + 1]`. A tile is `row tile * column tiles + column tile`.
Queries and labels that fill up the last tiles are cut as well. D is a multiple of BD.

Names: Q queries, B labels, D width; BQ, BB, BD the sizes of tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(q, z, scale, row_tile, column_tile, Q, B, D, BQ: tl.constexpr, BB: tl.constexpr, BD: tl.constexpr):
    """The scores of a tile, -inf beyond the edges."""
    rows, columns, inner = tl.arange(0, BQ), tl.arange(0, BB), tl.arange(0, BD)
    first_row, first_column = row_tile * BQ, column_tile * BB
    is_row, is_column = first_row + rows < Q, first_column + columns < B
    # Only the start of a tile may be beyond 2**31 numbers.
    at_q = q + first_row.to(tl.int64) * D + rows[:, None] * D + inner[None, :]
    at_z = z + first_column.to(tl.int64) * D + columns[None, :] * D + inner[:, None]
    s = tl.zeros((BQ, BB), dtype=tl.float32)
    for _ in range(0, D, BD):
        part_q = tl.load(at_q, mask=is_row[:, None], other=0.0)
        part_z = tl.load(at_z, mask=is_column[None, :], other=0.0)
        s = tl.dot(part_q, part_z, s, input_precision="ieee")
        at_q += BD
        at_z += BD
    return tl.where(is_row[:, None] & is_column[None, :], s * scale, float("-inf"))


@triton.jit
def _cut(s, row_tile, column_tile, columns_of_tiles, starts, row_C, column_C, s_C, BQ: tl.constexpr, BB: tl.constexpr):
    """Store the scores of the listed cells of a tile; the scores of its negatives."""
    rows, columns = row_tile * BQ + tl.arange(0, BQ), column_tile * BB + tl.arange(0, BB)
    tile = row_tile * columns_of_tiles + column_tile
    for cell in range(tl.load(starts + tile), tl.load(starts + tile + 1)):
        here = (rows[:, None] == tl.load(row_C + cell)) & (columns[None, :] == tl.load(column_C + cell))
        tl.store(s_C + cell, tl.sum(tl.sum(tl.where(here, s, 0.0), axis=1), axis=0))
        s = tl.where(here, float("-inf"), s)
    return s


@triton.jit
def _shift(top):
    """What to subtract before exponentials; 0 if all is absent, as -inf - -inf would be NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def log_sums(
    q,
    z,
    starts,
    row_C,
    column_C,
    s_C,
    row_sums,  # [splits, Q]
    column_sums,  # [row tiles, B]
    scale,
    Q,
    B,
    D,
    columns_of_tiles,
    tiles_of_split,
    BY_LABEL: tl.constexpr,
    BQ: tl.constexpr,
    BB: tl.constexpr,
    BD: tl.constexpr,
):
    """The log-sum-exp of the negatives of each query within a split of the labels; of each label in a tile of rows."""
    row_tile, split = tl.program_id(0), tl.program_id(1)
    rows, columns = row_tile * BQ + tl.arange(0, BQ), tl.arange(0, BB)
    top = tl.full((BQ,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BQ,), dtype=tl.float32)
    first = split * tiles_of_split
    for step in range(tl.minimum(tiles_of_split, columns_of_tiles - first)):
        column_tile = first + step
        s = _scores(q, z, scale, row_tile, column_tile, Q, B, D, BQ, BB, BD)
        s = _cut(s, row_tile, column_tile, columns_of_tiles, starts, row_C, column_C, s_C, BQ, BB)
        higher = tl.maximum(top, tl.max(s, axis=1))
        shift = _shift(higher)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(s - shift[:, None]), axis=1)
        top = higher
        if BY_LABEL:
            shift_B = _shift(tl.max(s, axis=0))
            sum_B = tl.sum(tl.exp(s - shift_B[None, :]), axis=0)
            at = column_sums + row_tile.to(tl.int64) * B + column_tile * BB + columns
            tl.store(at, shift_B + tl.log(sum_B), mask=column_tile * BB + columns < B)
    tl.store(row_sums + split.to(tl.int64) * Q + rows, _shift(top) + tl.log(total), mask=rows < Q)


@triton.jit
def gradient(
    q,
    z,
    starts,
    row_C,
    column_C,
    s_C,
    n_Q,
    slope_Q,
    n_B,
    slope_B,
    g,  # [Q, B]
    values,  # [tiles]
    scale,
    softplus,
    Q,
    B,
    D,
    columns_of_tiles,
    BY_QUERY: tl.constexpr,
    BY_LABEL: tl.constexpr,
    BY_CELL: tl.constexpr,
    BQ: tl.constexpr,
    BB: tl.constexpr,
    BD: tl.constexpr,
):
    """The gradient of a tile, and the sum of log(1 + exp s) over its negatives."""
    row_tile, column_tile = tl.program_id(0), tl.program_id(1)
    s = _scores(q, z, scale, row_tile, column_tile, Q, B, D, BQ, BB, BD)
    s = _cut(s, row_tile, column_tile, columns_of_tiles, starts, row_C, column_C, s_C, BQ, BB)
    local_rows, local_columns = tl.arange(0, BQ), tl.arange(0, BB)
    rows, columns = row_tile * BQ + local_rows, column_tile * BB + local_columns
    slope = tl.zeros((BQ, BB), dtype=tl.float32)
    if BY_QUERY:
        log_sum, factor = tl.load(n_Q + rows, mask=rows < Q, other=0.0), tl.load(slope_Q + rows, mask=rows < Q, other=0)
        slope += tl.exp(s - log_sum[:, None]) * factor[:, None]
    if BY_LABEL:
        is_column = columns < B
        log_sum = tl.load(n_B + columns, mask=is_column, other=0.0)
        factor = tl.load(slope_B + columns, mask=is_column, other=0.0)
        slope += tl.exp(s - log_sum[None, :]) * factor[None, :]
    if BY_CELL:
        e = tl.exp(-tl.abs(s))
        slope += softplus * (tl.where(s < 0, e, 1.0) / (1 + e))
        # log(1 + e) = 2 artanh(e / (2 + e)), a series with four terms fitted to make up for the rest, to 1e-7.
        t = e / (2 + e)
        square = t * t
        p = ((0.13433775 * square + 0.14116977) * square + 0.20003836) * square + 0.33333319
        cost = tl.maximum(s, 0.0) + 2 * (t + t * square * p)
        tl.store(values + row_tile * columns_of_tiles + column_tile, tl.sum(tl.sum(cost, axis=1), axis=0))
    start = g + (row_tile * BQ).to(tl.int64) * B + column_tile * BB
    at = start + local_rows[:, None] * B + local_columns[None, :]
    tl.store(at, slope.to(g.dtype.element_ty), mask=(rows[:, None] < Q) & (columns[None, :] < B))
