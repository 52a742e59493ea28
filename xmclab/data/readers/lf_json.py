"""Reader of the label-feature sets of the Extreme Classification Repository."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmclab.api import Dataset, Reader
from xmclab.data.readers.columns import (
    TEST_FILTERS,
    TRAIN_FILTERS,
    Half,
    Targets,
    Texts,
    as_test,
    assemble,
    check_text,
)
from xmclab.data.readers.lines import Problems, excerpt, find_file, read_lines
from xmclab.data.sparse import is_relevance
from xmclab.data.texts import PackedTexts
from xmclab.system.reading import parse_json

TRAIN, TEST, LABELS = "trn.json", "tst.json", "lbl.json"


@dataclass
class LabelFeatureJson(Reader):
    """Label-feature sets: `trn.json.gz`, `tst.json.gz` and `lbl.json.gz` (or not gzipped), a JSON object per line.

    Keys of a line: `title`, optionally `content` and `uid`; of queries also `target_ind` (label indices, from 0) and
    optionally `target_rel` (their relevances, 1 when missing). Filter files beside them: `filter_labels_train.txt` and
    `filter_labels_test.txt`, or `trn_filter_labels.txt` and `tst_filter_labels.txt`: a pair `query label` per line.
    """

    def matches(self, folder: Path) -> bool:
        return any(find_file(folder, name) for name in (TRAIN, TEST, LABELS))

    def read(self, folder: Path) -> Dataset:
        return self._dataset(folder, (TRAIN, TRAIN_FILTERS), (TEST, TEST_FILTERS))

    def read_queries(self, source: Path, data: Dataset, folder: Path) -> Dataset:
        return as_test(self._dataset(source, (TEST, TEST_FILTERS)))

    def _dataset(self, folder: Path, *parts: tuple[str, tuple[str, ...]]) -> Dataset:
        """The labels and the queries of these (file, filter files)."""
        problems = Problems()
        labels = self._read(folder, LABELS, problems)
        halves = []
        for name, filters in parts:
            targets = Targets()
            halves.append(Half(self._read(folder, name, problems, labels, targets), targets, filters))
        files = [labels.file, *(half.queries.file for half in halves)]
        return assemble(folder, labels, halves, problems, files)

    def _read(
        self, folder: Path, name: str, problems: Problems, labels: Texts | None = None, targets: Targets | None = None
    ) -> Texts:
        """The texts of a file; with targets into `labels` when these are given."""
        file = find_file(folder, name)
        names = PackedTexts()
        texts = Texts(file or folder / f"{name}.gz", names=names, fields=self.text_of("query" if labels else "label"))
        if file is None:
            problems.file(texts.file, "missing", f"{name} works too")
        for number, line in read_lines(file, problems) if file else ():
            try:
                record = parse_object(line)
                title, content = _text(record, "title"), _text(record, "content", default="")
                uid = str(record.get("uid", number - 1))
                check_text(uid, "uid")
                row = _targets(record, labels) if labels else None
            except ValueError as error:
                problems.line(texts.file, number, str(error))
                continue
            texts.add(title, content)
            names.append(uid)
            if row and targets:
                targets.add(*row)
        texts.size = problems.rows(texts.file, len(texts.texts))
        return texts


def parse_object(line: str) -> dict[str, Any]:
    """The JSON object of a line; ValueError, with the beginning of the line, if it holds none."""
    try:
        record = parse_json(line)
    except ValueError:
        raise ValueError(f"not JSON: {excerpt(line)}") from None
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {excerpt(line)}")
    return record


def _text(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if value is None:
        raise ValueError(f"lacks {key!r}: {excerpt(json.dumps(record))}")
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is not a string: {excerpt(json.dumps(value))}")
    check_text(value, key)
    return value


def _targets(record: dict[str, Any], labels: Texts) -> tuple[list[int], list[float]]:
    """Label indices and relevances of a query."""
    indices = record.get("target_ind")
    if not isinstance(indices, list):
        problem = "is not a list" if "target_ind" in record else "is missing"
        raise ValueError(f"'target_ind' {problem}: {excerpt(json.dumps(record))}")
    extent = labels.extent("labels")
    for index in indices:
        if type(index) is not int:
            raise ValueError(f"label index {excerpt(json.dumps(index))} is not an integer")
        extent.check("label index", index)
    relevances = record.get("target_rel")
    if "target_rel" not in record:
        return indices, [1.0] * len(indices)
    if not isinstance(relevances, list) or len(relevances) != len(indices):
        raise ValueError(f"'target_rel' needs {len(indices)} values, as many as 'target_ind'")
    for relevance in relevances:
        if type(relevance) not in (int, float) or not is_relevance(relevance):
            raise ValueError(f"relevance {excerpt(json.dumps(relevance))} is not a positive float32 number")
    return indices, relevances
