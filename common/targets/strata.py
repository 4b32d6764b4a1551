"""Strata: groups that examples without a single class are dealt with in, as others are by class.

Splits are stratified by them, and balanced quotas give each an equal share. Examples with numbers
are grouped by the quantile of their first number, so that a subset has low and high ones alike;
those with labels by the rarest label that they have, so that it is not lost.

Shapes: N examples, C labels, Q edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

NUM_BINS = 10
NO_LABEL = "none"


def quantile_edges(values_N: Tensor, num_bins: int = NUM_BINS) -> Tensor:
    """The largest value of each bin but the last; Q float64, ascending, at least one.

    Equal values are in one bin, the lower one, so that there are fewer bins where many are equal,
    and none of them is empty.

    Args:
        values_N: any real type, finite, at least two that differ.
        num_bins: how many bins there are at most, 2 or more.
    """
    sorted_N = values_N.to(torch.float64).sort().values
    ends_Q = -(-torch.arange(1, num_bins) * len(sorted_N) // num_bins)
    edges_Q = torch.unique(sorted_N[(ends_Q - 1).clamp(min=0)])
    edges_Q = edges_Q[edges_Q < sorted_N[-1]]
    # Where nearly all are the largest, the others are a bin of their own.
    return edges_Q if len(edges_Q) else sorted_N[sorted_N < sorted_N[-1]][-1:]


def quantile_strata(values_N: Tensor, edges_Q: Tensor) -> Tensor:
    """Each example's bin: how many edges are below its value; N int64."""
    return torch.searchsorted(edges_Q, values_N.to(torch.float64))


def quantile_names(edges_Q: Tensor, what: str = "") -> tuple[str, ...]:
    """The bins' names: `up to 60`, `60 to 80`, `above 80`."""
    texts = [f"{edge:.5g}" for edge in edges_Q.tolist()]
    between = (f"{low} to {high}" for low, high in itertools.pairwise(texts))
    names = (f"up to {texts[0]}", *between, f"above {texts[-1]}")
    return tuple(f"{what} {name}" if what else name for name in names)


def rarest_label_strata(targets_NC: Tensor) -> Tensor:
    """The rarest of each example's labels, of equally rare ones the first; C without any.

    Args:
        targets_NC: 0 and 1.

    Returns:
        N int64.
    """
    has_NC = targets_NC > 0
    counts_C = has_NC.sum(dim=0)
    # More than any count, where the example lacks the label.
    rarity_NC = torch.where(has_NC, counts_C, len(targets_NC) + 1)
    strata_N = rarity_NC.argmin(dim=1)
    return strata_N.where(has_NC.any(dim=1), targets_NC.shape[1])


def label_strata_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The strata's names: the labels' own, and one for examples without any."""
    return (*labels, NO_LABEL)
