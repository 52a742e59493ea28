"""Packed tokens give what the padded network gives, for every known family, and their gradients too."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from xmclab.api import Ragged
from xmclab.kernels import dispatch as accelerator
from xmclab.kernels import layers as sublayers
from xmclab.kernels import packing as pack_loops
from xmclab.model.device import to_device
from xmclab.model.encoders import packed

VOCABULARY, PADDING = 40, 1
SHAPES = {
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "dropout": 0.2, "attention_dropout": 0.3},
}
DEFAULT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
}


def make_network(family: str) -> Any:
    torch.manual_seed(0)
    shape = SHAPES.get(family, DEFAULT)
    config = AutoConfig.for_model(
        family, vocab_size=VOCABULARY, pad_token_id=PADDING, max_position_embeddings=100, **shape
    )
    network = AutoModel.from_config(config, attn_implementation="eager").double().eval()
    for parameter in network.parameters():  # biases start at 0, which would hide that one is left out
        parameter.data.normal_(std=0.3)
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
    hidden = network(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    return [states[:length] for states, length in zip(hidden, lengths, strict=True)]


def packed_states(network: Any, tokens: Ragged) -> list[torch.Tensor]:
    inputs = packed.pack(tokens, packed.padding_position(network))
    lengths = np.sort(np.diff(tokens.offsets)).tolist()
    parts = torch.cat([x_TD for x_TD, _ in packed._blocks(network, inputs)]).split(lengths)
    return [parts[rank] for rank in inputs["rank_B"].tolist()]


def gradients(network: Any, states: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    weights = torch.linspace(-1, 1, states[0].shape[1], dtype=torch.float64)
    network.zero_grad()
    sum(i * (state * weights).square().sum() for i, state in enumerate(states, 1)).backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", sorted(packed.LAYERS))
def test_states_and_gradients_equal_those_of_the_padded_network(family: str) -> None:
    network, tokens = make_network(family), make_tokens([5, 2, 9, 5, 70, 1, 2])
    assert packed.knows(network)
    expected, found = padded_states(network, tokens), packed_states(network, tokens)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    expected_grad, found_grad = gradients(network, expected), gradients(network, found)
    assert found_grad.keys() == expected_grad.keys()
    for name, gradient in expected_grad.items():
        scale = gradient.abs().max().clamp(min=1)
        torch.testing.assert_close(found_grad[name] / scale, gradient / scale, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "mpnet", "roberta"])
def test_a_padding_token_that_a_text_spells_out_counts_as_in_the_network(family: str) -> None:
    network, tokens = make_network(family), make_tokens([6, 4])
    tokens.ids[[2, 6]] = PADDING
    for a, b in zip(packed_states(network, tokens), padded_states(network, tokens), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", sorted(packed.LAYERS))
def test_dropout_is_applied_where_the_network_applies_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = make_network(family).train(), make_tokens([4, 4])
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


def test_no_layer_sees_more_than_the_tokens_of_the_texts() -> None:
    network, tokens = make_network("bert"), make_tokens([30, 2, 2, 3])
    seen: set[int] = set()
    for module in network.encoder.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, args, output: seen.add(output.shape[0]))
    packed_states(network, tokens)
    assert seen == {37}


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("block", [1, 6, 12])
def test_blocks_change_neither_vectors_nor_gradients(family: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_network(family)
    inputs = packed.pack(make_tokens([5, 2, 9, 5, 2, 2, 0, 5]), packed.padding_position(network))
    expected = packed.encode(network, inputs, "mean")
    expected_grad = gradients(network, [expected])
    seen: list[int] = []
    first = next(module for module in network.encoder.modules() if isinstance(module, torch.nn.Linear))
    first.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    monkeypatch.setattr(packed, "BLOCK", block)
    found = packed.encode(network, inputs, "mean")
    assert sum(seen) == 30
    assert len(seen) > 2
    assert max(seen) < block + 9  # a block is full before the text that does not fit
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for name, gradient in gradients(network, [found]).items():
        scale = expected_grad[name].abs().max().clamp(min=1)
        torch.testing.assert_close(gradient / scale, expected_grad[name] / scale, rtol=0, atol=1e-12, msg=name)


def test_variable_length_attention_equals_that_by_groups() -> None:
    inputs = packed.pack(make_tokens([5, 2, 9, 5, 2, 2]))
    torch.manual_seed(0)
    q, k, v = (torch.randn(25, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    grouped = packed.grouped_attention(q, k, v, inputs["groups"], 0.0)
    jagged = packed.jagged_attention(q, k, v, inputs["offset_B"], inputs["groups"], 0.0)
    torch.testing.assert_close(jagged, grouped, rtol=0, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(jagged.square().sum(), (q, k, v)),
        torch.autograd.grad(grouped.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_nothing_of_the_host_is_read_on_the_device(family: str) -> None:
    """On `meta`, a value that had to come back from the device would raise."""
    network = copy.deepcopy(make_network(family)).to("meta").train()
    inputs = to_device(packed.pack(make_tokens([3, 7, 3]), packed.padding_position(network)), torch.device("meta"))
    x_BD = packed.encode(network, inputs, "mean")
    x_BD.sum().backward()
    assert x_BD.shape == (3, 16)
    assert x_BD.device.type == "meta"


def test_other_networks_are_not_known() -> None:
    albert = AutoConfig.for_model("albert", **DEFAULT, vocab_size=VOCABULARY, embedding_size=8)
    assert not packed.knows(AutoModel.from_config(albert))
    decoder = AutoConfig.for_model("bert", **DEFAULT, vocab_size=VOCABULARY, is_decoder=True)
    assert not packed.knows(AutoModel.from_config(decoder))


LENGTHS = [5, 2, 9, 5, 1, 2, 0, 12]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compiled loops, several slices and two threads for a small network."""
    monkeypatch.setattr(accelerator, "WORTH_LOADING", 1)
    monkeypatch.setattr(sublayers, "CELLS_OF_SLICE", 60)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def float_network(family: str) -> Any:
    return make_network(family).float()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("family", sorted(packed.LAYERS))
@pytest.mark.parametrize("lengths", [LENGTHS, [*LENGTHS, packed.SHORT + 6]], ids=["short", "long"])
def test_compiled_states_and_gradients_equal_those_of_the_padded_network(family: str, lengths: list[int]) -> None:
    network, tokens = float_network(family), make_tokens(lengths)
    found = torch.cat(packed_states(network, tokens))
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    (found * direction).sum().backward()
    exact = make_network(family)
    expected = torch.cat(padded_states(exact, tokens))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    (expected * direction).sum().backward()
    largest = max(p.grad.abs().max() for p in exact.parameters() if p.grad is not None)
    for (name, p), q in zip(network.named_parameters(), exact.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            scale = q.grad.abs().max().clamp(min=0.1 * largest)
            torch.testing.assert_close(p.grad.double() / scale, q.grad / scale, rtol=0, atol=2e-5, msg=name)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("family", sorted(packed.LAYERS))
def test_compiled_dropout_is_applied_where_the_network_applies_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = float_network(family).train(), make_tokens([4, 4])
    no_drop, rates = sublayers.Drop.draw(0.0), list[float]()

    def record(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        rates.append(p)
        return x

    def record_draw(rate: float) -> sublayers.Drop:
        rates.extend([rate] if rate else [])
        return no_drop

    monkeypatch.setattr(F, "dropout", record)
    monkeypatch.setattr(sublayers.Drop, "draw", record_draw)
    padded_states(network, tokens)
    expected, rates[:] = list(rates), []
    packed_states(network, tokens)
    assert rates == expected
    assert set(rates) == {0.2, 0.3}


def outputs(network: Any, seed: int) -> list[Tensor]:
    """The vectors of a chunk, and the gradients."""
    torch.manual_seed(seed)
    network.zero_grad()
    x_BD = packed.encode(network, packed.pack(make_tokens(LENGTHS)), "mean")
    x_BD.square().sum().backward()
    return [x_BD.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.usefixtures("compiled")
def test_compiled_layers_give_the_same_again_without_a_graph_and_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    network = float_network("bert").train()
    first = outputs(network, 1)
    assert same(outputs(network, 1), first)
    assert not torch.allclose(outputs(network, 2)[0], first[0])
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(packed.encode(network, packed.pack(make_tokens(LENGTHS)), "mean"), first[0])
    # torch's own products stay in two threads: their sums may differ by rounding
    monkeypatch.setattr(sublayers, "in_threads", lambda work, items: [work(item) for item in items])
    assert same(outputs(network, 1), first)
    network.eval()
    assert same(outputs(network, 1), outputs(network, 2))


@pytest.mark.usefixtures("compiled")
def test_evaluation_draws_nothing() -> None:
    network = float_network("bert")
    before = torch.get_rng_state()
    packed_states(network, make_tokens(LENGTHS))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("compiled")
def test_frozen_weights_get_no_gradient_and_the_others_the_same() -> None:
    network = float_network("bert")
    expected = {name: p.grad for name, p in network.named_parameters() if outputs(network, 0) and p.grad is not None}
    for part in (network.embeddings, network.encoder.layer[0]):
        part.requires_grad_(False)
    network.encoder.layer[1].output.dense.weight.requires_grad_(False)
    outputs(network, 0)
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
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


@pytest.mark.usefixtures("compiled")
def test_modules_that_are_not_torchs_own_or_have_hooks_are_called() -> None:
    network = float_network("bert")
    layer, other = network.encoder.layer
    calls: list[str] = []
    layer.output.LayerNorm.register_forward_hook(lambda *_: calls.append("norm"))
    layer.attention.self.query.register_full_backward_hook(lambda *_: calls.append("query"))
    other.attention.output.dense.__class__ = Doubled
    other.intermediate.intermediate_act_fn = nn.ReLU()
    tokens = make_tokens(LENGTHS[:6])
    found = torch.cat(packed_states(network, tokens))
    torch.testing.assert_close(found, torch.cat(padded_states(network, tokens)), rtol=0, atol=1e-5)
    assert calls == ["norm", "norm"]
    found.sum().backward()
    assert "query" in calls


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("place", ["attention.output.dense", "output.LayerNorm", "intermediate.intermediate_act_fn"])
def test_a_forward_that_was_replaced_is_called(place: str) -> None:
    """As libraries do that move or quantise weights."""
    network, tokens = float_network("bert"), make_tokens(LENGTHS[:6])
    module = network.encoder.layer[0].get_submodule(place)
    module.forward = lambda x: 2 * type(module).forward(module, x)
    expected = torch.cat(padded_states(network, tokens))
    torch.testing.assert_close(torch.cat(packed_states(network, tokens)), expected, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("compiled")
def test_without_numba_or_in_lower_precision_torch_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x_TD = torch.zeros(4, 4)
    assert accelerator.sublayers_for(x_TD) is sublayers
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert accelerator.sublayers_for(x_TD) is None
    assert accelerator.sublayers_for(x_TD.double()) is None
    assert accelerator.sublayers_for(x_TD.to("meta")) is None
    network = float_network("bert")
    compiled = outputs(network, 0)[0]
    monkeypatch.setattr(accelerator, "numba_works", lambda: False)
    monkeypatch.setattr(sublayers, "sublayer", None)
    monkeypatch.setattr(pack_loops, "arrange", None)
    torch.testing.assert_close(outputs(network, 0)[0], compiled, rtol=0, atol=1e-5)
    assert not torch.allclose(outputs(network.train(), 0)[0], outputs(network, 1)[0])


@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_network_is_left_to_torch(training: bool) -> None:
    network = float_network("bert").train(training)
    inputs = packed.pack(make_tokens([packed.SHORT - 1] * 100))
    assert len(inputs["ids_T"]) * network.config.hidden_size >= accelerator.WORTH_LOADING
    found = torch.compile(packed.encode, backend="eager", fullgraph=True)(network, inputs, "mean")
    found.sum().backward()
    assert all(p.grad is not None for p in network.encoder.parameters())
    if not training:
        torch.testing.assert_close(found, packed.encode(network, inputs, "mean"), rtol=0, atol=1e-5)
