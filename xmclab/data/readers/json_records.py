"""Records of a JSON file, an array or one value after the other, read without holding the whole of it."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from xmclab.data.readers.lines import TO_UTF_8, Problems, excerpt, opened
from xmclab.system.limits import BeyondLimit, limit, raised

JSON = ".json"
PIECE = 1 << 20  # characters read at a time
BLANK = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


def is_json(file: Path) -> bool:
    """Whether it is read here: `.json`, plain or gzipped."""
    return Path(file.name.removesuffix(".gz")).suffix.lower() == JSON


def read_json_records(file: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, object) of each record; a plain text is an object with the key `text`.

    What is wrong with a record is reported by its number. Nothing is read after JSON that is malformed.
    """
    number = 0
    try:
        with opened(file) as raw:
            for number, value in enumerate(_values(io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")), start=1):
                if isinstance(value, str):
                    yield number, {"text": value}
                elif isinstance(value, dict):
                    yield number, value
                else:
                    problems.line(file, number, f"not a JSON object: {excerpt(json.dumps(value))}")
    except UnicodeDecodeError as error:
        problems.file(file, f"not UTF-8, after {number:,} records", TO_UTF_8 if error.reason else "")
    except BeyondLimit as error:
        problems.file(file, f"{error.message}, after {number:,} records", error.hint)
    except EOFError:
        problems.file(file, f"truncated: the archive ends after {number:,} records", "download the file again")
    except (gzip.BadGzipFile, zlib.error) as error:
        problems.file(file, f"damaged archive after {number:,} records: {error}", "download the file again")
    except OSError as error:
        problems.file(file, f"cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        problems.file(file, f"record {number + 1:,}: {reason}")


class _Window:
    """The part of a text that is being read."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream, self.held, self.place = stream, "", 0

    def more(self) -> bool:
        """Read on, as much again as is held; whether there was anything."""
        kept = self.held[self.place :]
        piece = self.stream.read(max(PIECE, len(kept)))
        self.held, self.place = kept + piece, 0
        return bool(piece)

    def sign(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            found = BLANK.match(self.held, self.place)
            self.place = found.end() if found else self.place
            if self.place < len(self.held):
                return self.held[self.place]
            if not self.more():
                return ""

    def value(self) -> Any:
        """The next value."""
        while True:
            try:
                found, self.place = DECODER.raw_decode(self.held, self.place)
            except ValueError:
                size = len(self.held) - self.place
                if size > limit("line"):
                    message = f"a record of more than {limit('line'):,} characters"
                    raise BeyondLimit(message, raised("line", 2 * size)) from None
                if not self.more():
                    raise ValueError(f"not JSON: {excerpt(self.held)}") from None
            else:
                return found


def _values(stream: IO[str]) -> Iterator[Any]:
    """The values of an array, or those of a text that has one after the other."""
    window = _Window(stream)
    array = window.sign() == "["
    window.place += array
    first = True
    while sign := window.sign():
        if array and sign == "]":
            window.place += 1
            if window.sign():
                raise ValueError("something follows the end of the array")
            return
        if array and not first:
            if sign != ",":
                raise ValueError(f"no comma before {excerpt(window.held[window.place :][:100])}")
            window.place += 1
            if not window.sign():
                break
        first = False
        yield window.value()
    if array:
        raise ValueError("the array has no end")
