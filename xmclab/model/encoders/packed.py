"""BERT-family networks on packed tokens: a short text costs what its own tokens cost, no padding.

pack       host: the texts of a chunk by length, one after the other, T = sum of their lengths
token-wise embeddings, linear layers, norms and activations run on x_TD
attention  within each text: texts of one length form a matrix (CPU), or a variable-length kernel takes all (CUDA)
blocks     on a CPU, few enough tokens at a time that the activations between layers stay in the cache
compiled   on a CPU with numba, what is around the matrix products (`kernels/layers.py`)

It calls the network's own modules, or computes what they would, so weights, gradients, hooks and adapters stay where
they are.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from xmclab.api import Ragged, Tokens
from xmclab.kernels.bert import Groups, Half, Layer
from xmclab.kernels.dispatch import numba_is_loaded, sublayers_for

Pooling = Literal["mean", "cls"]

# Beyond this length a fused kernel beats plain products on a CPU.
SHORT = 64
# Tokens that pass through the network together on a CPU.
BLOCK = 4096
# Without the greatest length as an argument, the jagged layout would ask the device for it.
HAS_JAGGED = "max_seqlen" in inspect.signature(torch.nested.nested_tensor_from_jagged).parameters


# Where the modules of a `Layer` are, in the order of its fields: below the list of layers, the first name.
BERT = """encoder.layer
    attention.self.query attention.self.key attention.self.value attention.self.dropout
    attention.output.dense attention.output.dropout attention.output.LayerNorm
    intermediate.dense intermediate.intermediate_act_fn output.dense output.dropout output.LayerNorm"""
DISTILBERT = """transformer.layer
    attention.q_lin attention.k_lin attention.v_lin attention.dropout attention.out_lin - sa_layer_norm
    ffn.lin1 ffn.activation ffn.lin2 ffn.dropout output_layer_norm"""
MPNET = """encoder.layer
    attention.attn.q attention.attn.k attention.attn.v attention.attn.dropout
    attention.attn.o attention.dropout attention.LayerNorm
    intermediate.dense intermediate.intermediate_act_fn output.dense output.dropout output.LayerNorm"""
LAYERS = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
}


def layers(network: Any) -> Iterator[Layer]:
    """The layers of a network of `LAYERS`; a module that a family lacks (`-`) does nothing."""
    where, *paths = LAYERS[network.config.model_type].split()
    for layer in attrgetter(where)(network):
        modules: list[Any] = [nn.Identity() if path == "-" else attrgetter(path)(layer) for path in paths]
        yield Layer(*modules)


def knows(network: Any) -> bool:
    """Whether the network is one of `LAYERS`, as transformers itself builds it, with absolute positions."""
    config = network.config
    return (
        config.model_type in LAYERS
        and type(network).__module__.startswith("transformers.models.")
        and not getattr(config, "is_decoder", False)
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


def padding_position(network: Any) -> int | None:
    """The position of padding tokens where texts are counted from the one after it; None: they start at 0."""
    index: int | None = network.embeddings.position_embeddings.padding_idx
    return index


def pack(tokens: Ragged, padding: int | None = None) -> Tokens:
    """The texts of a chunk by ascending length, without padding.

    Args:
        padding: see `padding_position`.
    """
    arrange = importlib.import_module("xmclab.kernels.packing").arrange if numba_is_loaded() else _arrange
    ids_T, position_T, offset_B, rank_B, counts = arrange(tokens, padding)
    present = np.flatnonzero(counts)
    return {
        "ids_T": torch.from_numpy(ids_T),
        "position_T": torch.from_numpy(position_T),
        "offset_B": torch.from_numpy(offset_B),  # [B + 1]
        "rank_B": torch.from_numpy(rank_B),  # place of each text of the chunk among the packed ones
        "groups": tuple(zip(counts[present].tolist(), present.tolist(), strict=True)),
    }


def _arrange(tokens: Ragged, padding: int | None) -> tuple[NDArray[Any], ...]:
    """Ids and positions by ascending length of the texts, their offsets, the texts' ranks, and how many have a length.

    Texts of the same length keep their order.
    """
    lengths_B = np.diff(tokens.offsets)
    order_B = np.argsort(lengths_B.astype(np.uint16), kind="stable")  # of small integers: a radix sort
    rank_B = np.empty_like(order_B)
    rank_B[order_B] = np.arange(len(order_B))
    packed = tokens.take(order_B)
    return packed.ids, _positions(packed, padding), packed.offsets, rank_B, np.bincount(lengths_B)


def _positions(tokens: Ragged, padding: int | None) -> NDArray[np.int32]:
    """Position of each token in its text; a padding token that a text spells out is not counted, as in the network."""
    starts_B, lengths_B = tokens.offsets[:-1], np.diff(tokens.offsets)
    if padding is None:
        position_T = np.arange(len(tokens.ids), dtype=np.int32)
        position_T -= np.repeat(starts_B.astype(np.int32), lengths_B)
        return position_T
    real_T = tokens.ids != padding
    counted_T = np.cumsum(real_T, dtype=np.int32)
    before_B = np.concatenate([np.zeros(1, np.int32), counted_T])[starts_B]
    return np.where(real_T, counted_T - np.repeat(before_B, lengths_B), 0) + np.int32(padding)


def encode(network: Any, tokens: Tokens, pooling: Pooling) -> Tensor:
    """x_BD in the order of the chunk, for the tokens that `pack` gives."""
    pooled = [pool(x_TD, groups, pooling) for x_TD, groups in _blocks(network, tokens)]
    return torch.cat(pooled).index_select(0, tokens["rank_B"])


def _blocks(network: Any, tokens: Tokens) -> Iterator[tuple[Tensor, Groups]]:
    """x_TD of the last layer, in blocks of about `BLOCK` tokens on a CPU, cut between texts."""
    x_TD = _embed(network.embeddings, tokens["ids_T"], tokens["position_T"])
    cuts = list(_cut(tokens["groups"])) if x_TD.device.type == "cpu" else [tokens["groups"]]
    halves = list(_halves(network, x_TD, tokens))
    for block_TD, groups in zip(x_TD.split([sum(_sizes(groups)) for groups in cuts]), cuts, strict=True):
        for half in halves:
            block_TD = half(block_TD, groups)
        yield block_TD, groups


def _cut(groups: Groups) -> Iterator[Groups]:
    block: list[tuple[int, int]] = []
    room = BLOCK
    for texts, length in groups:
        left = texts
        while left:
            fitting = min(left, max(room // max(length, 1), 1))
            block.append((fitting, length))
            left -= fitting
            room -= fitting * length
            if room < length:
                yield tuple(block)
                block, room = [], BLOCK
    if block:
        yield tuple(block)


def _halves(network: Any, x_TD: Tensor, tokens: Tokens) -> Iterator[Half]:
    """Attention and feed-forward of every layer; compiled where that can be."""
    longest = tokens["groups"][-1][1]
    heads = network.config.num_attention_heads
    bias_HTT = _position_bias(network, x_TD, longest)
    compiled = sublayers_for(x_TD)
    for layer in layers(network):
        fast = compiled.attention(layer, heads) if compiled and bias_HTT is None and longest <= SHORT else None
        yield fast or partial(_attention, layer, heads, tokens["offset_B"], bias_HTT)
        fast = compiled.feed_forward(layer) if compiled else None
        yield fast or partial(_feed_forward, layer)


def _attention(
    layer: Layer, heads: int, offset_B: Tensor, bias_HTT: Tensor | None, x_TD: Tensor, groups: Groups
) -> Tensor:
    q, k, v = (part(x_TD).unflatten(-1, (heads, -1)) for part in (layer.query, layer.key, layer.value))
    dropout = layer.attention_dropout.p if layer.attention_dropout.training else 0.0
    if x_TD.is_cuda and bias_HTT is None and HAS_JAGGED:
        mixed = jagged_attention(q, k, v, offset_B, groups, dropout)
    else:
        mixed = grouped_attention(q, k, v, groups, dropout, bias_HTT)
    y_TD: Tensor = layer.out_norm(x_TD + layer.out_dropout(layer.out(mixed.flatten(1))))
    return y_TD


def _feed_forward(layer: Layer, x_TD: Tensor, groups: Groups) -> Tensor:
    y_TD: Tensor = layer.down_norm(x_TD + layer.down_dropout(layer.down(layer.activation(layer.up(x_TD)))))
    return y_TD


def pool(x_TD: Tensor, groups: Groups, pooling: Pooling) -> Tensor:
    """x_BD in the order of the packed texts: the mean over each text's tokens, or its first one."""
    pooled = []
    for (texts, length), group_TD in zip(groups, x_TD.split(_sizes(groups)), strict=True):
        group = group_TD.unflatten(0, (texts, length))
        pooled.append(group[:, :1].sum(dim=1) if pooling == "cls" else group.sum(dim=1) / max(length, 1))
    return torch.cat(pooled)


def _embed(embeddings: Any, ids_T: Tensor, position_T: Tensor) -> Tensor:
    x_TD = embeddings.word_embeddings(ids_T) + embeddings.position_embeddings(position_T)
    if hasattr(embeddings, "token_type_embeddings"):
        x_TD = x_TD + embeddings.token_type_embeddings.weight[0]
    x_TD = embeddings.LayerNorm(x_TD)
    if compiled := sublayers_for(x_TD):
        dropped_TD: Tensor = compiled.dropout(x_TD, embeddings.dropout)
        return dropped_TD
    embedded_TD: Tensor = embeddings.dropout(x_TD)
    return embedded_TD


def _position_bias(network: Any, x_TD: Tensor, longest: int) -> Tensor | None:
    """Bias of the attention between two positions, where a network has one (mpnet); shorter texts use its corner."""
    if network.config.model_type != "mpnet":
        return None
    bias_1HTT: Tensor = network.encoder.compute_position_bias(x_TD.new_empty(1, longest, 0))  # only its shape is read
    return bias_1HTT.squeeze(0)


def grouped_attention(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, groups: Groups, dropout: float, bias_HTT: Tensor | None = None
) -> Tensor:
    """Attention within each text, for all texts of one length at a time; on any device."""
    mixed = []
    sizes = _sizes(groups)
    for (texts, length), *parts in zip(groups, q_THD.split(sizes), k_THD.split(sizes), v_THD.split(sizes), strict=True):
        q, k, v = (part.unflatten(0, (texts, length)).transpose(1, 2) for part in parts)
        bias = None if bias_HTT is None else bias_HTT[:, :length, :length]
        attend = _plain_attention if q.device.type == "cpu" and length <= SHORT else F.scaled_dot_product_attention
        mixed.append(attend(q, k, v, attn_mask=bias, dropout_p=dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float) -> Tensor:
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    weights = torch.softmax(scores if attn_mask is None else scores + attn_mask, dim=-1)
    return (F.dropout(weights, dropout_p) if dropout_p else weights) @ v


def jagged_attention(
    q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, offset_B: Tensor, groups: Groups, dropout: float
) -> Tensor:
    """The same by one variable-length kernel for all texts; lengths are known on the host, so nothing waits."""
    as_jagged = partial(
        torch.nested.nested_tensor_from_jagged, offsets=offset_B, min_seqlen=groups[0][1], max_seqlen=groups[-1][1]
    )
    q, k, v = (as_jagged(part).transpose(1, 2) for part in (q_THD, k_THD, v_THD))
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).values()
    return mixed


def _sizes(groups: Groups) -> list[int]:
    return [texts * length for texts, length in groups]
