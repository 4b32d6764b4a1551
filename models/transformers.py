"""Transformers of texts, small enough for CPUs: an encoder, and a causal one for every next token.

Pre-layer-norm (Xiong et al. 2020, arXiv:2002.04745) trains without warm-up. The encoder's attention
is written out, so that training and evaluation run the same kernels; its token 0 is padding. The
causal one's positions are rotations of queries and keys (Su et al. 2021, arXiv:2104.09864), so a
pattern is the same anywhere in a text, and its embedding is also the last layer (Press & Wolf 2017,
arXiv:1608.05859). Its padding stands at the end, where no earlier position sees it.

Shapes: B texts, L positions, D features, H heads, K features of a head, C classes, V tokens.
Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import InputSpec
from lipt.models.networks import initialize, token_column

_WIDTH, _NUM_HEADS = 128, 4
_NUM_LAYERS, _NUM_CAUSAL_LAYERS = 2, 4
_WAVELENGTH = 10_000.0

# From queries, keys and values, B x H x L x K, and what else a position's view depends on.
Mix = Callable[[Tensor, Tensor, Tensor, Any], Tensor]


class Attention(nn.Module):
    """Self-attention; `mix` decides which positions see each other."""

    def __init__(self, mix: Mix, *, bias: bool) -> None:
        super().__init__()
        self._mix = mix
        self.queries_keys_values = nn.Linear(_WIDTH, 3 * _WIDTH, bias=bias)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=bias)

    def forward(self, x_BLD: Tensor, view: Any) -> Tensor:
        size, length, _ = x_BLD.shape
        parts = self.queries_keys_values(x_BLD).view(size, length, 3, _NUM_HEADS, -1)
        queries_BHLK, keys_BHLK, values_BHLK = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed_BHLK = self._mix(queries_BHLK, keys_BHLK, values_BHLK, view)
        mixed_BLD: Tensor = self.out(mixed_BHLK.transpose(1, 2).reshape(size, length, -1))
        return mixed_BLD


class Block(nn.Module):
    """Attention and a two-layer network for each position, both with residual connections."""

    def __init__(self, mix: Mix, *, bias: bool, widening: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = Attention(mix, bias=bias)
        self.each = nn.Sequential(
            nn.Linear(_WIDTH, widening * _WIDTH), nn.GELU(), nn.Linear(widening * _WIDTH, _WIDTH)
        )

    def forward(self, x_BLD: Tensor, view: Any) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD), view)
        out_BLD: Tensor = x_BLD + self.each(self.norm2(x_BLD))
        return out_BLD


class TextTransformer(nn.Module):
    """Token and position embeddings, blocks, the mean without padding, and a head `fc`."""

    def __init__(self, *, num_classes: int, inputs: InputSpec) -> None:
        super().__init__()
        column = token_column(inputs, "text:tiny")
        self.tokens = nn.Embedding(column.num_values, _WIDTH)
        self.places_LD = nn.Parameter(torch.empty(column.shape[0], _WIDTH).normal_(std=0.02))
        self.blocks = nn.ModuleList(
            Block(_all_but_padding, bias=True, widening=2) for _ in range(_NUM_LAYERS)
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, num_classes)
        initialize(self)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Map tokens, int64 B x L, to logits B x C."""
        tokens_BL = given[0] if given else next(iter(named.values()))
        padding_BL = tokens_BL == 0
        # An empty text counts as one padding position; otherwise it has no mean.
        first_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device) == 0
        padding_BL = padding_BL & ~first_L
        x_BLD = self.tokens(tokens_BL) + self.places_LD[: tokens_BL.shape[1]]
        for block in self.blocks:
            x_BLD = block(x_BLD, padding_BL)
        real_BL1 = (~padding_BL)[:, :, None].to(x_BLD.dtype)
        mean_BD = (x_BLD * real_BL1).sum(dim=1) / real_BL1.sum(dim=1)
        logits_BC: Tensor = self.fc(self.norm(mean_BD))
        return logits_BC


def _all_but_padding(
    queries_BHLK: Tensor, keys_BHLK: Tensor, values_BHLK: Tensor, padding_BL: Tensor
) -> Tensor:
    scale = math.sqrt(queries_BHLK.shape[-1])
    scores_BHLL = queries_BHLK @ keys_BHLK.transpose(-1, -2) / scale
    scores_BHLL = scores_BHLL.masked_fill(padding_BL[:, None, None], float("-inf"))
    return scores_BHLL.softmax(dim=-1) @ values_BHLK


class CausalTransformer(nn.Module):
    """Embeddings, blocks, and the embedding as the head `fc`: 0.82 million parameters for bytes."""

    def __init__(self, *, num_classes: int, inputs: InputSpec) -> None:
        super().__init__()
        column = token_column(inputs, "text:causal")
        if num_classes != column.num_values:
            raise ConfigError(
                f"the model text:causal predicts the next of {column.num_values} tokens, and the "
                f"data has {num_classes} classes. Choose text:tiny, or open texts without a label."
            )
        self.tokens = nn.Embedding(num_classes, _WIDTH)
        self.blocks = nn.ModuleList(
            Block(_earlier, bias=False, widening=4) for _ in range(_NUM_CAUSAL_LAYERS)
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, num_classes, bias=False)
        self.fc.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        # Sums over the blocks' outputs start as large as one.
        scale = 0.02 / (2 * _NUM_CAUSAL_LAYERS) ** 0.5
        for name, weight in self.blocks.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("out.weight", "each.2.weight"))
                nn.init.normal_(weight, std=scale if last else 0.05)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Map tokens, int64 B x L, to logits of each next token, B x L x V."""
        x_BLD = self.tokens(tokens_BL)
        turns_LK = _turns(tokens_BL.shape[1], x_BLD)
        for block in self.blocks:
            x_BLD = block(x_BLD, turns_LK)
        logits_BLV: Tensor = self.fc(self.norm(x_BLD))
        return logits_BLV


def _earlier(
    queries_BHLK: Tensor, keys_BHLK: Tensor, values_BHLK: Tensor, turns_LK: tuple[Tensor, Tensor]
) -> Tensor:
    """The position itself and those before it."""
    queries_BHLK, keys_BHLK = _turned(queries_BHLK, turns_LK), _turned(keys_BHLK, turns_LK)
    return functional.scaled_dot_product_attention(
        queries_BHLK, keys_BHLK, values_BHLK, is_causal=True
    )


def _turns(length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles."""
    half = _WIDTH // _NUM_HEADS // 2
    places_L1 = torch.arange(length, device=like.device)[:, None]
    rates_K = _WAVELENGTH ** -(torch.arange(half, device=like.device) / half)
    angles_LK = (places_L1 * rates_K).repeat(1, 2)
    return angles_LK.cos().to(like.dtype), angles_LK.sin().to(like.dtype)


def _turned(x_BHLK: Tensor, turns_LK: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x_BHLK.chunk(2, dim=-1)
    cosines_LK, sines_LK = turns_LK
    return x_BHLK * cosines_LK + torch.cat([-second, first], dim=-1) * sines_LK
