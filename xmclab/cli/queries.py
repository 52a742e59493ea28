"""What is typed to be predicted for: texts, or a file of them. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xmclab.errors import ConfigError, DataError, Problem

if TYPE_CHECKING:
    from xmclab.api import TextFields
    from xmclab.serve.texts import TextFile

STDIN = "-"
PLACE = "predict"


def given(words: Sequence[str], texts: Sequence[str], file: Path | None) -> tuple[list[str], Path | None]:
    """The texts or the file, whichever is given: as words, or by `--text` and `--input`.

    Raises:
        ConfigError: neither, both, or several files.
        DataError: a word seems to be a file that does not exist.
    """
    files = [word for word in words if is_file(word)]
    found = [*(word for word in words if word not in files), *texts]
    if len(files) + bool(file) > 1:
        hint = "concatenate them, or run the command for each"
        raise ConfigError(Problem(PLACE, f"several files: {', '.join([*files, *([str(file)] if file else [])])}", hint))
    file = Path(files[0]) if files else file
    if found and file:
        hint = f"if it is a text: --text {shlex.quote(str(file))}"
        raise ConfigError(Problem(PLACE, f"both texts and a file, {file}", hint))
    if not found and not file:
        hint = "texts in quotes, a file of them, or - for lines from stdin"
        raise ConfigError(Problem(PLACE, "no query is given", hint))
    return found, file


def is_file(word: str) -> bool:
    """Whether a word is a file of queries, and not a query.

    It is if there is such a file, or for stdin. Without blanks, what ends like a file of queries or has a `/` must be
    one, too.
    """
    from xmclab.serve.texts import KNOWN

    if word == STDIN or os.path.isfile(word):
        return True
    named = Path(word.removesuffix(".gz")).suffix.lower() in KNOWN
    if not (named or "/" in word) or len(word.split()) != 1:
        return False
    reason = "is a folder, not a file of queries" if os.path.isdir(word) else "no such file"
    raise DataError(Problem(word, reason, f"if it is a text: --text {shlex.quote(word)}"))


@contextlib.contextmanager
def read_queries(path: Path, column: str | None, fields: TextFields) -> Iterator[TextFile]:
    """The queries of a file or of stdin, which is kept on disk because it is read twice."""
    from xmclab.serve.texts import TextFile

    with tempfile.TemporaryDirectory() as folder:
        if path == Path(STDIN):
            path = Path(folder) / "stdin.txt"
            with path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield TextFile(path, column, fields=fields)
