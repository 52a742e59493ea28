"""The loss of a batch of pairs is that of the matrix one would write down."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xmclab
from xmclab.errors import ConfigError

Class = type[Any]
IDS = {word: number for number, word in enumerate(("", "red", "car", "boat", "sky", "blue", "big"))}


class Words(nn.Module):
    """The interface of a SentenceTransformer that is used: the mean of word vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(len(IDS), 8)

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        mask_BT1 = features["attention_mask"].unsqueeze(-1)
        vectors = (self.table(features["input_ids"]) * mask_BT1).sum(1) / mask_BT1.sum(1)
        return {**features, "sentence_embedding": vectors}


def features(*texts: str, pad: int = 0) -> dict[str, Any]:
    lists = [[IDS[word] for word in text.split()] for text in texts]
    width = max(map(len, lists)) + pad
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in lists])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "modality": "text"}


@pytest.fixture
def model() -> Words:
    return Words()


def vectors(model: Words, *texts: str) -> Tensor:
    return F.normalize(model(features(*texts))["sentence_embedding"], dim=1)


@pytest.mark.parametrize("expression", ["ds", "0.7*ds+0.3*bce", "supcon"])
def test_equal_texts_are_one_query_and_one_label(model: Words, expression: str) -> None:
    """`red` has two labels in the batch, and `car` two queries."""
    loss = xmclab.SentenceTransformerLoss(model, expression, temperature=0.1)
    found = loss([features("red", "red", "big blue"), features("car", "boat", "car", pad=2)])
    objective = xmclab.objective(expression, temperature=0.1, symmetric=True)
    scores = vectors(model, "red", "big blue") @ vectors(model, "car", "boat").T
    expected = objective(scores, torch.tensor([[True, True], [True, False]]))
    torch.testing.assert_close(found, expected)
    found.backward()
    assert model.table.weight.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_numbers_say_which_labels_are_the_same(model: Words) -> None:
    loss = xmclab.SentenceTransformerLoss(model, "ds", symmetric=False, normalise=False)
    found = loss([features("red", "big", "blue"), features("car", "boat", "sky")], torch.tensor([7, 8, 7]))
    q_QD, z_PD = (model(features(*texts))["sentence_embedding"] for texts in (("red", "big", "blue"), ("car", "boat")))
    truth = torch.tensor([[True, False], [False, True], [True, False]])
    torch.testing.assert_close(found, xmclab.objective("ds", temperature=0.05)(q_QD @ z_PD.T, truth))


@pytest.mark.parametrize("numbers", [None, [1, 2]])
def test_further_columns_are_negatives_unless_a_row_is_paired_with_them(
    model: Words, numbers: list[int] | None
) -> None:
    loss = xmclab.SentenceTransformerLoss(model, "ds", temperature=0.1)
    labels = None if numbers is None else torch.tensor(numbers)
    found = loss([features("red", "blue"), features("car", "boat"), features("boat", "sky")], labels)
    scores = vectors(model, "red", "blue") @ vectors(model, "car", "boat", "sky").T
    truth = torch.tensor([[True, False, False], [False, True, False]])
    objective = xmclab.objective("ds", temperature=0.1, symmetric=True)
    torch.testing.assert_close(found, objective(scores, truth))


def test_texts_one_after_the_other_are_told_apart(model: Words) -> None:
    from xmclab.python.sentence_loss import _texts

    flat = {"input_ids": torch.tensor([1, 2, 1, 1, 2]), "offsets": torch.tensor([0, 2, 3])}
    assert _texts(flat, 3) == [(1, 2), (1,), (1, 2)]
    assert _texts({"pixel_values": torch.zeros(3)}, 3) is None


def test_losses_of_a_notebook_and_objectives_are_taken(model: Words, margin_loss: Class) -> None:
    batch = [features("red", "blue"), features("car", "boat")]
    named = xmclab.SentenceTransformerLoss(model, "pairwise_margin(margin=0.3)", parts=[margin_loss])
    given = xmclab.SentenceTransformerLoss(model, margin_loss(margin=0.3))
    made = xmclab.SentenceTransformerLoss(model, named.objective)
    torch.testing.assert_close(given(batch), named(batch))
    torch.testing.assert_close(made(batch), named(batch))
    assert named.get_config_dict() == {"objective": "1*pairwise_margin", "temperature": 0.05, "symmetric": True}


@pytest.mark.parametrize(
    ("expression", "reduction", "message"),
    [
        ("dss", "psl", "did you mean 'ds'"),
        ("bce", "ova", "the reduction of 'bce' needs all labels, and a batch has some"),
        ("pw_bce", "psl", "'pw_bce' needs label propensities, and a batch has none"),
    ],
)
def test_what_a_batch_cannot_give_is_refused(model: Words, expression: str, reduction: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        xmclab.SentenceTransformerLoss(model, expression, reduction)


def test_a_batch_without_labels_is_refused(model: Words) -> None:
    loss = xmclab.SentenceTransformerLoss(model)
    with pytest.raises(ConfigError, match="a query and a label are needed"):
        loss([features("red")])


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_a_real_sentence_transformer_learns(tiny_bert: Path, kind: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    if kind == "bert":
        transformer = modules.Transformer(str(tiny_bert))
        network = library.SentenceTransformer(modules=[transformer, modules.Pooling(8)], device="cpu")
    else:
        vocabulary = importlib.import_module("tokenizers")
        words = {word: number for number, word in enumerate(("red", "green", "blue", "grey", "pink", "cyan"))}
        tokenizer = vocabulary.Tokenizer(vocabulary.models.WordLevel(words, unk_token="red"))
        tokenizer.pre_tokenizer = vocabulary.pre_tokenizers.Whitespace()
        network = library.SentenceTransformer(modules=[modules.StaticEmbedding(tokenizer, embedding_dim=8)])
        network.to("cpu")
    loss = xmclab.SentenceTransformerLoss(network, "ds", temperature=0.5)
    read = getattr(network, "preprocess", network.tokenize)
    queries, labels = ["red", "red", "green blue"], ["grey", "pink cyan", "grey"]
    optimizer, values = torch.optim.Adam(network.parameters(), lr=0.01), []
    for _ in range(20):
        optimizer.zero_grad()
        value = loss([read(queries), read(labels)])
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0]
    network.eval()
    with torch.no_grad():
        by_text, by_number = (
            loss([read(queries), read(labels)]),
            loss([read(queries), read(labels)], torch.tensor([1, 2, 1])),
        )
    torch.testing.assert_close(by_text, by_number)
