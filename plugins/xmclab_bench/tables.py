"""A comparison as tables: on the terminal, Markdown, CSV, LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from xmclab.data.propensity import Propensity
from xmclab.system.console import plain
from xmclab.system.terminal import printable
from xmclab_bench.document import Document
from xmclab_bench.run_folder import MEASURES, TARGET
from xmclab_bench.verdict import in_words

MARKUP = re.compile(r"[\\|`]|<(?=[A-Za-z/!?])|(?<=\])\(")  # of Markdown: cells, code, HTML, links and images
UNBOUNDED = 10_000  # columns
FORMULAS = ("=", "+", "-", "@")
NOT_IN_A_LABEL = r"[^\w.:-]+"


@dataclass(frozen=True)
class Value:
    """A number of a table."""

    mean: float
    sd: float | None
    best: bool
    digits: int

    def text(self, between: str = " ± ") -> str:
        spread = "" if self.sd is None else f"{between}{self.sd:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Line:
    """A row of a table: its name, search and column, and its values by heading."""

    section: str  # lines of a section stand together; empty: baselines and predictions
    labels: tuple[str, ...]
    values: Mapping[str, Value | None]


@dataclass(frozen=True)
class Sheet:
    """A table without formatting."""

    labels: tuple[str, ...]  # headings of the leading cells
    headings: tuple[str, ...]  # headings of the numbers
    lines: Sequence[Line]


def sheet(document: Document) -> Sheet:
    """The numbers of a comparison: a line for every baseline and prediction, then for every row, column and search."""
    columns = any(row["column"] for row in document["rows"])
    labels = ("row", *((document["columns"] or "column",) if columns else ()), "search")
    measures = {(group["name"], group["column"]): group["measures"] for group in document["groups"]}
    headings = (*document["metrics"], *(MEASURES[name].heading for name in document["measures"]))
    lines = []
    for baseline in beside(document):
        of_metric = {metric: _value(baseline["metrics"].get(metric), 2) for metric in document["metrics"]}
        blank = ("",) * (len(labels) - 1)
        lines.append(Line("", (baseline["name"], *blank), dict.fromkeys(headings) | of_metric))
    for row in document["rows"]:
        values = {metric: _value(row["metrics"].get(metric), 2) for metric in document["metrics"]}
        of_group = measures[row["name"], row["column"]]
        told = {**of_group, TARGET: row["target"]}
        values |= {MEASURES[name].heading: _value(told[name], 1) for name in document["measures"]}
        names = (row["name"], *((row["column"],) if columns else ()), row["search"])
        lines.append(Line(row["name"], names, values))
    return Sheet(labels, headings, lines)


def beside(document: Document) -> list[dict[str, Any]]:
    """The baselines and predictions, named by their data too if there are several data sets, and what they are."""
    data = {each["sha256"]: each["name"] for each in document["data"]}
    found = [{"told": "baseline", **each} for each in document["baselines"]]
    found += [{"told": f"read from {each['file']}", **each} for each in document["predictions"]]
    several = len({each["data"] for each in found}) > 1
    return [
        {**each, "name": f"{each['name']} ({data.get(each['data'], each['data'])})" if several else each["name"]}
        for each in found
    ]


def _value(found: Mapping[str, Any] | None, digits: int) -> Value | None:
    return None if found is None else Value(found["mean"], found["sd"], found.get("best", False), digits)


def footnote(document: Document) -> str:
    """What readers need to know about the table."""
    seeds = len(document["seeds"])
    parts = [
        f"{data['name']}: {data['train']} training and {data['test']} test queries, {data['labels']} labels"
        f"{_propensities(data)}."
        for data in document["data"]
    ]
    if len(parts) > 1:
        parts.append("Rows of different data or propensities are not tested against each other.")
    one = "One seed only: variation between seeds is unknown, so no result is marked best."
    parts.append(f"Mean ± standard deviation over {seeds} seeds." if seeds > 1 else one)
    if any(value["best"] for row in document["rows"] for value in row["metrics"].values()):
        rivals = "every other row of its search"
        rivals += " that finished" if document["left_out"] else ""
        parts.append(f"Bold or *: better than {rivals} (paired tests, Holm, p < 0.05).")
    if document["baselines"]:
        names = dict.fromkeys(each["name"] for each in document["baselines"])
        parts.append(f"Baselines, not tested: {', '.join(names)}.")
    if document["predictions"]:
        names = dict.fromkeys(each["name"] for each in document["predictions"])
        parts.append(f"Predictions of other programs, from files: {', '.join(names)}.")
    if tuning := document["tuning"]:
        parts.append(
            f"Each row: the best of {tuning['trials']} random trials by {tuning['metric']} on validation queries."
        )
    else:
        parts.append("Settings chosen earlier on validation queries." if document["chosen"] else "Not tuned.")
    epochs = sorted({group["epochs"] for group in document["groups"]})
    if document["budget"] == "time":
        parts.append("Budget: about the same time; epochs chosen after timing one of each row.")
    elif len(document["groups"]) > 1:
        each = "1 epoch each" if epochs == [1] else f"{epochs[0]} epochs each"
        parts.append(f"Budget: {each if len(epochs) == 1 else f'unequal, {epochs[0]} to {epochs[-1]} epochs'}.")
    if document["target"]:
        parts.append(f"Target: {document['target'][0]} of {document['target'][1]:g} %; – if a seed never reached it.")
    return " ".join(parts)


def _propensities(data: Mapping[str, Any]) -> str:
    told = data.get("propensity")
    return f", {Propensity(told['A'], told['B'], told['source'])}" if told else ""


def print_document(console: Console, document: Document) -> None:
    """The verdict, the table, its footnote, and what is missing from it."""
    content = sheet(document)
    for sentence in document["verdict"]["sentences"]:
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
    headings: list[Sequence[str]] = [content.headings]
    if _width(console, _table(content, content.headings, console.is_terminal)) > console.width:
        headings = _fitting(content, console)
    for number, some in enumerate(headings):
        console.print(_table(content, some, console.is_terminal, "" if number else document["title"]))
    console.print(footnote(document), style="dim", markup=False, highlight=False)
    for text in (*chosen(document), *remarks(document)):
        console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)


def _table(content: Sheet, headings: Sequence[str], terminal: bool, title: str = "") -> Table:
    """The lines with some of their values."""
    table = Table(
        title=plain(title) or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for label in content.labels:
        table.add_column(plain(label), overflow="fold")
    for heading in headings:
        table.add_column(plain(heading), justify="right", no_wrap=True)
    mark = "[bold]{}[/]" if terminal else "*{}"
    for line, following in zip_longest(content.lines, content.lines[1:]):
        cells = [_marked(line.values[heading], mark) for heading in headings]
        last = following is not None and following.section != line.section
        table.add_row(*(plain(label) for label in line.labels), *cells, end_section=last)
    return table


def _width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=UNBOUNDED)).maximum


def _fitting(content: Sheet, console: Console) -> list[Sequence[str]]:
    """The headings of several tables, each with the names of its rows, as wide as the console at most."""
    groups: list[list[str]] = [[]]
    for heading in content.headings:
        wider = [*groups[-1], heading]
        if groups[-1] and _width(console, _table(content, wider, console.is_terminal)) > console.width:
            groups.append([heading])
        else:
            groups[-1] = wider
    return [*groups]


def remarks(document: Document) -> list[str]:
    """What is missing from the table, or not final."""
    unfinished = [group for group in document["groups"] if group["state"] != "finished"]
    most = len(document["seeds"])
    fewer = [group for group in document["groups"] if len(group["seeds"]) < most and document["left_out"]]
    return [
        *(f"{_place(group)}: {len(group['seeds'])} of {most} seeds" for group in fewer),
        *(f"{_place(group)}: {group['state']}" for group in unfinished),
        *(f"missing: {left_out(missing)}" for missing in document["left_out"]),
    ]


def chosen(document: Document) -> list[str]:
    """The settings that were chosen for each row, by this search or an earlier one; rows with the same share a line."""
    found = {row: " ".join(settings) for row, settings in document["chosen"].items()}
    for row in (document["tuning"] or {"rows": []})["rows"]:
        found[_place(row)] = " ".join(f"{key}={value}" for key, value in row["chosen"].items())
    alike: dict[str, list[str]] = {}
    for row, settings in found.items():
        if settings:
            alike.setdefault(settings, []).append(row)
    every = {_place(group) for group in document["groups"]} if len(document["groups"]) > 1 else set()
    return [
        f"chosen for {'every row' if every and every.issubset(rows) else in_words(rows)}: {settings}"
        for settings, rows in alike.items()
    ]


def _place(group: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (group["name"], group["column"])))


def left_out(missing: Mapping[str, Any]) -> str:
    """A cell that is missing, and why."""
    place = ", ".join(str(part) for part in (missing["name"], missing["column"], f"seed {missing['seed']}") if part)
    return f"{place}: {missing['reason']}"


def markdown(document: Document) -> str:
    """A Markdown table."""
    content = sheet(document)
    head = [*map(_md, content.labels), *map(_md, content.headings)]
    rule = ["---"] * len(content.labels) + ["--:"] * len(content.headings)
    rows = [[*map(_md, line.labels), *_cells(line, content, "**{}**")] for line in content.lines]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))
    notes = "".join(f"\n{_md(text)}\n" for text in (*chosen(document), *remarks(document)))
    verdict = _md(" ".join(document["verdict"]["sentences"]))
    return f"## {_md(document['title'])}\n\n{verdict}\n\n{table}\n\n{_md(footnote(document))}\n{notes}"


def latex(document: Document) -> str:
    """A booktabs table, ready to paste: `\\usepackage{booktabs}`."""
    content = sheet(document)
    head = " & ".join(_tex(name) for name in (*content.labels, *content.headings))
    body = []
    for line, following in zip_longest(content.lines, content.lines[1:]):
        cells = _cells(line, content, "\\textbf{{{}}}", " $\\pm$ ")
        body.append(" & ".join([*map(_tex, line.labels), *cells]) + " \\\\")
        if following is not None and following.section != line.section:
            body.append("\\midrule")
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            *(f"% {_line(text)}" for text in remarks(document)),
            f"\\caption{{{_tex(document['title'].rstrip('.'))}. {_tex(footnote(document))}}}",
            f"\\label{{tab:{re.sub(NOT_IN_A_LABEL, '-', document['name'])}}}",
            f"\\begin{{tabular}}{{{'l' * len(content.labels)}{'r' * len(content.headings)}}}",
            "\\toprule",
            f"{head} \\\\",
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def csv_text(document: Document) -> str:
    """Means, deviations over seeds and whether a number is the best, unrounded; a line for every line of the sheet."""
    content = sheet(document)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    parts = ("", " sd", " best")
    head = [*content.labels, *(f"{heading}{part}" for heading in content.headings for part in parts)]
    writer.writerow(map(_cell, head))
    for line in content.lines:
        writer.writerow(
            [*map(_cell, line.labels), *(cell for heading in content.headings for cell in _raw(line.values[heading]))]
        )
    return stream.getvalue()


def _raw(value: Value | None) -> Iterator[object]:
    yield "" if value is None else value.mean
    yield "" if value is None or value.sd is None else value.sd
    yield "" if value is None else int(value.best)


def _cells(line: Line, content: Sheet, mark: str, between: str = " ± ") -> list[str]:
    return [_marked(line.values[heading], mark, between) for heading in content.headings]


def _marked(value: Value | None, mark: str, between: str = " ± ") -> str:
    if value is None:
        return "–"
    return mark.format(value.text(between)) if value.best else value.text(between)


def _tex(text: str) -> str:
    special = {character: f"\\{character}" for character in "&%$#_{}"} | {
        "\\": "\\textbackslash{}",
        "~": "\\textasciitilde{}",
        "^": "\\textasciicircum{}",
        "±": "$\\pm$",
        "<": "$<$",
        ">": "$>$",
        "–": "--",
    }
    return "".join(special.get(character, character) for character in _line(text))


def _md(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return MARKUP.sub(r"\\\g<0>", _line(text))


def _cell(text: str) -> str:
    """A text that a spreadsheet shows as it is: never a formula."""
    text = _line(text)
    return f"'{text}" if text.startswith(FORMULAS) else text


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
