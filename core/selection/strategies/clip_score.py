"""CLIP score: keep the image-caption pairs whose two halves are most alike.

The score is the cosine of an image's and its caption's rows in the space of two encoders. The
pairs with the lowest are left out: captions that belong to another image, or say nothing of it.

Globally, as its authors have it: latent classes whose captions fit better keep more. Asked for
equal shares, each latent class keeps its own best.

Shapes: N examples, B of a block, D features.
Source: Hessel et al. 2021 (arXiv:2104.08718); as a filter, Gadre et al. 2023 (arXiv:2304.14108).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.selection import Selection, keep_largest
from lipt.core.selection.strategy import Balance, Need, Strategy
from lipt.core.signals.signals import Signals, given


def clip_score(signals: Signals, budget: int) -> Selection:
    """Keep the `budget` pairs with the largest cosine, largest first; of zeros it is 0.

    Raises:
        SignalsError: there are no captions, or their width is not that of the images.
    """
    return keep_largest(cosines(signals), budget)


def cosines(signals: Signals) -> Tensor:
    """Each image's with its own caption; N float64."""
    images_ND = signals.features_ND
    captions_ND = captions_of(signals, "clip_score")
    cosines_N = torch.empty(len(signals), dtype=torch.float64, device=images_ND.device)
    for rows in row_blocks(len(signals), images_ND.shape[1] * 32):
        images_BD, captions_BD = images_ND[rows].double(), captions_ND[rows].double()
        lengths_B = images_BD.norm(dim=-1) * captions_BD.norm(dim=-1)
        products_B = (images_BD * captions_BD).sum(dim=-1)
        cosines_N[rows] = products_B / lengths_B.masked_fill(lengths_B == 0, 1)
    return cosines_N


def captions_of(signals: Signals, strategy: str) -> Tensor:
    """The captions' features, N x P, as wide as those of the images.

    Args:
        signals: of pairs.
        strategy: who asks, for messages.

    Raises:
        SignalsError: there are no captions, or their width is not that of the images.
    """
    captions_NP = given(signals.paired_features_NP, "paired features")
    width = signals.features_ND.shape[1]
    if captions_NP.shape[1] != width:
        raise SignalsError(
            f"{strategy} compares images with captions, but features have {width} columns and "
            f"paired features {captions_NP.shape[1]}. Give the outputs of two encoders that "
            "project into one space, as CLIP's do."
        )
    return captions_NP


STRATEGY = Strategy(
    function=clip_score,
    summary="image-caption pairs whose halves are most alike; the least alike are dropped",
    paper=(
        'Hessel et al. 2021, "CLIPScore: A Reference-free Evaluation Metric for Image Captioning" '
        '(arXiv:2104.08718); as a filter Gadre et al. 2023, "DataComp" (arXiv:2304.14108)'
    ),
    cost="N d",
    balance=Balance.ON_REQUEST,
    needs=frozenset({Need.PAIRED_FEATURES}),
)
