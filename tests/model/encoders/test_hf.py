"""The `hf` encoder on a BERT that is built here: pooling, padding, towers, assets and what goes wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from xmclab.api import Tokens
from xmclab.errors import DataError
from xmclab.model.device import Precision
from xmclab.model.dropout import key_dropouts, keyed, text_keys
from xmclab.model.encoders.hf import HuggingFace
from xmclab.training.batches import Chunk
from xmclab.training.encoding import ChunkedEncoding

TEXTS = ["red green blue", "red", "blue blue red green green red", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer, as `save_pretrained` leaves it."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    path = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue"]
    (path / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    BertTokenizerFast(vocab=str(path / "vocab.txt")).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def unknown(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a network that is not of the BERT family."""
    from transformers import AlbertConfig, AlbertModel, AutoTokenizer

    path = tmp_path_factory.mktemp("albert")
    AutoTokenizer.from_pretrained(folder).save_pretrained(path)
    config = AlbertConfig(
        vocab_size=8, hidden_size=16, embedding_size=8, num_attention_heads=2, intermediate_size=32, pad_token_id=0
    )
    torch.manual_seed(0)
    AlbertModel(config).save_pretrained(path)
    return path


def make(folder: Path, **options: object) -> HuggingFace:
    encoder = HuggingFace(model=str(folder), **options)
    encoder.fit(TEXTS)
    return encoder.eval()


def embed(encoder: HuggingFace, texts: list[str], side: str = "query") -> torch.Tensor:
    with torch.no_grad():
        return encoder(encoder.collate(encoder.tokenise(texts)), side)


def test_mean_pooling_is_the_mean_over_the_tokens_of_the_text(folder: Path) -> None:
    encoder = make(folder)
    for text in TEXTS:
        inputs = encoder.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = encoder.network(**inputs).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(embed(encoder, [text]), expected)


def test_cls_pooling_is_the_first_token(folder: Path) -> None:
    encoder = make(folder, pooling="cls")
    with torch.no_grad():
        expected = encoder.network(**encoder.tokenizer("red blue", return_tensors="pt")).last_hidden_state[:, 0]
    torch.testing.assert_close(embed(encoder, ["red blue"]), expected)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_does_not_change_the_vectors(folder: Path, pooling: str) -> None:
    encoder = make(folder, pooling=pooling)
    alone = torch.cat([embed(encoder, [text]) for text in TEXTS])
    torch.testing.assert_close(embed(encoder, TEXTS), alone, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(alone).all()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("network", ["folder", "unknown"])
def test_packing_does_not_change_the_vectors(pooling: str, network: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(network)
    texts = [" ".join(["red", "green", "blue"][i % 3] for i in range(n % 13)) for n in range(90)]
    found, expected = (embed(make(path, pooling=pooling, packing=packing), texts) for packing in ("auto", "off"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_network_is_padded_by_length_and_says_so(unknown: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="xmclab.encoders"):
        encoder = make(unknown)
    assert [record.name for record in caplog.records] == ["xmclab.encoders"]
    assert "albert" in caplog.text
    widths: list[int] = []
    encoder.network.register_forward_pre_hook(
        lambda module, args, inputs: widths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    embed(encoder, ["red"] * 40 + ["red " * 20] * 40)
    assert widths == [3, 22]


def test_a_known_network_says_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="xmclab.encoders"):
        make(folder), make(folder, packing="off")
    assert not caplog.records


def test_replayed_chunks_have_the_gradient_of_the_whole_under_dropout(folder: Path) -> None:
    encoder = make(folder).double().train()
    chunks = [encoder.collate(encoder.tokenise(TEXTS)), encoder.collate(encoder.tokenise([*TEXTS[::-1], "green"]))]

    def gradients() -> list[torch.Tensor]:
        found = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        encoder.zero_grad()
        return found

    outputs = []
    for seed, chunk in enumerate(chunks):
        torch.manual_seed(seed)
        outputs.append(encoder(chunk))
    torch.cat(outputs).cumsum(0).square().sum().backward()
    expected = gradients()
    encoding = ChunkedEncoding(
        encoder, list(map(Chunk, chunks, range(len(chunks)))), "query", Precision(torch.device("cpu"))
    )
    encoding.x_BD.cumsum(0).square().sum().backward()
    encoding.backward()
    for a, b in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * float(b.abs().max().clamp(min=1)))


def test_attention_dropout_that_cannot_be_keyed_is_left_out_and_said_once(
    unknown: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModel, AutoTokenizer

    AutoTokenizer.from_pretrained(unknown).save_pretrained(tmp_path)
    AutoModel.from_pretrained(unknown, attention_probs_dropout_prob=0.3).save_pretrained(tmp_path)
    encoder = make(tmp_path)
    assert encoder.left_out_dropout == 0.3
    with caplog.at_level(logging.INFO, logger="xmclab.encoders"):
        caplog.clear()
        encoder.eval(), encoder.train(), encoder.train()
    assert [record.getMessage().split(": ")[1][:24] for record in caplog.records] == ["attention dropout of 0.3"]
    tokens = encoder.collate(encoder.tokenise(TEXTS))
    with keyed(text_keys(0, torch.arange(len(TEXTS)))):
        found = [encoder(tokens) for _ in range(2)]
    assert torch.equal(*found)  # and all other rates are 0
    assert not torch.allclose(encoder(tokens), found[0])
    known = make(folder)
    assert known.left_out_dropout == 0
    assert known.to("meta").left_out_dropout == 0.1  # any device but the CPU
    assert make(unknown).left_out_dropout == 0


@pytest.mark.parametrize("network", ["folder", "unknown"])
def test_keyed_dropout_of_padded_texts_is_the_same_in_any_chunk(network: str, request: pytest.FixtureRequest) -> None:
    encoder = make(request.getfixturevalue(network), packing="off").double().train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
    key_dropouts(encoder)
    key_B, state = text_keys(0, torch.arange(len(TEXTS))), torch.get_rng_state()

    def encode(rows: list[int]) -> torch.Tensor:
        with keyed(key_B[rows]):
            return encoder(encoder.collate(encoder.tokenise([TEXTS[row] for row in rows])))

    whole = encode([0, 1, 2, 3])
    torch.testing.assert_close(torch.cat([encode([2]), encode([3, 1])]), whole[[2, 3, 1]], rtol=0, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), state)


def test_texts_are_cut_at_max_length(folder: Path) -> None:
    tokens = make(folder, max_length=4).tokenise(TEXTS)
    assert np.diff(tokens.offsets).tolist() == [4, 3, 4, 2]


def test_separate_towers_start_equal_and_learn_apart(folder: Path) -> None:
    encoder = make(folder, towers="separate")
    torch.testing.assert_close(embed(encoder, TEXTS, "query"), embed(encoder, TEXTS, "label"))
    with torch.no_grad():
        encoder.label_network.embeddings.word_embeddings.weight.mul_(2)
    assert not torch.allclose(embed(encoder, TEXTS, "query"), embed(encoder, TEXTS, "label"))


def test_an_export_attends_as_the_network_did_when_loaded(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    encoder = make(folder)
    exported = encoder.transformer().network
    assert exported.config._attn_implementation == AutoModel.from_pretrained(folder).config._attn_implementation
    assert all(a is b for a, b in zip(exported.parameters(), encoder.network.parameters(), strict=True))
    exported.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() == (folder / "config.json").read_text()
    inputs = encoder.tokenizer("red blue", return_tensors="pt")
    with torch.no_grad():
        expected = exported(**inputs).last_hidden_state.mean(dim=1)
    torch.testing.assert_close(embed(encoder, ["red blue"]), expected)


def test_gradients_reach_every_parameter_that_the_output_depends_on(folder: Path) -> None:
    encoder = make(folder).train()
    tokens: Tokens = encoder.collate(encoder.tokenise(TEXTS))
    encoder(tokens).square().sum().backward()
    without = [name for name, p in encoder.named_parameters() if p.grad is None]
    assert all("pooler" in name for name in without)


def test_assets_bring_back_the_same_encoder(folder: Path, tmp_path: Path) -> None:
    encoder = make(folder, towers="separate")
    encoder.save_assets(tmp_path)
    again = HuggingFace(model="not-used", towers="separate")
    again.load_assets(tmp_path)
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(embed(again.eval(), TEXTS), embed(encoder, TEXTS))
    assert again.width == encoder.width == 16


def test_a_model_that_is_not_there_is_a_data_error_with_its_name(tmp_path: Path) -> None:
    for model in (str(tmp_path / "no-such-model"), "./no-such-model", "nobody/no-such-model"):
        with pytest.raises(DataError, match="no-such-model") as caught:
            HuggingFace(model=model).fit(TEXTS)
        assert caught.value.exit_code == 3


def test_a_folder_that_holds_no_model_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"encoder\.model"):
        HuggingFace(model=str(tmp_path)).fit(TEXTS)
