"""`make bench-related`: a CSV whose queries are labels of others, with and without what a run does about it by default.

python benchmarks/data/related.py [--folder DIR] [--only-table]

The table has 3,000 packages of the data set debian, drawn by the hash of their texts; packages that are labels are
three times as likely. A third of its queries is held out for testing. Every row is a run of ten epochs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from xmclab.data import open_dataset
from xmclab.host import default_registry

HERE = Path(__file__).parent
QUERIES, LIKELIER = 3000, 3
SHARED = ("recipe=unidec", "epochs=10", "reader.test_share=0.3", "baseline=none")
TO_THE_END = ("validate.share=0", "evaluate.every=1")
Rows = list[tuple[str, list[str]]]


def rows_of(name: str, number: int) -> Rows:
    """Texts of queries with those of their labels, the same in every call."""
    data = open_dataset(name, "title", default_registry())
    labels, rows = set(data.label_texts), []
    for split in (data.train, data.test):
        for row, text in enumerate(split.texts):
            found = split.targets_NL.indices[split.targets_NL.indptr[row] : split.targets_NL.indptr[row + 1]]
            if len(found):
                rows.append((text, [data.label_texts[label] for label in found]))

    def place(row: tuple[str, list[str]]) -> float:
        drawn = int.from_bytes(hashlib.sha256(row[0].encode()).digest()[:8], "big")
        return drawn / (LIKELIER if row[0] in labels else 1)

    return sorted(rows, key=place)[:number]


def write(file: Path, rows: Rows) -> None:
    """A table with a list of labels in each row."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["query", "labels"])
        writer.writerows([text, json.dumps(labels)] for text, labels in rows)


def measured(table: Path, same_text: str, more: tuple[str, ...]) -> dict[str, Any]:
    """P@1 of de+clf: of the result, and after every epoch of a run that trains to the end."""
    out = table.parent / f"{same_text}-{len(more)}"
    words = [f"data={table}", f"data.same_text={same_text}", *SHARED, *more, "--json", "--out", str(out)]
    document = json.loads(subprocess.check_output([sys.executable, "-m", "xmclab", "run", *words]))
    records = [json.loads(line) for line in (out / "metrics.jsonl").open(encoding="utf-8")]
    curve = [each["metrics"]["de+clf"]["P@1"] for each in records if each["event"] == "eval"]
    found = {"same_text": same_text, "test": document["data"]["test"], "P@1": document["metrics"]["de+clf"]["P@1"]}
    kept = document.get("validation")
    return found | ({"kept": kept["epoch"], "last": kept["last"]} if kept else {"epochs": curve})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the table and the runs go (default: a temporary folder)")
    parser.add_argument("--only-table", action="store_true", help="write the table and stop")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    table, rows = folder / "related.csv", rows_of("debian", QUERIES)
    write(table, rows)
    labels = {label for _, found in rows for label in found}
    print(f"{table}: {len(rows)} queries, {sum(text in labels for text, _ in rows)} of them labels", file=sys.stderr)
    if not arguments.only_table:
        runs = [measured(table, choice, more) for choice in ("filter", "keep") for more in ((), TO_THE_END)]
        (HERE / "related.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
