"""Every format that answers are written in, read again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from xmclab.api import Ranking
from xmclab.errors import ConfigError, StorageError
from xmclab.runs.store import Labels
from xmclab.serve.answers import Answer, read_answers
from xmclab.serve.output import Shape, format_of, new_answers
from xmclab.serve.texts import TextRecord

LABELS = Labels(["a", "b,\t", "c"], ["first", 'second "one"', "third\r\nlabel"])
QUERIES = [TextRecord("plain", "q1"), TextRecord("two\nlines\r, größe", "q2"), TextRecord("nothing", "q3")]
RANKING = Ranking(
    np.array([[2, 0], [1, -1], [-1, -1]]), np.array([[0.1, -2.5], [1 / 3, -np.inf], [-np.inf, -np.inf]], np.float32)
)
NAMES = ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz", "a.json.gz", "a.parquet"]


def write(out: Path, ids: bool = True, overwrite: bool = False) -> None:
    shape = Shape(LABELS, len(QUERIES), ids)
    with new_answers(out, format_of(out), shape, overwrite) as writer:
        writer.start()
        for start in (0, 2):  # in blocks
            part = slice(start, start + 2)
            writer.write(QUERIES[part], Ranking(RANKING.ids_NK[part], RANKING.scores_NK[part]))
        writer.end()


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_again(tmp_path: Path, name: str, ids: bool) -> None:
    write(tmp_path / name, ids)
    found = list(read_answers(tmp_path / name))
    scores = RANKING.scores_NK.tolist()
    expected = [
        Answer(0, 0, "q1", QUERIES[0].text, [2, 0], ["c", "a"], scores[0]),
        Answer(0, 1, "q2", QUERIES[1].text, [1], ["b,\t"], scores[1][:1]),
        Answer(0, 2, "q3", QUERIES[2].text),
    ]
    for answer, wanted in zip(found, expected, strict=True):
        assert np.array(answer.scores, np.float32).tolist() == wanted.scores, "every digit of a float32"
        answer.line, answer.scores = 0, wanted.scores
        wanted.id = wanted.id if ids else None
        assert answer == wanted


def test_formats_go_by_suffix(tmp_path: Path) -> None:
    write(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text().splitlines()[:2] == ["3 3", "2:0.100000001 0:-2.5"]
    write(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())[0]["labels"][0] == {
        "label": 2,
        "name": "c",
        "text": "third\r\nlabel",
        "score": RANKING.scores_NK[0, 0].item(),
    }
    write(tmp_path / "a.parquet")
    assert pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups == 2, "one for each block"
    with pytest.raises(ConfigError, match=r"--out a.xml: the name does not say which format to write \(end it in .txt"):
        format_of(Path("a.xml"))
    with pytest.raises(ConfigError, match=r"Parquet is compressed already \(leave out .gz\)"):
        format_of(Path("a.parquet.gz"))


def test_packed_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.gz")
    write(tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    write(tmp_path / "a.csv")
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == (tmp_path / "a.csv").read_bytes()


def test_nothing_is_replaced_without_being_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("mine")
    with pytest.raises(StorageError, match=r"exists \(choose another file, or use --overwrite\)"):
        write(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "mine"
    write(tmp_path / "a.csv", overwrite=True)
    assert (tmp_path / "a.csv").read_text() != "mine"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path, name: str) -> None:
    def stop() -> None:
        with new_answers(tmp_path / name, format_of(tmp_path / name), Shape(LABELS, 3)) as writer:
            try:
                writer.start()
                writer.write(QUERIES, RANKING)
                raise KeyboardInterrupt
            finally:
                writer.abandon()

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_half_a_character_does_not_stop_it(tmp_path: Path, name: str) -> None:
    with new_answers(tmp_path / name, format_of(tmp_path / name), Shape(LABELS, 1)) as writer:
        writer.start()
        writer.write([TextRecord("a\ud800b")], Ranking(RANKING.ids_NK[:1], RANKING.scores_NK[:1]))
        writer.end()
    assert [answer.query for answer in read_answers(tmp_path / name)] == ["a\ufffdb"]
