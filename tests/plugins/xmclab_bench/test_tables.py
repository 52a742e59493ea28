"""The tables of a comparison in every form."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from rich.console import Console

from xmclab_bench.tables import chosen, csv_text, latex, markdown, print_document, sheet


def test_terminal(document: dict[str, Any]) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    print_document(console, document)
    text = console.export_text()
    assert re.search(r"A & B +de +\*40\.00 ± 0\.50 +20\.00 ± 0\.50 +12\.0 ± 1\.0 +–", text)
    assert re.search(r"tfidf +35\.00 +– +– +– ", text)
    assert text.startswith("P@1 of clf: A & B is better than </script>")
    assert "missing: C, seed 3: not <possible>" in text
    assert "50 %_: training, 1 of 4 epochs done" in text
    assert "over 2 seeds" in text
    assert "Budget: unequal, 3 to 4 epochs." in " ".join(text.split())


@pytest.mark.parametrize("columns", [80, 100, 250])
def test_names_of_rows_are_whole_on_any_terminal(document: dict[str, Any], columns: int) -> None:
    name = "k_prob_contrastive(temperature=0.05) + 0.5 * smooth_bce"
    for part in (*document["rows"], *document["groups"]):
        part["name"] = name if part["name"] == "A & B" else part["name"]
    file = io.StringIO()
    print_document(Console(width=columns, file=file), document)
    table = file.getvalue().partition(document["title"])[2]
    tables = len(re.findall(r"^ ?row ", table, re.MULTILINE))
    assert len(re.findall(rf"^ ?{re.escape(name)} +de ", table, re.MULTILINE)) == tables
    assert (tables > 1) is (columns < 250)
    assert "…" not in table
    shown = sheet(document).headings
    assert [heading for heading in shown if table.count(f" {heading}") < 1] == []
    assert max(len(line.rstrip()) for line in table.partition("\ntiny:")[0].splitlines()) <= columns


def test_what_a_target_of_a_search_took_stands_in_its_line(document: dict[str, Any]) -> None:
    document["measures"] = ["target"]
    document["rows"][0]["target"] = {"mean": 3.0, "sd": None, "values": [3.0]}
    table = [line for line in markdown(document).splitlines() if line.startswith("|")]
    assert [line.split("|")[-2].strip() for line in table[3:]] == ["3.0", "–", "–", "–"]


def test_columns_are_named_by_their_key(document: dict[str, Any]) -> None:
    document["columns"] = "pool.beta"
    for part in (*document["rows"], *document["groups"]):
        part["column"] = "3"
    assert markdown(document).splitlines()[4].startswith("| row | pool.beta | search |")


def test_rows_with_fewer_seeds_are_named_where_cells_failed(document: dict[str, Any]) -> None:
    document["groups"][0]["seeds"] = [0]
    assert "\nA & B: 1 of 2 seeds\n" in markdown(document)
    assert "% A & B: 1 of 2 seeds" in latex(document)


def test_markdown_marks_the_best_and_keeps_its_columns(document: dict[str, Any]) -> None:
    lines = markdown(document).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| row | search | P@1 | PSP@1 | train s | MiB |"
    assert lines[2].startswith("P@1 of clf: A & B is better than")
    assert table[2] == "| tfidf |  | 35.00 | – | – | – |"
    assert table[3] == "| A & B | de | **40.00 ± 0.50** | 20.00 ± 0.50 | 12.0 ± 1.0 | – |"
    assert len(table) == 7
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 7 for line in table)
    assert r"missing: C, seed 3: not \<possible>" in lines


def test_csv_has_unrounded_numbers(document: dict[str, Any]) -> None:
    document["rows"][0]["metrics"]["P@1"]["mean"] = 1 / 3
    rows = list(csv.DictReader(io.StringIO(csv_text(document))))
    assert len(rows) == 5
    assert (rows[0]["row"], rows[0]["search"], rows[0]["P@1"], rows[0]["PSP@1"]) == ("tfidf", "", "35.0", "")
    assert float(rows[1]["P@1"]) == 1 / 3
    assert (rows[1]["P@1 sd"], rows[1]["P@1 best"], rows[3]["P@1 best"]) == ("0.5", "1", "0")
    assert rows[1]["MiB"] == ""
    assert rows[3]["row"] == "</script><b>x</b> | 50 %_"


def test_latex_is_a_booktabs_table_with_special_characters_escaped(document: dict[str, Any]) -> None:
    text = latex(document)
    assert "\\toprule" in text
    assert "\\begin{tabular}{llrrrr}" in text
    assert "A \\& B & de & \\textbf{40.00 $\\pm$ 0.50}" in text
    assert "50 \\%\\_" in text
    body = text[text.index("\\midrule") : text.index("\\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 5
    assert [line == "\\midrule" for line in body.splitlines()] == [True, False, True, False, False, True, False, False]
    assert all(len(re.findall(r"(?<!\\)&", row)) == 5 for row in rows)


def test_baselines_of_several_data_sets_are_named_by_them(document: dict[str, Any]) -> None:
    document["data"].append({**document["data"][0], "name": "other", "sha256": "1"})
    document["baselines"].append({**document["baselines"][0], "data": "1"})
    assert "\n| tfidf (tiny) |" in markdown(document)
    assert "\n| tfidf (other) |" in markdown(document)


def test_settings_that_were_chosen_for_several_rows_are_told_once(document: dict[str, Any]) -> None:
    names = [group["name"] for group in document["groups"]]
    document["chosen"] = {name: ["encoder.lr=1"] for name in names}
    assert chosen(document) == ["chosen for every row: encoder.lr=1"]
    document["chosen"] = {"A; B": ["encoder.lr=1"], "C": ["encoder.lr=2"], "D": ["encoder.lr=1"]}
    assert chosen(document) == ['chosen for "A; B" and D: encoder.lr=1', "chosen for C: encoder.lr=2"]


def test_a_comparison_without_numbers_has_tables(document: dict[str, Any]) -> None:
    document |= {"rows": [], "searches": [], "baselines": []}
    console = Console(width=160, record=True, file=io.StringIO())
    print_document(console, document)
    assert "row" in console.export_text()
    assert "\\toprule" in latex(document)
    assert len(csv_text(document).splitlines()) == 1
