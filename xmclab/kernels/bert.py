"""The words for a layer of a BERT-family network that its plain and its compiled version share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Groups = tuple[tuple[int, int], ...]  # (texts, length) of the texts of each length, by ascending length
Half = Callable[[Tensor, Groups], Tensor]  # of a layer: x_TD to x_TD


@dataclass(frozen=True)
class Layer:
    """The modules of one post-norm layer: x = norm(x + drop(out(attention))), x = norm(x + drop(down(act(up(x)))))."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    attention_dropout: nn.Dropout
    out: nn.Module
    out_dropout: nn.Module
    out_norm: nn.Module
    up: nn.Module
    activation: Callable[[Tensor], Tensor]
    down: nn.Module
    down_dropout: nn.Module
    down_norm: nn.Module
