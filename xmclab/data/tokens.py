"""Texts to tokens, in blocks and by several processes; those of large sets are cached between runs."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from xmclab.api import Encoder, Ragged
from xmclab.data.cache import Cache, Entry
from xmclab.data.texts import JoinedTexts, blocks, content_digest
from xmclab.errors import MemoryLimitError, Problem, StorageError, XmclabError
from xmclab.host.schema import DataSettings
from xmclab.system.memory import out_of_memory
from xmclab.system.progress import Bar, note, working
from xmclab.system.signals import STOPS

log = logging.getLogger("xmclab.data")

AUTO, OFF = "auto", "off"
FOLDER = "XMCLAB_CACHE"  # names the folder of the cache, in place of one in the user's home
WORTH_KEEPING = 100_000  # texts of a set that is cached by default
WORTH_SHARING = 50_000  # texts that are tokenised by several processes
FILES = {"ids": "<i4", "offsets": "<i8", "weights": "<f4"}  # of a `Ragged`, with the type of their numbers


class Tokeniser:
    """Fits an encoder and makes its tokens, or takes both from the cache of an earlier run.

    Args:
        settings: the data that the texts belong to, and what is cached.
        console: where progress and reasons are shown; nowhere by default.
    """

    def __init__(self, settings: DataSettings, console: Console | None = None) -> None:
        path = Path(settings.source).expanduser()
        self._source = str(path.resolve()) if path.exists() else settings.source
        self._console = console
        self._folder = _folder(settings.cache)
        self._asked = settings.cache != AUTO
        self._verify = settings.verify

    def fit(self, encoder: Encoder, *texts: Sequence[str]) -> None:
        """`encoder.fit` on all these texts."""
        with working(self._console, "preparing the encoder"):
            self._fit(encoder, *texts)

    def _fit(self, encoder: Encoder, *texts: Sequence[str]) -> None:
        everything = JoinedTexts(*texts)
        fitted = False

        def build(folder: Path) -> dict[str, Any]:
            nonlocal fitted
            encoder.fit(everything)
            fitted = True
            encoder.save_assets(folder)
            return {}

        key = encoder.fit_key()
        if key is not None and self._caches(everything):
            key = {"kind": "vocabulary", "texts": content_digest(*texts), "encoder": _name(encoder), **key}
            entry = self._entry("vocabulary", key, build, verify=True)
            if entry is not None and not fitted:
                encoder.load_assets(entry.folder)
                return
        if not fitted:
            encoder.fit(everything)

    def tokens(self, encoder: Encoder, texts: Sequence[str], what: str) -> Ragged:
        """`encoder.tokenise` of all texts.

        Args:
            what: the texts, for the user.
        """
        tokens = self._tokens(encoder, texts, what)
        if tokens.shortened:
            self._note(
                f"{what}: truncated {tokens.shortened:,} of {len(texts):,} texts to the encoder's maximum length"
            )
        return tokens

    def _tokens(self, encoder: Encoder, texts: Sequence[str], what: str) -> Ragged:
        key = encoder.token_key()
        if key is None:
            return encoder.tokenise(texts)
        if self._caches(texts):
            key = {"kind": "tokens", "texts": content_digest(texts), "encoder": _name(encoder), **key}

            def build(folder: Path) -> dict[str, Any]:
                return _write(folder, self._parts(encoder, texts, what))

            if entry := self._entry(f"tokens of {what}", key, build, self._verify):
                return _read(entry)
        return Ragged.join(list(self._parts(encoder, texts, what)))

    def _caches(self, texts: Sequence[str]) -> bool:
        return self._folder is not None and (self._asked or len(texts) >= WORTH_KEEPING)

    def _entry(
        self, what: str, key: Mapping[str, Any], build: Callable[[Path], dict[str, Any]], verify: bool
    ) -> Entry | None:
        """The folder of the cache; None if it cannot be written and was not requested."""
        assert self._folder is not None
        try:
            return Cache(self._folder, verify, self._note).get(what, f"{what} ({self._source})", key, build)
        except StorageError as error:
            if self._asked:
                raise
            log.warning("%s are not cached: %s", what, error)
            return None

    def _parts(self, encoder: Encoder, texts: Sequence[str], what: str) -> Iterator[Ragged]:
        """The tokens of one block of texts after the other, with a bar."""
        with contextlib.closing(tokenise(encoder, texts, _workers(len(texts)))) as parts:
            part = next(parts)  # fork the processes before the bar starts its thread
            with Bar(self._console, f"tokenising {what}", len(texts)) as bar:
                bar.advance(len(part))
                yield part
                for part in parts:
                    bar.advance(len(part))
                    yield part

    def _note(self, text: str) -> None:
        note(self._console, text)


def _folder(setting: str) -> Path | None:
    """The cache folder, if caching is on."""
    if setting == AUTO:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        setting = os.environ.get(FOLDER) or (OFF if home.startswith("~") else f"{home}/xmclab")  # ~: no home folder
    return None if setting == OFF else Path(os.path.expanduser(setting))


def _name(encoder: Encoder) -> str:
    return f"{type(encoder).__module__}.{type(encoder).__qualname__}"


def _workers(texts: int) -> int:
    """How many processes tokenise: 1 where a process cannot be forked, or where it does not pay."""
    if texts < WORTH_SHARING or sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return len(os.sched_getaffinity(0))


def tokenise(encoder: Encoder, texts: Sequence[str], workers: int) -> Generator[Ragged, None, None]:
    """The tokens of blocks of texts, in their order; memory holds a few blocks at a time.

    Each of n processes has its own pipe and takes every n-th block. A full pipe makes it wait, a closed one ends it.
    """
    ranges = list(blocks(texts)) or [(0, 0)]
    if workers == 1:
        for start, stop in ranges:
            yield encoder.tokenise(texts[start:stop])
        return
    context = multiprocessing.get_context("fork")
    readers: list[Connection] = []
    processes = []
    try:
        for number in range(workers):
            reader, writer = context.Pipe(duplex=False)
            readers.append(reader)
            work = (encoder, texts, ranges[number::workers], readers, writer)
            processes.append(context.Process(target=_work, args=work, daemon=True))
            processes[-1].start()
            writer.close()
        for _, reader in zip(ranges, cycle(readers), strict=False):
            try:
                part = reader.recv()
            except EOFError:
                problem = Problem("tokenising", "a worker process was killed", "it probably ran out of memory")
                raise MemoryLimitError(problem) from None
            if isinstance(part, Exception):
                raise part
            yield part
    finally:
        for reader in readers:
            reader.close()
        for process in processes:
            process.kill()
            process.join()


def _work(
    encoder: Encoder,
    texts: Sequence[str],
    ranges: Iterable[tuple[int, int]],
    readers: Iterable[Connection],
    writer: Connection,
) -> None:
    """Send the tokens of these blocks; stop when nobody reads them any more."""
    for name in STOPS:  # the main process ends this one
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for reader in readers:
        reader.close()
    with contextlib.suppress(BrokenPipeError):
        try:
            for start, stop in ranges:
                writer.send(encoder.tokenise(texts[start:stop]))
        except BrokenPipeError:
            raise
        except XmclabError as error:
            writer.send(error)
        except Exception as error:
            if reason := out_of_memory(error):
                problem = Problem("tokenising", f"out of memory: {reason}", "shorten the texts, or use less data")
                writer.send(MemoryLimitError(problem))
                return
            writer.send(RuntimeError(traceback.format_exc()))  # not every exception can be sent


def _write(folder: Path, parts: Iterable[Ragged]) -> dict[str, Any]:
    """Append the parts to the files of a folder."""
    texts = tokens = shortened = 0
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context((folder / name).open("wb")) for name in FILES}
        _append(streams["offsets"], np.zeros(1), "offsets")
        for part in parts:
            _append(streams["ids"], part.ids, "ids")
            _append(streams["offsets"], part.offsets[1:] + tokens, "offsets")
            if part.weights is not None:
                _append(streams["weights"], part.weights, "weights")
            texts, tokens, shortened = texts + len(part), tokens + len(part.ids), shortened + part.shortened
            weighted = part.weights is not None
    return {"texts": texts, "tokens": tokens, "shortened": shortened, "weighted": weighted}


def _append(stream: Any, values: NDArray[Any], name: str) -> None:
    stream.write(np.ascontiguousarray(values, dtype=FILES[name]).data)


def _read(entry: Entry) -> Ragged:
    """The tokens, mapped from the files: only what is used is read."""
    ids, offsets, weights = (_mapped(entry.folder / name, kind) for name, kind in FILES.items())
    return Ragged(ids, offsets, weights if entry.about["weighted"] else None, entry.about["shortened"])


def _mapped(file: Path, kind: str) -> NDArray[Any]:
    if not file.stat().st_size:
        return np.zeros(0, dtype=kind)  # an empty file cannot be mapped
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))
