"""Causal transformer: predicts every next token of a text, small enough for CPUs.

Positions are rotations of queries and keys (Su et al. 2021, arXiv:2104.09864), so a pattern is the
same anywhere in a text. The embedding is also the last layer (Press & Wolf 2017, arXiv:1608.05859).
Padding stands at the end, where no earlier position sees it.

Shapes: B texts, L positions, D features, H heads, K features of a head, V tokens.
Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import InputSpec
from lipt.models.networks import token_column

_WIDTH, _NUM_LAYERS, _NUM_HEADS = 128, 4, 4
_WAVELENGTH = 10_000.0


class CausalAttention(nn.Module):
    """Self-attention to the position itself and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x_BLD: Tensor, turns_LK: tuple[Tensor, Tensor]) -> Tensor:
        size, length, _ = x_BLD.shape
        parts = self.queries_keys_values(x_BLD).view(size, length, 3, _NUM_HEADS, -1)
        queries_BHLK, keys_BHLK, values_BHLK = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed_BHLK = functional.scaled_dot_product_attention(
            _turned(queries_BHLK, turns_LK),
            _turned(keys_BHLK, turns_LK),
            values_BHLK,
            is_causal=True,
        )
        mixed_BLD: Tensor = self.out(mixed_BHLK.transpose(1, 2).reshape(size, length, -1))
        return mixed_BLD


class CausalBlock(nn.Module):
    """Attention and a two-layer network for each position, both with residual connections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = CausalAttention()
        self.each = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, x_BLD: Tensor, turns_LK: tuple[Tensor, Tensor]) -> Tensor:
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD), turns_LK)
        out_BLD: Tensor = x_BLD + self.each(self.norm2(x_BLD))
        return out_BLD


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
        self.blocks = nn.ModuleList(CausalBlock() for _ in range(_NUM_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, num_classes, bias=False)
        self.fc.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        # Sums over the blocks' outputs start as large as one.
        scale = 0.02 / (2 * _NUM_LAYERS) ** 0.5
        for name, weight in self.blocks.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("out.weight", "each.2.weight"))
                nn.init.normal_(weight, std=scale if last else 0.05)

    def hidden(self, tokens_BL: Tensor) -> Tensor:
        """The head's inputs, B x L x D."""
        x_BLD = self.tokens(tokens_BL)
        turns_LK = _turns(tokens_BL.shape[1], x_BLD)
        for block in self.blocks:
            x_BLD = block(x_BLD, turns_LK)
        hidden_BLD: Tensor = self.norm(x_BLD)
        return hidden_BLD

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Map tokens, int64 B x L, to logits of each next token, B x L x V."""
        logits_BLV: Tensor = self.fc(self.hidden(tokens_BL))
        return logits_BLV


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
