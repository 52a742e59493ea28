"""Networks of transformers on packed tokens: a short text costs what its own tokens cost, no padding.

pack       host: the texts of a chunk by length, one after the other, T = sum of their lengths
network    is called as it is, on one row of T tokens whose positions start again in each text
attention  within each text, by one of the roads of `varlen.py`
blocks     on a CPU, few enough tokens at a time that the activations between layers stay in the cache
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from xmclab.api import Ragged, Tokens
from xmclab.model.dropout import current, drop, keyed, place_keys
from xmclab.model.encoders.varlen import compute_dtype, fused_attention, has_window, math_refused, road_of
from xmclab.objectives.products import operands_in

Draws = tuple[Tensor, int]  # keyed dropout of attention weights: [B, T] keys of the tokens that attend, and the site
Groups = tuple[tuple[int, int], ...]  # (texts, length) of the texts of each length, by ascending length
Pooling = Literal["mean", "cls"]

FAMILIES = ("bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta")
# Names among the attention implementations of transformers.
ATTENTION = "xmclab_packed"
PADDED_ATTENTION = "xmclab_padded"  # of networks that are not known
ATTENTION_SITE = 2  # of the dropout of attention weights; its calls tell the layers apart
# Beyond this length a fused kernel beats plain products on a CPU.
SHORT = 64
# Tokens that pass through the network together on a CPU.
BLOCK = 4096


def knows(network: Any) -> bool:
    """Whether the network is one of `FAMILIES`, as transformers itself builds it, with attention that can be chosen."""
    config = network.config
    return (
        config.model_type in FAMILIES
        and type(network).__module__.startswith("transformers.models.")
        and getattr(network, "_supports_attention_backend", False)
        and not getattr(config, "is_decoder", False)
    )


def attach(network: Any) -> None:
    """Let the network attend within packed texts; called without them, it attends as before."""
    _choose(network, ATTENTION, _attention)


def attach_padded(network: Any) -> bool:
    """Let a network that is not known leave out the dropout of fused attention where draws are keyed.

    Returns:
        Whether it attends by such a kernel, and its attention can be chosen.
    """
    fused = getattr(network, "_supports_attention_backend", False) and network.config._attn_implementation == "sdpa"
    if fused:
        _choose(network, PADDED_ATTENTION, _padded_attention)
    return bool(fused)


def _choose(network: Any, name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    network.set_attn_implementation(name)


def attention_dropout(network: Any) -> float:
    """The rate at which the network drops attention weights."""
    names = ("attention_probs_dropout_prob", "attention_dropout")
    return max((float(getattr(network.config, name, None) or 0.0) for name in names), default=0.0)


def road(network: Any) -> str:
    """The road that attention takes on the device of the network, see `varlen.py`.

    Raises:
        ConfigError: there is none.
    """
    config = network.config
    dtype = operands_in(network.dtype, network.device.type)
    return str(road_of(network.device, dtype, config.hidden_size // config.num_attention_heads))


def padding_position(network: Any) -> int | None:
    """The position of padding tokens where texts are counted from the one after it; None: they start at 0."""
    positions = getattr(network.embeddings, "position_embeddings", None)
    index: int | None = getattr(positions, "padding_idx", None)
    return index


def graph_bytes(config: Any, tokens: int, half: bool) -> int:
    """What layers of attention and two products keep for the gradient; in half precision, casts of their inputs too.

    Counted on the networks of `FAMILIES`, in multiples of the widths.
    """
    width = int(config.hidden_size)
    inner = int(getattr(config, "intermediate_size", 0) or getattr(config, "hidden_dim", 0) or 4 * width)
    of_layer = 26 * width + 4 * inner if half else 34 * width + 8 * inner
    return tokens * (int(config.num_hidden_layers) * of_layer + 5 * width)


def pack(tokens: Ragged, padding: int | None = None) -> Tokens:
    """The texts of a chunk by ascending length, without padding. Texts of the same length keep their order.

    Args:
        padding: see `padding_position`.
    """
    lengths_B = np.diff(tokens.offsets)
    order_B = np.argsort(lengths_B.astype(np.uint16), kind="stable")  # of small integers: a radix sort
    rank_B = np.empty_like(order_B)
    rank_B[order_B] = np.arange(len(order_B))
    packed = tokens.take(order_B)
    counts = np.bincount(lengths_B)
    present = np.flatnonzero(counts)
    return {
        "ids_T": torch.from_numpy(packed.ids),
        "position_T": torch.from_numpy(_positions(packed, padding)),
        "offset_B": torch.from_numpy(packed.offsets.astype(np.int32)),  # [B + 1], as kernels want them
        "rank_B": torch.from_numpy(rank_B),  # place of each text of the chunk among the packed ones
        "groups": tuple(zip(counts[present].tolist(), present.tolist(), strict=True)),
    }


def _positions(tokens: Ragged, padding: int | None) -> NDArray[np.int64]:
    """Position of each token in its text; a padding token that a text spells out is not counted, as in the network."""
    starts_B, lengths_B = tokens.offsets[:-1], np.diff(tokens.offsets)
    if padding is None:
        return np.arange(len(tokens.ids)) - np.repeat(starts_B, lengths_B)
    real_T = tokens.ids != padding
    counted_T = np.cumsum(real_T)
    before_B = np.concatenate([[0], counted_T])[starts_B]
    return np.where(real_T, counted_T - np.repeat(before_B, lengths_B), 0) + padding


def encode(network: Any, tokens: Tokens, pooling: Pooling) -> Tensor:
    """x_BD in the order of the chunk, for the tokens that `pack` gives and a network after `attach`."""
    if not len(tokens["ids_T"]):
        return torch.zeros(len(tokens["rank_B"]), network.config.hidden_size).to(network.device, network.dtype)
    blocks = _blocks(network, tokens)
    if tokens["ids_T"].device.type == "cpu":
        pooled = torch.cat([pool(x_TD, groups, pooling) for x_TD, groups in blocks])
    else:
        pooled = torch.cat([pool_at_once(x_TD, tokens["offset_B"], groups, pooling) for x_TD, groups in blocks])
    return pooled.index_select(0, tokens["rank_B"])


def _blocks(network: Any, tokens: Tokens) -> Iterator[tuple[Tensor, Groups]]:
    """x_TD of the last layer, in blocks of about `BLOCK` tokens on a CPU, cut between texts."""
    # Once for all blocks: the gradient of a table of words is as large as the table.
    x_TD = network.get_input_embeddings()(tokens["ids_T"])
    cuts = list(_cut(tokens["groups"])) if x_TD.device.type == "cpu" else [tokens["groups"]]
    sizes = [sum(_sizes(groups)) for groups in cuts]
    # A mask of four dimensions is passed on as it is; without one, some networks would make one of T x T.
    mask = tokens["offset_B"].view(1, 1, 1, -1)
    positions = tokens["position_T"][None].split(sizes, dim=1)
    key_1T = _token_keys(tokens)
    keys = [None] * len(sizes) if key_1T is None else key_1T.split(sizes, dim=1)
    for x_1TD, position_1T, key, groups in zip(x_TD[None].split(sizes, dim=1), positions, keys, cuts, strict=True):
        with keyed(key):
            output = network(inputs_embeds=x_1TD, position_ids=position_1T, attention_mask=mask, groups=groups)
        yield output.last_hidden_state.squeeze(0), groups


def _token_keys(tokens: Tokens) -> Tensor | None:
    """key_1T of the packed tokens, if dropout is keyed."""
    now, length = current(), len(tokens["ids_T"])
    if now is None:
        return None
    key_B = torch.empty_like(now.key).index_copy(0, tokens["rank_B"], now.key)
    starts = tokens["offset_B"][:-1], key_B
    lengths_B = tokens["offset_B"].diff()
    start_T, key_T = (torch.repeat_interleave(x_B, lengths_B, output_size=length) for x_B in starts)
    return place_keys(key_T, torch.arange(length, device=key_T.device) - start_T).unsqueeze(0)


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


def pool(x_TD: Tensor, groups: Groups, pooling: Pooling) -> Tensor:
    """x_BD in the order of the packed texts: the mean over each text's tokens, or its first one."""
    pooled = []
    for (texts, length), group_TD in zip(groups, x_TD.split(_sizes(groups)), strict=True):
        group = group_TD.unflatten(0, (texts, length))
        pooled.append(group[:, :1].sum(dim=1) if pooling == "cls" else group.sum(dim=1) / max(length, 1))
    return torch.cat(pooled)


def pool_at_once(x_TD: Tensor, offset_B: Tensor, groups: Groups, pooling: Pooling) -> Tensor:
    """The same for devices where every length would cost launches; sums are in float32."""
    if pooling == "cls":
        empty = groups[0][0] if groups[0][1] == 0 else 0  # the first ones
        first_BD = x_TD.index_select(0, offset_B[empty:-1])
        return F.pad(first_BD, (0, 0, empty, 0)) if empty else first_BD
    lengths_B = offset_B.diff()
    texts_B = torch.arange(len(lengths_B), device=x_TD.device)
    text_T = torch.repeat_interleave(texts_B, lengths_B, output_size=len(x_TD))
    wide_TD = x_TD if x_TD.dtype == torch.float64 else x_TD.float()
    sums_BD = wide_TD.new_zeros(len(lengths_B), x_TD.shape[1]).index_add(0, text_T, wide_TD)
    return (sums_BD / lengths_B.clamp(min=1).unsqueeze(1)).to(x_TD.dtype)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    groups: Groups | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls on [1, H, T, D]; the mask is the offsets of the texts, as `_blocks` passes them.

    Padded texts are [B, H, T, D], with a mask of the network's. Dropout by keys needs the weights, which only plain
    products have: on a GPU, where all attention is fused, attention weights are not dropped.

    Args:
        sliding_window: tokens this far apart do not see each other.
    """
    if query.device.type != "cpu":
        dropout = 0.0
    now = current() if dropout else None
    draws = (now.key, now.site(ATTENTION_SITE)) if now else None
    if groups is None or attention_mask is None:
        if draws:
            return _plain_attention(query, key, value, dropout, scaling, attention_mask, draws).transpose(1, 2), None
        return _padded_attention(module, query, key, value, attention_mask, dropout, scaling, **others)
    q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    longest = groups[-1][1]
    window = sliding_window or longest
    road = road_of(q.device, compute_dtype(q), q.shape[-1])
    if road == "grouped" or (longest > window and not has_window(road)):
        mixed_THD = grouped_attention(q, k, v, groups, dropout, scaling, window, draws)
    else:
        mixed_THD = fused_attention(q, k, v, attention_mask.flatten(), longest, scaling, window)
    return mixed_THD.unsqueeze(0), None


def _padded_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """torch's fused attention, without dropout on a GPU, and where it is keyed."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rate = 0.0 if current() or query.is_cuda else dropout
    padded: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, rate, scaling, **others
    )
    return padded


def grouped_attention(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    groups: Groups,
    dropout: float,
    scale: float | None,
    window: int,
    draws: Draws | None = None,
) -> Tensor:
    """Attention within each text, for all texts of one length at a time; on any device."""
    mixed = []
    sizes = _sizes(groups)
    keys = draws[0].flatten().split(sizes) if draws else [None] * len(sizes)
    tensors = q_THD.split(sizes), k_THD.split(sizes), v_THD.split(sizes)
    for (texts, length), key, *parts in zip(groups, keys, *tensors, strict=True):
        q, k, v = (part.unflatten(0, (texts, length)).transpose(1, 2) for part in parts)
        near_TT = None
        if length > window:
            place_T = torch.arange(length, device=q.device)
            near_TT = (place_T - place_T.unsqueeze(1)).abs() < window
        drawn = (key.unflatten(0, (texts, length)), draws[1]) if draws else None
        if drawn or (q.device.type == "cpu" and length <= min(SHORT, window)):
            y = _plain_attention(q, k, v, dropout, scale, near_TT, drawn)
        else:
            with math_refused() if q.is_cuda else contextlib.nullcontext():
                y = F.scaled_dot_product_attention(q, k, v, near_TT, dropout, scale=scale)
        mixed.append(y.transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed)


def _plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: float,
    scale: float | None,
    mask: Tensor | None = None,
    draws: Draws | None = None,
) -> Tensor:
    """By products of [B, H, T, D]; `mask` as in torch's own."""
    scores = (q * (scale or q.shape[-1] ** -0.5)) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1)
    if draws:
        return drop(weights, *draws, rate) @ v
    return (F.dropout(weights, rate) if rate else weights) @ v


def _sizes(groups: Groups) -> list[int]:
    return [texts * length for texts, length in groups]
