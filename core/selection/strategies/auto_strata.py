"""Auto where examples have labels or numbers: random in equal shares of the strata, no copies.

What `auto` knows of wrong labels, and of when to trust them, was measured on classes. Of other
targets no gain over random is known, so that nothing is chosen but what is sure: every stratum
(quantile of the numbers, or rarest label) has its share, and of near copies one is enough.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.core.selection.plan import REDUNDANT
from lipt.core.selection.quotas import class_quotas, proportional_quotas
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategies.uniform import uniform
from lipt.core.signals.signals import Signals, given


def auto_strata(signals: Signals, budget: int, *, balanced: bool, seed: int) -> Selection:
    """Random examples of every stratum; the findings say what was known.

    Args:
        signals: of examples with labels or numbers.
        budget: K.
        balanced: equal shares for the strata, as far as they reach, or those that they have.
        seed: of what is drawn.
    """
    labels_N = signals.labels_N
    surplus_N = surplus_pictures(given(signals.pictures_N, "near copies"))
    copies = float(surplus_N.double().mean())
    spared_N = surplus_N if copies >= REDUNDANT else torch.zeros_like(surplus_N)
    # Copies are taken only where there is nothing else left.
    if int((~spared_N).sum()) < budget:
        spared_N = torch.zeros_like(surplus_N)
    counts = labels_N[~spared_N].bincount(minlength=int(labels_N.max()) + 1).tolist()
    share = class_quotas if balanced else proportional_quotas
    parts = []
    for label, quota in enumerate(share(counts, budget)):
        rows = torch.nonzero((labels_N == label) & ~spared_N).flatten()
        if quota:
            # As for strategies that see one class at a time: plain random is that of them.
            own_seed = derive_seed(seed, "selection-class", label)
            chosen = uniform(signals.take(rows), quota, seed=own_seed)
            parts.append(rows[chosen.indices_K.to(rows.device)])
    words = [
        f"the targets are {signals.kind.words}: no gain over random is known of any choice",
        f"{copies:.1%} of the examples are near copies of others",
        "random in equal shares of the strata" if balanced else "random in the strata's shares",
    ]
    if bool(spared_N.any()):
        words.append("one of each picture")
    findings = {
        "words": words,
        "method": "random",
        "copies": copies,
        "left_out": {"count": int(spared_N.sum())},
    }
    return replace(unweighted(torch.cat(parts)), findings=findings)


def surplus_pictures(pictures_N: Tensor) -> Tensor:
    """Which examples are near copies of an earlier one; N bool."""
    order_N = pictures_N.argsort(stable=True)
    sorted_N = pictures_N[order_N]
    surplus_N = torch.zeros_like(pictures_N, dtype=torch.bool)
    surplus_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
    return surplus_N
