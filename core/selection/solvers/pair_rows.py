"""Pair rows: the other halves of pairs, where they can be compared with the first ones.

Shapes: N examples, P features of a pair's other half.
"""

from __future__ import annotations

from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.signals.signals import Signals, given


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
