"""Packed tokens give what the padded network gives, for every known family, and their gradients too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from xmclab.api import Ragged
from xmclab.model.device import to_device
from xmclab.model.dropout import key_dropouts, keyed, place_keys, text_keys
from xmclab.model.encoders import packed

VOCABULARY, PADDING = 40, 1
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
DEFAULT = {**SIZES, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
SHAPES = {
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "dropout": 0.2, "attention_dropout": 0.3},
    "electra": {**DEFAULT, "embedding_size": 8},
    # One layer sees everything, the other 4 tokens to either side.
    "modernbert": {
        **SIZES,
        **dict.fromkeys(["bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"]),
        "global_attn_every_n_layers": 2,
        "local_attention": 8,
        "embedding_dropout": 0.2,
        "mlp_dropout": 0.2,
        "attention_dropout": 0.3,
    },
}
# Padded and in float64, transformers' own modernbert gives NaN.
PRECISIONS = [(family, dtype) for family in packed.FAMILIES for dtype in (torch.float32, torch.float64)]
PRECISIONS.remove(("modernbert", torch.float64))
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}


def make_network(family: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    shape = SHAPES.get(family, DEFAULT)
    config = AutoConfig.for_model(
        family, vocab_size=VOCABULARY, pad_token_id=PADDING, max_position_embeddings=100, **shape
    )
    network = AutoModel.from_config(config).to(dtype).eval()
    for parameter in network.parameters():  # biases start at 0, which would hide that one is left out
        parameter.data.normal_(std=0.3)
    packed.attach(network)
    return network


def make_tokens(lengths: list[int]) -> Ragged:
    ids = np.random.default_rng(0).integers(PADDING + 1, VOCABULARY, sum(lengths)).astype(np.int32)
    return Ragged(ids, np.cumsum([0, *lengths]))


def padded_states(network: Any, tokens: Ragged) -> list[torch.Tensor]:
    """The last hidden states of each text, by the network itself."""
    lengths = np.diff(tokens.offsets)
    mask = torch.arange(int(lengths.max()) + 3) < torch.from_numpy(lengths)[:, None]
    ids = torch.full(mask.shape, PADDING)
    ids[mask] = torch.from_numpy(tokens.ids).long()
    network.set_attn_implementation("eager")
    hidden = network(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    packed.attach(network)
    return [states[:length] for states, length in zip(hidden, lengths, strict=True)]


def packed_states(network: Any, tokens: Ragged) -> list[torch.Tensor]:
    inputs = packed.pack(tokens, packed.padding_position(network))
    lengths = np.sort(np.diff(tokens.offsets)).tolist()
    parts = torch.cat([x_TD for x_TD, _ in packed._blocks(network, inputs)]).split(lengths)
    return [parts[rank] for rank in inputs["rank_B"].tolist()]


def gradients(network: Any, states: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    weights = torch.linspace(-1, 1, states[0].shape[1], dtype=states[0].dtype)
    network.zero_grad()
    sum(i * (state * weights).square().sum() for i, state in enumerate(states, 1)).backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "dtype"), PRECISIONS)
def test_states_and_gradients_equal_those_of_the_padded_network(family: str, dtype: torch.dtype) -> None:
    network, tokens = make_network(family, dtype), make_tokens([5, 2, 9, 5, 70, 1, 2])
    assert packed.knows(network)
    expected, found = padded_states(network, tokens), packed_states(network, tokens)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[dtype])
    expected_grad, found_grad = gradients(network, expected), gradients(network, found)
    assert found_grad.keys() == expected_grad.keys()
    largest = max(gradient.abs().max() for gradient in expected_grad.values())
    # Some gradients are 0 but for rounding, such as that of the bias of keys.
    least = 0.1 * largest if dtype is torch.float32 else 1
    for name, gradient in expected_grad.items():
        scale = gradient.abs().max().clamp(min=least)
        torch.testing.assert_close(found_grad[name] / scale, gradient / scale, rtol=0, atol=TOLERANCE[dtype], msg=name)


@pytest.mark.parametrize("family", packed.FAMILIES)
def test_without_packed_texts_the_network_attends_as_before(family: str) -> None:
    network = make_network(family, torch.float32)
    mask = torch.arange(20) < torch.tensor([[20], [7]])
    ids = torch.where(mask, torch.randint(PADDING + 1, VOCABULARY, (2, 20)), PADDING)
    calls = [lambda: network(input_ids=ids, attention_mask=mask.long()), lambda: network(input_ids=ids[:1])]
    found = [call().last_hidden_state for call in calls]
    network.set_attn_implementation("sdpa")
    for call, hidden in zip(calls, found, strict=True):
        assert torch.equal(call().last_hidden_state, hidden)


@pytest.mark.parametrize("family", sorted(set(packed.FAMILIES) - {"modernbert"}))
def test_a_padding_token_that_a_text_spells_out_counts_as_in_the_network(family: str) -> None:
    network, tokens = make_network(family), make_tokens([6, 4])
    tokens.ids[[2, 6]] = PADDING
    for a, b in zip(packed_states(network, tokens), padded_states(network, tokens), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", packed.FAMILIES)
def test_dropout_is_applied_where_the_network_applies_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = make_network(family, torch.float32).train(), make_tokens([4, 4])
    rates: list[float] = []

    def record(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        rates.append(p)
        return x

    monkeypatch.setattr(F, "dropout", record)
    padded_states(network, tokens)
    expected, rates[:] = list(rates), []
    packed_states(network, tokens)
    assert rates == expected
    assert set(rates) == {0.2, 0.3}


def test_dropout_follows_the_seed_and_ends_with_training() -> None:
    network, tokens = make_network("bert").train(), make_tokens([3, 7, 3])

    def states(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat(packed_states(network, tokens))

    first = states(1)
    with torch.no_grad():
        torch.testing.assert_close(states(1), first, rtol=0, atol=0)
    assert not torch.allclose(states(2), first)
    network.eval()
    torch.testing.assert_close(states(1), states(2), rtol=0, atol=0)


@pytest.mark.parametrize("family", packed.FAMILIES)
def test_keyed_dropout_is_that_of_the_text_in_any_chunk_and_block(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attention weights too, also in texts that a fused kernel takes where nothing is dropped."""
    network, lengths = make_network(family).train(), [5, 2, 9, packed.SHORT + 6, 5, 1]
    key_dropouts(network)
    tokens, key_B = make_tokens(lengths), text_keys(3, torch.arange(len(lengths)))

    def encode(rows: list[int]) -> Tensor:
        inputs = packed.pack(tokens.take(np.array(rows)), packed.padding_position(network))
        with keyed(key_B[rows]):
            return packed.encode(network, inputs, "mean")

    state = torch.get_rng_state()
    whole = encode([0, 1, 2, 3, 4, 5])
    assert torch.equal(torch.get_rng_state(), state)  # no draw is left to the generator
    torch.testing.assert_close(torch.cat([encode([4, 0]), encode([3])]), whole[[4, 0, 3]], rtol=0, atol=1e-10)
    monkeypatch.setattr(packed, "BLOCK", 8)
    torch.testing.assert_close(encode([5, 4, 3, 2, 1, 0]), whole.flip(0), rtol=0, atol=1e-10)
    with_attention = whole[3]
    monkeypatch.setattr(packed, "drop", lambda weights, key, site, rate: weights)
    assert not torch.allclose(encode([3])[0], with_attention)


@pytest.mark.parametrize("family", sorted(set(packed.FAMILIES) - {"modernbert"}))
def test_keyed_dropout_of_padded_texts_is_that_of_packed_ones(family: str) -> None:
    network, tokens = make_network(family).train(), make_tokens([5, 2, 9, 5])
    key_dropouts(network)
    key_B = text_keys(3, torch.arange(4))
    with keyed(key_B):
        found = packed_states(network, tokens)
    mask = torch.arange(9) < torch.tensor([5, 2, 9, 5])[:, None]
    ids = torch.full(mask.shape, PADDING)
    ids[mask] = torch.from_numpy(tokens.ids).long()
    with keyed(place_keys(key_B[:, None], torch.arange(9))):
        hidden = network(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    for states, padded in zip(found, hidden, strict=True):
        torch.testing.assert_close(states, padded[: len(states)], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_is_in_the_order_of_the_chunk(pooling: packed.Pooling) -> None:
    network, tokens = make_network("bert"), make_tokens([5, 2, 9, 5, 1])
    inputs = packed.pack(tokens)
    found = packed.encode(network, inputs, pooling)
    states = padded_states(network, tokens)
    expected = torch.stack([state.mean(0) if pooling == "mean" else state[0] for state in states])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_text_without_tokens_gives_zeros() -> None:
    network, tokens = make_network("bert"), make_tokens([3, 0, 2])
    inputs = packed.pack(tokens)
    for pooling in ("mean", "cls"):
        x_BD = packed.encode(network, inputs, pooling)
        assert x_BD[1].eq(0).all()
        assert x_BD[[0, 2]].ne(0).all()
        assert packed.encode(network, packed.pack(make_tokens([0, 0])), pooling).eq(0).all()


def test_no_layer_sees_more_than_the_tokens_of_the_texts() -> None:
    network, tokens = make_network("bert"), make_tokens([30, 2, 2, 3])
    seen: set[int] = set()
    for module in network.encoder.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, args, output: seen.add(output.shape[:-1].numel()))
    packed_states(network, tokens)
    assert seen == {37}


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("block", [1, 6, 12])
def test_blocks_change_neither_vectors_nor_gradients(family: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(family)
    inputs = packed.pack(make_tokens([5, 2, 9, 5, 2, 2, 0, 5]), packed.padding_position(network))
    expected = packed.encode(network, inputs, "mean")
    expected_grad = gradients(network, [expected])
    seen: list[int] = []
    first = next(module for module in network.encoder.modules() if isinstance(module, torch.nn.Linear))
    first.register_forward_hook(lambda module, args, output: seen.append(output.shape[1]))
    monkeypatch.setattr(packed, "BLOCK", block)
    found = packed.encode(network, inputs, "mean")
    assert sum(seen) == 30
    assert len(seen) > 2
    assert max(seen) < block + 9  # a block is full before the text that does not fit
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for name, gradient in gradients(network, [found]).items():
        scale = expected_grad[name].abs().max().clamp(min=1)
        torch.testing.assert_close(gradient / scale, expected_grad[name] / scale, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("window", [100, 4])
def test_attention_by_groups_is_that_of_dense_float64(window: int, dtype: torch.dtype, tolerance: float) -> None:
    """Of short texts, which plain products take, and of one that a fused kernel takes."""
    lengths = [2, 2, 5, 9, packed.SHORT + 6]
    groups = packed.pack(make_tokens(lengths))["groups"]
    torch.manual_seed(0)
    exact = [torch.randn(sum(lengths), 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    text_T, place_T = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)), torch.arange(sum(lengths))
    near_TT = (text_T == text_T[:, None]) & ((place_T - place_T[:, None]).abs() < window)
    q, k, v = (x.transpose(0, 1) for x in exact)
    dense = (0.2 * q @ k.transpose(1, 2)).masked_fill(~near_TT, -torch.inf).softmax(-1) @ v
    given = [x.detach().to(dtype).requires_grad_() for x in exact]
    found = packed.grouped_attention(*given, groups, 0.0, 0.2, window=window)
    torch.testing.assert_close(found.double(), dense.transpose(0, 1), rtol=0, atol=tolerance)
    expected = torch.autograd.grad(dense.square().sum(), exact)
    for a, b in zip(torch.autograd.grad(found.square().sum(), given), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("lengths", [[0, 0, 2, 2, 5], [1, 4, 4]])
def test_pooling_at_once_is_that_by_length(lengths: list[int], pooling: packed.Pooling) -> None:
    inputs = packed.pack(make_tokens(lengths))
    x_TD = torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True)
    expected = packed.pool(x_TD, inputs["groups"], pooling)
    found = packed.pool_at_once(x_TD, inputs["offset_B"], inputs["groups"], pooling)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(y.square().sum(), x_TD)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("family", packed.FAMILIES)
def test_nothing_of_the_host_is_read_on_the_device(family: str) -> None:
    """On `meta`, a value that had to come back from the device would raise."""
    network = copy.deepcopy(make_network(family)).to("meta").train()
    inputs = to_device(packed.pack(make_tokens([3, 7, 3]), packed.padding_position(network)), torch.device("meta"))
    x_BD = packed.encode(network, inputs, "mean")
    x_BD.sum().backward()
    assert x_BD.shape == (3, 16)
    assert x_BD.device.type == "meta"


def test_other_networks_are_not_known() -> None:
    for family, more in (("albert", {"embedding_size": 8}), ("mpnet", {})):
        other = AutoConfig.for_model(family, **DEFAULT, vocab_size=VOCABULARY, **more)
        assert not packed.knows(AutoModel.from_config(other))
    decoder = AutoConfig.for_model("bert", **DEFAULT, vocab_size=VOCABULARY, is_decoder=True)
    assert not packed.knows(AutoModel.from_config(decoder))


def test_other_networks_of_the_class_and_the_files_are_left_as_they_were(tmp_path: Path) -> None:
    network = make_network("bert")
    other = type(network)(network.config.__class__(**DEFAULT, vocab_size=VOCABULARY))
    assert other.config._attn_implementation == "sdpa"
    network.save_pretrained(tmp_path)
    assert packed.ATTENTION not in (tmp_path / "config.json").read_text(encoding="utf-8")
    packed_config = json.loads((tmp_path / "config.json").read_bytes())
    network.set_attn_implementation("sdpa")
    network.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_bytes()) == packed_config
    assert AutoModel.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


LENGTHS = [5, 2, 9, 5, 1, 2, 0, 12]


def test_evaluation_draws_nothing() -> None:
    network = make_network("bert")
    before = torch.get_rng_state()
    packed_states(network, make_tokens(LENGTHS))
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_weights_get_no_gradient_and_the_others_the_same() -> None:
    network, tokens = make_network("bert"), make_tokens(LENGTHS)
    expected = gradients(network, packed_states(network, tokens))
    for part in (network.embeddings, network.encoder.layer[0]):
        part.requires_grad_(False)
    network.encoder.layer[1].output.dense.weight.requires_grad_(False)
    found = gradients(network, packed_states(network, tokens))
    assert found.keys() == {
        name
        for name in expected
        if name.startswith("encoder.layer.1") and name != "encoder.layer.1.output.dense.weight"
    }
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


class Doubled(nn.Linear):
    """As adapters are: a layer in the place of another."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_modules_that_are_not_torchs_own_or_have_hooks_are_called() -> None:
    network = make_network("bert")
    layer, other = network.encoder.layer
    calls: list[str] = []
    layer.output.LayerNorm.register_forward_hook(lambda *_: calls.append("norm"))
    layer.attention.self.query.register_full_backward_hook(lambda *_: calls.append("query"))
    other.attention.output.dense.__class__ = Doubled
    other.intermediate.intermediate_act_fn = nn.ReLU()
    tokens = make_tokens(LENGTHS[:6])
    found = torch.cat(packed_states(network, tokens))
    torch.testing.assert_close(found, torch.cat(padded_states(network, tokens)), rtol=0, atol=1e-10)
    assert calls == ["norm", "norm"]
    found.sum().backward()
    assert "query" in calls


@pytest.mark.parametrize("place", ["attention.output.dense", "output.LayerNorm", "intermediate.intermediate_act_fn"])
def test_a_forward_that_was_replaced_is_called(place: str) -> None:
    """As libraries do that move or quantise weights."""
    network, tokens = make_network("bert"), make_tokens(LENGTHS[:6])
    module = network.encoder.layer[0].get_submodule(place)
    module.forward = lambda x: 2 * type(module).forward(module, x)
    expected = torch.cat(padded_states(network, tokens))
    torch.testing.assert_close(torch.cat(packed_states(network, tokens)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", packed.FAMILIES)
@pytest.mark.parametrize("training", [False, True])
def test_torch_compiles_the_network_as_a_whole(training: bool, family: str) -> None:
    network = make_network(family, torch.float32).train(training)
    key_dropouts(network)
    torch._dynamo.reset()
    inputs = packed.pack(make_tokens([packed.SHORT - 1] * 4), packed.padding_position(network))
    compiled = torch.compile(packed.encode, backend="eager", fullgraph=True)
    for seed in (1, 2):  # another step is the same graph
        with keyed(text_keys(seed, torch.arange(4))), torch._dynamo.config.patch(error_on_recompile=True):
            found = compiled(network, inputs, "mean")
        with keyed(text_keys(seed, torch.arange(4))):
            torch.testing.assert_close(found, packed.encode(network, inputs, "mean"))
    found.sum().backward()
    assert all(p.grad is not None for name, p in network.named_parameters() if "pooler" not in name)
    if not training:
        torch.testing.assert_close(found, packed.encode(network, inputs, "mean"), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "name"), [("distilbert", "hidden_dim"), ("bert", "intermediate_size")])
def test_what_the_gradient_keeps_grows_with_tokens_layers_and_widths(family: str, name: str) -> None:
    config = AutoConfig.for_model(family, **SHAPES.get(family, DEFAULT))
    before = packed.graph_bytes(config, 10, half=True)
    assert packed.graph_bytes(config, 20, half=True) == 2 * before
    assert before < packed.graph_bytes(config, 10, half=False) < 2 * before
    setattr(config, name, getattr(config, name) + 1)
    assert packed.graph_bytes(config, 10, half=True) - before == 4 * 10 * config.num_hidden_layers
