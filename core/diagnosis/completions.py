"""Completions: examples whose completion surprises a model more than those of similar prompts do.

The losses are those of models that have not seen the example. A task that is hard for the model has
large losses, right or wrong, so each loss is compared with the median of the 50 most similar
prompts. Similarity is the cosine of counts of tokens and of pairs of tokens, hashed with signs.

`python -m benchmarks.language_models completions` measures it. With 30% of 3,000 completions wrong,
78% to 92% of as many examples with the lowest quality are wrong; by the loss alone, 50% to 89%.

Shapes: N examples, L positions, D features, R references, K similar prompts, B of a block.
Source: hashing of features by Weinberger et al. 2009 (arXiv:0902.2206).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import DataError
from lipt.core.passes import row_blocks
from lipt.data.targets.values import MASKED

_NUM_SIMILAR, _MOST_REFERENCES = 50, 10_000
_NUM_FEATURES = 256
# Of a hash; the multiplier is the largest prime below 2^31, so that products fit int64.
_MULTIPLIER, _MODULUS = 2**31 - 1, 2**31


def completion_quality(
    losses_N: Tensor, features_ND: Tensor, *, generator: torch.Generator
) -> Tensor:
    """The quality 1 / (1 + exp(loss - median of similar prompts)), float32 N, in (0, 1).

    Args:
        losses_N: of models that have not seen the example.
        features_ND: of `prompt_features`.
        generator: draws the references of more than 10,000 examples.
    """
    relative_N = losses_N - _median_of_similar(losses_N, features_ND, generator)
    return (-relative_N.double()).sigmoid().float()


def prompt_features(tokens_NL: Tensor, wanted_NL: Tensor) -> Tensor:
    """Counts of each prompt's tokens and pairs, centred and of length 1; float32 N x 256.

    Args:
        tokens_NL: inputs, int64.
        wanted_NL: next tokens, MASKED before the completion, int64.

    Raises:
        DataError: no example has a prompt.
    """
    # The prompt ends where the first token of the completion is predicted.
    is_prompt_NL = ((wanted_NL != MASKED).cumsum(dim=1) - (wanted_NL != MASKED).long()) == 0
    # Position 0 has the token that begins each example.
    is_prompt_NL[:, 0] = False
    if not bool(is_prompt_NL.any()):
        raise DataError(
            "the texts have no prompts, and completions are compared with those of similar ones. "
            "Name both: prompt=COLUMN&completion=COLUMN, with a max_length that leaves some of "
            "them."
        )
    features_ND = torch.zeros(len(tokens_NL), _NUM_FEATURES)
    before_NL = functional.pad(tokens_NL[:, :-1], (1, 0))
    for codes_NL in (2 * tokens_NL, 2 * (before_NL * _MULTIPLIER + tokens_NL) + 1):
        mixed_NL = _hashed(codes_NL)
        signs_NL = 1 - 2 * (mixed_NL % 2)
        features_ND.scatter_add_(
            1, mixed_NL // 2 % _NUM_FEATURES, (signs_NL * is_prompt_NL).float()
        )
    return functional.normalize(features_ND - features_ND.mean(dim=0), dim=1)


def _hashed(codes: Tensor) -> Tensor:
    """Numbers in 0..2^31 - 1 of int64 codes."""
    mixed = codes
    for _ in range(2):
        mixed = (mixed % _MODULUS) * 0x45D9F3B % _MODULUS
        mixed = mixed ^ (mixed >> 16)
    return mixed


def _median_of_similar(losses_N: Tensor, features_ND: Tensor, generator: torch.Generator) -> Tensor:
    num_examples = len(losses_N)
    drawn_R = torch.randperm(num_examples, generator=generator)[:_MOST_REFERENCES]
    references_R = drawn_R.sort().values
    number, medians_N = min(_NUM_SIMILAR, len(references_R) - 1), torch.zeros(num_examples)
    if number < 1:
        return medians_N
    for rows in row_blocks(num_examples, 8 * len(references_R)):
        cosines_BR = features_ND[rows] @ features_ND[references_R].T
        own_B = torch.arange(rows.start, rows.stop)
        cosines_BR.masked_fill_(own_B[:, None] == references_R, -torch.inf)
        near_BK = references_R[cosines_BR.topk(number, dim=1).indices]
        medians_N[rows] = losses_N[near_BK].median(dim=1).values
    return medians_N
