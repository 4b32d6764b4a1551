"""Text transformer: an encoder small enough for CPUs, over tokens of which 0 is padding.

Layer norms come before each part (Xiong et al. 2020, arXiv:2002.04745), which trains without
warm-up; attention is written out: its kernels are the same in training and in evaluation, and sum
in one order.

Shapes: B texts, L places, D features, H heads, K features of a head, C classes.
Source: Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.inputs.columns import Column
from lipt.common.inputs.specs import ColumnsSpec, InputSpec
from lipt.common.models.initialization import initialize

_WIDTH = 128
_NUM_LAYERS = 2
_NUM_HEADS = 4


class Attention(nn.Module):
    """Every place looks at all places that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x_BLD: Tensor, padding_BL: Tensor) -> Tensor:
        """Map B x L x D to B x L x D."""
        size, length, _ = x_BLD.shape
        parts = self.queries_keys_values(x_BLD).view(size, length, 3, _NUM_HEADS, -1)
        queries_BHLK, keys_BHLK, values_BHLK = parts.permute(2, 0, 3, 1, 4).unbind()
        scale = math.sqrt(queries_BHLK.shape[-1])
        scores_BHLL = queries_BHLK @ keys_BHLK.transpose(-1, -2) / scale
        scores_BHLL = scores_BHLL.masked_fill(padding_BL[:, None, None], float("-inf"))
        mixed_BHLK = scores_BHLL.softmax(dim=-1) @ values_BHLK
        mixed_BLD: Tensor = self.out(mixed_BHLK.transpose(1, 2).reshape(size, length, -1))
        return mixed_BLD


class Block(nn.Module):
    """Attention, and two layers for each place by itself, each added to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = Attention()
        self.each = nn.Sequential(
            nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH)
        )

    def forward(self, x_BLD: Tensor, padding_BL: Tensor) -> Tensor:
        """Map B x L x D to B x L x D."""
        x_BLD = x_BLD + self.attention(self.norm1(x_BLD), padding_BL)
        out_BLD: Tensor = x_BLD + self.each(self.norm2(x_BLD))
        return out_BLD


class TextTransformer(nn.Module):
    """Embeddings of tokens and places, blocks, the mean without padding, and a head `fc`."""

    def __init__(self, *, vocabulary: int, length: int, num_classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, _WIDTH)
        self.places_LD = nn.Parameter(torch.empty(length, _WIDTH).normal_(std=0.02))
        self.blocks = nn.ModuleList(Block() for _ in range(_NUM_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, num_classes)
        initialize(self)

    def forward(self, *given: Tensor, **named: Tensor) -> Tensor:
        """Map tokens, int64 B x L with 0 for padding, to logits B x C.

        A text without any token is one place of padding.
        """
        tokens_BL = given[0] if given else next(iter(named.values()))
        padding_BL = tokens_BL == 0
        # Else a text without tokens would have nothing to look at, and no mean.
        first_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device) == 0
        padding_BL = padding_BL & ~first_L
        x_BLD = self.tokens(tokens_BL) + self.places_LD[: tokens_BL.shape[1]]
        for block in self.blocks:
            x_BLD = block(x_BLD, padding_BL)
        real_BL1 = (~padding_BL)[:, :, None].to(x_BLD.dtype)
        mean_BD = (x_BLD * real_BL1).sum(dim=1) / real_BL1.sum(dim=1)
        logits_BC: Tensor = self.fc(self.norm(mean_BD))
        return logits_BC


def text_tiny(*, num_classes: int, inputs: InputSpec) -> nn.Module:
    """128 features, two layers of four heads; 0.3 million parameters besides the embeddings.

    Raises:
        ConfigError: the inputs are not tokens alone.
    """
    tokens = _tokens(inputs)
    return TextTransformer(
        vocabulary=tokens.num_values, length=tokens.shape[0], num_classes=num_classes
    )


def _tokens(inputs: InputSpec) -> Column:
    if isinstance(inputs, ColumnsSpec) and len(inputs.columns) == 1:
        (column,) = inputs.columns
        if len(column.shape) == 1 and column.num_values:
            return column
    raise ConfigError(
        f"the model text:tiny cannot take {inputs}: it takes tokens alone, one column of whole "
        "numbers of which it is known how many there are. Open texts, for example with "
        "'csv:PATH?text=COLUMN', or choose another model."
    )
