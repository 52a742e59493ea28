"""Tables of metrics: which columns, and what stands under them."""

from __future__ import annotations

import io

from rich.console import Console

from xmclab.evaluation.metrics import KINDS, metrics_of
from xmclab.evaluation.report import columns_of, print_table

ROW = dict.fromkeys(metrics_of(100, 1000), 12.345)
DEEP = dict.fromkeys(metrics_of(100, 1000, (1, 3, 5, 10)), 12.345)


def shown(row: dict[str, float], width: int) -> list[str]:
    stream = io.StringIO()
    print_table(Console(file=stream, width=width), "a run", {"de": row}, {"guess": row}, "propensities A=1 B=2 (mine)")
    return stream.getvalue().splitlines()


def test_columns_are_precisions_at_every_cut_off_and_the_deepest_gain() -> None:
    usual = ["P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@5", "R@10", "R@100"]
    assert columns_of([ROW]) == usual
    assert columns_of([DEEP, {}]) == [*usual[:3], "P@10", *usual[3:6], "PSP@10", "nDCG@10", *usual[-2:]]
    assert {name.partition("@")[0] for name in DEEP} == set(KINDS)


def test_what_does_not_fit_a_line_becomes_a_second_table() -> None:
    wide, narrow = shown(DEEP, 120), shown(DEEP, 70)
    assert sum("P@10" in line for line in wide) == 1
    assert not any("…" in line for line in narrow)
    headings = [line.split() for line in narrow if "@10" in line]
    assert headings == [
        ["search", "P@1", "P@3", "P@5", "P@10", "nDCG@10", "R@10", "R@100"],
        ["search", "PSP@1", "PSP@3", "PSP@5", "PSP@10"],
    ]
    assert narrow[1].strip() == wide[1].strip() == "propensities A=1 B=2 (mine)"


def test_what_was_reported_stands_below_and_is_never_the_best() -> None:
    stream = io.StringIO()
    reported = {"theirs (paper)": {"P@1": 99.5, "hours": 3.0}}
    print_table(Console(file=stream, width=120), "a run", {"de": ROW}, {"guess": ROW}, reported=reported)
    heading, *rows = [line.split() for line in stream.getvalue().splitlines()[1:] if any(map(str.isalpha, line))]
    assert [row[0] for row in rows] == ["guess", "de", "theirs"]
    assert rows[-1] == ["theirs", "(paper)", "99.50"]
    assert "hours" not in heading
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True, color_system="standard")
    print_table(console, "a run", {"de": ROW}, {}, reported=reported)
    bold = [line for line in stream.getvalue().splitlines() if "\x1b[1m12.35" in line or "\x1b[1m12.34" in line]
    assert len(bold) == 1
