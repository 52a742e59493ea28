"""Answers of other programs, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmclab.errors import DataError
from xmclab.serve.answers import read_answers


def test_little_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n7,x\n7,y\n8,\n9,z\n")
    found = [(answer.id, answer.names, answer.scores) for answer in read_answers(tmp_path / "a.csv")]
    assert found == [("7", ["x", "y"], [None, None]), ("8", [], []), ("9", ["z"], [None])]
    (tmp_path / "a.jsonl").write_text('{"labels": ["x", 3]}\n{"labels": []}\n')
    assert [(answer.names, answer.labels) for answer in read_answers(tmp_path / "a.jsonl")] == [
        (["x", None], [None, 3]),
        ([], []),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "query,tags\nx,y\n", "no column 'labels', 'label' or 'name' (columns: 'query', 'tags')"),
        ("a.csv", "name,score\nx,1\n", "no column 'row', 'id' or 'query' (they say whose label it is)"),
        ("a.csv", "row,label\nx,1\n", "a.csv:2: 'row' is not an integer: 'x'"),
        ("a.csv", "row,label,score\n0,1,nan\n", "a.csv:2: 'score' is not a number: 'nan'"),
        ("a.csv", "row,label,score\n0,,1\n", "a.csv:2: a label has neither a number nor a name"),
        ("a.csv", "row,labels\n0,x\n", "a.csv:2: 'labels' is not a list: 'x'"),
        ("a.jsonl", '{"query": 3, "labels": []}\n', "a.jsonl:1: 'query' is not text: '3'"),
        ("a.jsonl", '{"labels": [{"label": 1.5}]}\n', "a.jsonl:1: 'label' is not an integer: '1.5'"),
        ("a.json", '[{"labels": 3}]', "a.json:1: 'labels' is not a list: '3'"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        list(read_answers(tmp_path / name))
    assert message in str(error.value)
