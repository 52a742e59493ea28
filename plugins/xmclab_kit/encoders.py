"""The laws of an encoder."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from xmclab.api import Encoder, Ragged, Side
from xmclab_kit.core import Broken, Subject, check_close, check_finite, check_gradients, named, seed
from xmclab_kit.structure import OPTIONS, structural_laws

WORDS = ("red", "green", "blue", "grey", "pink", "cyan")
PAIRS = [" ".join(words) for words in itertools.permutations(WORDS[:4], 2)]
LONG = " ".join(WORDS * 3)
TEXTS = ["red", *PAIRS, LONG, "", "unheard-of Wörter 漢字", "red green blue"]
SIDES: tuple[Side, ...] = get_args(Side)
NEAR = {"rtol": 1e-4, "atol": 1e-5}  # tolerance for float32 sums in another order

LAWS = structural_laws()


def fitted(subject: Subject) -> Encoder:
    """An encoder that was fitted on the texts, with dropout off."""
    encoder: Encoder = subject.make()
    encoder.fit(TEXTS)
    return encoder.eval()


def tokens_of(subject: Subject) -> Ragged:
    """The tokens of all texts."""
    return subject.once(fitted).tokenise(TEXTS)


def of_one_length(subject: Subject) -> list[int]:
    """Texts that have the same number of tokens: the most there are."""
    groups: dict[int, list[int]] = defaultdict(list)
    for text, length in enumerate(np.diff(subject.once(tokens_of).offsets).tolist()):
        groups[length].append(text)
    return max(groups.values(), key=len)


def encode(subject: Subject, texts: Sequence[int], side: Side = "query") -> Tensor:
    """The vectors of these texts, as one chunk."""
    encoder = subject.once(fitted)
    with torch.no_grad():
        x_BD = encoder(encoder.collate(subject.once(tokens_of).take(np.array(texts, dtype=np.int64))), side)
    if not isinstance(x_BD, Tensor):
        raise Broken(f"forward() returned {type(x_BD).__name__}, not a tensor")
    return x_BD


@dataclass(frozen=True)
class Chunk:
    """Texts that are encoded together."""

    texts: tuple[int, ...]

    def __str__(self) -> str:
        return f"texts = {[TEXTS[text] for text in self.texts]}"


@dataclass(frozen=True)
class Cut:
    """Places in a list of texts of one length, and where the list is split into two chunks."""

    places: tuple[int, ...]
    cut: int

    def __str__(self) -> str:
        return f"{len(self.places)} texts of one length, split after the first {self.cut}"


chunks_of_texts = st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=5).map(
    lambda texts: Chunk(tuple(texts))
)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    places = draw(st.lists(st.integers(0, len(TEXTS) - 1), min_size=2, max_size=6))
    return Cut(tuple(places), draw(st.integers(1, len(places) - 1)))


@LAWS.law(
    says="fit() makes the parameters, and `lr` is their learning rate: a number above 0",
    fix="create parameters in fit() and load_assets(), not in __init__; declare `lr: float = option(1e-3, gt=0)`",
    needs=[OPTIONS],
)
def fits(subject: Subject) -> None:
    encoder = subject.once(fitted)
    if not any(True for _ in encoder.parameters()):
        raise Broken("there are no parameters after fit()")
    if not getattr(encoder, "lr", 0) > 0:
        raise Broken(f"lr is {getattr(encoder, 'lr', 'missing')}")


@LAWS.law(
    says="tokenise() gives the ids of each text, in order; also for empty texts and an empty list",
    fix="return Ragged(ids, offsets): offsets start at 0, never decrease, end at len(ids); one more than texts",
    needs=["fits"],
)
def tokens(subject: Subject) -> None:
    for texts in (TEXTS, TEXTS[:1], [""], []):
        ragged = subject.once(fitted).tokenise(texts)
        if not isinstance(ragged, Ragged):
            raise Broken(f"tokenise() returned {type(ragged).__name__}, not a Ragged, for {texts[:2]}")
        offsets, count = ragged.offsets, len(ragged.ids)
        if len(offsets) != len(texts) + 1 or offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
            raise Broken(f"for {len(texts)} texts and {count} ids, " + named(offsets=offsets))
        if ragged.weights is not None and len(ragged.weights) != count:
            raise Broken(f"{len(ragged.weights)} weights for {count} ids")


@LAWS.law(
    says="forward() gives a vector of `width` finite numbers for every text, on either side",
    fix="return x_BD of floats; empty texts and unknown words need a vector too (clamp the count of a mean)",
    examples=chunks_of_texts,
    needs=["tokens"],
)
def shape(subject: Subject, chunk: Chunk) -> None:
    for side in SIDES:
        x_BD = encode(subject, chunk.texts, side)
        expected = (len(chunk.texts), subject.once(fitted).width)
        if tuple(x_BD.shape) != expected or not x_BD.is_floating_point():
            raise Broken(f"{side}: forward() returned {x_BD.dtype} of shape {tuple(x_BD.shape)}, expected {expected}")
        check_finite(x_BD, f"{side}: the value")


@LAWS.law(
    says="outside training, a text has the same vector each time",
    fix="use nn.Dropout or F.dropout(..., training=self.training), and keep no state between calls",
    examples=chunks_of_texts,
    needs=["shape"],
)
def repeatable(subject: Subject, chunk: Chunk) -> None:
    first = encode(subject, chunk.texts)
    check_close(encode(subject, chunk.texts), first, "value on the second call")


@LAWS.law(
    says="splitting texts of one length into other chunks does not change their vectors",
    fix="no text may depend on the others in its chunk: no batch norm, no centring, no softmax over dim=0",
    examples=cuts(),
    needs=["repeatable"],
)
def chunking(subject: Subject, example: Cut) -> None:
    texts = subject.once(of_one_length)
    chosen = [texts[place % len(texts)] for place in example.places]
    apart = torch.cat([encode(subject, chosen[: example.cut]), encode(subject, chosen[example.cut :])])
    together = encode(subject, chosen)
    try:
        check_close(together, apart, "value in one chunk", **NEAR)
    except Broken as broken:
        raise Broken(f"{broken}\ntexts: {[TEXTS[text] for text in chosen]}") from broken


@LAWS.law(
    says="a longer text in the chunk, and so padding, does not change the vector of a text",
    fix="mask padding in attention and in the mean, and divide by the text's own number of tokens",
    examples=chunks_of_texts,
    needs=["repeatable", "chunking"],
)
def padding(subject: Subject, chunk: Chunk) -> None:
    for side in SIDES:
        together = encode(subject, chunk.texts, side)
        for row, text in enumerate(chunk.texts):
            alone = encode(subject, [text], side)[0]
            check_close(together[row], alone, f"{side}: value of {TEXTS[text]!r} next to the others", **NEAR)


@LAWS.law(
    says="the gradient reaches every trainable parameter, and is not all zeros (except for a bias)",
    fix="delete unused parameters, or freeze them with requires_grad_(False); do not detach()",
    needs=["shape"],
)
def gradients(subject: Subject) -> None:
    encoder = fitted(subject).train()
    chunk = encoder.collate(encoder.tokenise(TEXTS))

    def value() -> Tensor:
        sides = {side: encoder(chunk, side) for side in SIDES}
        for side, x_BD in sides.items():
            if not x_BD.requires_grad:
                raise Broken(f"{side}: the vectors have no gradient")
        return torch.stack([(x_BD * torch.randn_like(x_BD)).sum() for x_BD in sides.values()]).sum()

    check_gradients(encoder, value)


@LAWS.law(
    says="save_assets() and the parameters restore the same encoder: tokens, width and vectors",
    fix="save_assets() writes all that fit() learned except parameters; load_assets() creates the same modules",
    needs=["repeatable"],
)
def assets(subject: Subject) -> None:
    encoder = subject.once(fitted)
    seed(1)  # different initial values
    again = subject.make()
    with tempfile.TemporaryDirectory() as folder:
        encoder.save_assets(Path(folder))
        again.load_assets(Path(folder))
    again.load_state_dict(encoder.state_dict())
    again.eval()
    if again.width != encoder.width:
        raise Broken(f"width is {again.width}, but was {encoder.width}")
    for name, new, old in _differing(again.tokenise(TEXTS), subject.once(tokens_of)):
        raise Broken(f"{name} of the tokens differ: " + named(loaded=new, saved=old))
    for side in SIDES:
        with torch.no_grad():
            x_BD = again(again.collate(again.tokenise(TEXTS)), side)
        check_close(x_BD, encode(subject, range(len(TEXTS)), side), f"{side}: value after loading")


def _differing(one: Ragged, two: Ragged) -> Iterator[tuple[str, object, object]]:
    for name in ("ids", "offsets", "weights"):
        a, b = getattr(one, name), getattr(two, name)
        if (a is None) != (b is None) or (a is not None and not np.array_equal(a, b)):
            yield name, a, b


@LAWS.law(
    says="fit_key() and token_key() are JSON values; with a token_key, the ids of a text do not depend on the others",
    fix="return numbers, strings, lists and dicts of them; tokenise each text by itself, or return None",
    needs=["tokens"],
)
def kept_tokens(subject: Subject) -> None:
    encoder = subject.once(fitted)
    for name in ("fit_key", "token_key"):
        key = getattr(encoder, name)()
        try:
            json.dumps(key)
        except (TypeError, ValueError) as error:
            raise Broken(f"{name}(): {error}") from error
    if encoder.token_key() is not None:
        together = subject.once(tokens_of)
        for row, text in enumerate(TEXTS):
            for name, alone, beside in _differing(encoder.tokenise([text]), together.take(np.array([row]))):
                if name != "offsets":
                    raise Broken(f"{name} of {text!r} differ: " + named(alone=alone, beside_others=beside))
