"""The planner's loops, compiled. What they compute is defined by the numpy versions in `draws`, `pool` and `miners`.

Labels are looked up in a hash table of the pool's size, so that time and memory do not depend on their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xmclab.kernels.dispatch import jit
from xmclab.kernels.intrinsics import ask_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Indices = NDArray[Any]  # int32 or int64, as scipy chose

AHEAD = 16  # rows between asking for one and its turn
DIGIT = 11  # bits by which labels are sorted at a time


@jit
def distinct(sizes_Q: Ids, uniform_Rn: NDArray[np.float64]) -> Ids:
    """`draws.distinct`, from the numbers in [0, 1) of the rows that are longer than n."""
    n = uniform_Rn.shape[1]
    drawn_Qn = np.full((len(sizes_Q), n), -1, np.int64)
    source = 0
    for row in range(len(sizes_Q)):
        size = sizes_Q[row]
        if size <= n:
            for number in range(size):
                drawn_Qn[row, number] = number
            continue
        for step in range(n):
            last = size - n + step
            draw = np.int64(uniform_Rn[source, step] * (last + 1))
            for before in range(step):
                if drawn_Qn[row, before] == draw:
                    draw = last
                    break
            drawn_Qn[row, step] = draw
        source += 1
    return drawn_Qn


@jit
def pick(table_NH: NDArray[np.int32], rows_Q: Ids, places_Qn: Ids) -> Ids:
    """[Q, n] the numbers at these places of the rows; -1 stays."""
    width = table_NH.shape[1]
    flat = table_NH.reshape(-1)
    for row in rows_Q:
        ask_for(flat, row * width, (row + 1) * width)
    picked_Qn = np.empty_like(places_Qn)
    for query in range(len(rows_Q)):
        for column in range(places_Qn.shape[1]):
            place = places_Qn[query, column]
            picked_Qn[query, column] = table_NH[rows_Q[query], place] if place >= 0 else -1
    return picked_Qn


@jit
def row_lengths(rows_Q: Ids, indptr: Indices, indices: Indices) -> Ids:
    """[Q] how many entries each row has; they are asked for, as `entries` and `match` come next."""
    lengths_Q = np.empty_like(rows_Q)
    for query in range(len(rows_Q)):
        if query + AHEAD < len(rows_Q):
            ask_for(indptr, rows_Q[query + AHEAD], rows_Q[query + AHEAD] + 2)
        start, end = indptr[rows_Q[query]], indptr[rows_Q[query] + 1]
        ask_for(indices, start, end)
        lengths_Q[query] = end - start
    return lengths_Q


@jit
def entries(rows_Q: Ids, places_Qn: Ids, indptr: Indices, indices: Indices) -> Ids:
    """The columns at these places of the rows, row after row, without those of -1."""
    columns = np.empty(places_Qn.size, np.int64)
    count = 0
    for query in range(len(rows_Q)):
        start = indptr[rows_Q[query]]
        for place in places_Qn[query]:
            if place >= 0:
                columns[count] = indices[start + place]
                count += 1
    return columns[:count]


@jit
def union(sampled: Ids, mined_QE: Ids) -> Ids:
    """The distinct labels of both, ascending, without -1; sorted by their digits, the lowest first."""
    labels = np.empty(len(sampled) + mined_QE.size, np.int64)
    labels[: len(sampled)] = sampled
    count, largest = len(sampled), np.int64(0)
    for label in mined_QE.ravel():
        labels[count] = label
        count += int(label >= 0)
    for label in labels[:count]:
        largest = max(largest, label)
    other = np.empty_like(labels)
    shift = 0
    while largest >> shift:
        starts = np.zeros((1 << DIGIT) + 1, np.int64)
        for label in labels[:count]:
            starts[((label >> shift) & ((1 << DIGIT) - 1)) + 1] += 1
        starts = starts.cumsum()
        for label in labels[:count]:
            digit = (label >> shift) & ((1 << DIGIT) - 1)
            other[starts[digit]] = label
            starts[digit] += 1
        labels, other = other, labels
        shift += DIGIT
    last = min(count, 1) - 1
    for label in labels[:count]:
        last += int(label != labels[last])
        labels[last] = label
    return labels[: last + 1]


@jit
def skip_excluded(ranks_Qn: Ids, rows_Q: Ids, indptr: Indices, indices: Indices) -> Ids:
    """[Q, n] the label of each rank among those that the row does not list (ascending); -1 stays."""
    labels_Qn = np.empty_like(ranks_Qn)
    for row in range(len(rows_Q)):
        start = indptr[rows_Q[row]]
        length = indptr[rows_Q[row] + 1] - start
        for column in range(ranks_Qn.shape[1]):
            rank = ranks_Qn[row, column]
            low, high = 0, length
            while low < high:
                middle = (low + high) // 2
                if indices[start + middle] - middle <= rank:
                    low = middle + 1
                else:
                    high = middle
            labels_Qn[row, column] = rank + low if rank >= 0 else -1
    return labels_Qn


@jit
def tally(brought: Ids, taken: Ids) -> tuple[Ids, Ids]:
    """(distinct labels of `brought` that are not in `taken`, how often each is listed)."""
    known = np.empty(len(taken) + len(brought), np.int64)
    counts = np.zeros(len(known), np.int64)
    table = _table(len(known))
    size = 0
    for label in taken:
        table[_slot(table, known, label)] = size
        known[size] = label
        size += 1
    for label in brought:
        slot = _slot(table, known, label)
        if table[slot] < 0:
            table[slot] = size
            known[size] = label
            size += 1
        counts[table[slot]] += 1
    return known[len(taken) : size], counts[len(taken) : size]


@jit
def match(
    rows_Q: Ids,
    labels_P: Ids,
    indptr: Indices,
    indices: Indices,
    values: NDArray[np.float32],
    filter_indptr: Indices,
    filter_indices: Indices,
) -> tuple[NDArray[np.bool_], Ids, Ids, NDArray[np.float32], Ids, Ids]:
    """`pool.match`."""
    table = _table(len(labels_P))
    bits = np.zeros(len(table) // 8, np.uint64)  # one per remainder of a label: most of the others stop there
    for place in range(len(labels_P)):
        table[_slot(table, labels_P, labels_P[place])] = place
        word, bit = _bit(bits, labels_P[place])
        bits[word] |= bit

    most, most_ignored, longest = 0, 0, 0
    for query in range(len(rows_Q)):
        if query + AHEAD < len(rows_Q):
            ask_for(filter_indptr, rows_Q[query + AHEAD], rows_Q[query + AHEAD] + 2)
        row = rows_Q[query]
        length = indptr[row + 1] - indptr[row]
        most, longest = most + length, max(longest, length)
        most_ignored += filter_indptr[row + 1] - filter_indptr[row]
    row_E, column_E, value_E = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, values.dtype)
    row_I, column_I = np.empty(most_ignored, np.int64), np.empty(most_ignored, np.int64)

    kept_Q = np.zeros(len(rows_Q), np.bool_)
    positive_of_P = np.full(len(labels_P), -1, np.int64)  # the last row that has each label
    likely = np.empty(longest, np.int64)  # entries of a row that the bits let through
    found, ignored, position = 0, 0, 0
    for query in range(len(rows_Q)):
        if query + AHEAD < len(rows_Q):
            coming = rows_Q[query + AHEAD]
            ask_for(values, indptr[coming], indptr[coming + 1])
            ask_for(filter_indices, filter_indptr[coming], filter_indptr[coming + 1])
        row = rows_Q[query]
        passed = 0
        for entry in range(indptr[row], indptr[row + 1]):
            word, bit = _bit(bits, indices[entry])
            likely[passed] = entry  # without a branch, which could not be foreseen
            passed += int((bits[word] & bit) != 0)
        for entry in likely[:passed]:
            place = table[_slot(table, labels_P, indices[entry])]
            if place >= 0:
                row_E[found], column_E[found], value_E[found] = position, place, values[entry]
                positive_of_P[place] = query
                kept_Q[query] = True
                found += 1
        if kept_Q[query]:
            for entry in range(filter_indptr[row], filter_indptr[row + 1]):
                place = table[_slot(table, labels_P, filter_indices[entry])]
                if place >= 0 and positive_of_P[place] != query:
                    row_I[ignored], column_I[ignored] = position, place
                    ignored += 1
            position += 1
    return kept_Q, row_E[:found], column_E[:found], value_E[:found], row_I[:ignored], column_I[:ignored]


@jit
def _table(entries: int) -> NDArray[np.int32]:
    """An empty hash table, a power of two in size and at most half full with so many entries."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.full(size, -1, np.int32)


@jit
def _slot(table: NDArray[np.int32], known: Ids, label: int) -> np.int64:
    """Where the table holds the place of the label in `known`, or the free slot for it."""
    mask = len(table) - 1
    mixed = np.uint64(label) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(mixed >> np.uint64(32)) & mask
    while table[slot] >= 0 and known[table[slot]] != label:
        slot = (slot + 1) & mask
    return slot


@jit
def _bit(bits: NDArray[np.uint64], label: int) -> tuple[int, np.uint64]:
    """(word, its bit) that stand for the label."""
    return (label >> 6) & (len(bits) - 1), np.uint64(1) << np.uint64(label & 63)
