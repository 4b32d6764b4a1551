"""GradMatch: few examples whose weighted gradients add up to those of all.

Minimizes |sum_S w_i g_i - b|^2 + ridge s |w|^2 over |S| <= K and w >= 0 by orthogonal matching
pursuit. g are the last layer's gradients, b their sum over all examples (of the class where
balanced). s is the mean of |g_i|^2; with ridge_scale=absolute it is 1. The preset is the authors'
way. They fill up the budget at random where the pursuit ends; here the subset is smaller.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from lipt.common.errors import BudgetError
from lipt.common.targets.kinds import ALL_KINDS
from lipt.core.selection.options import Preset
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.pursuit import BLOCK_BYTES, GradientAtoms, Pursuer
from lipt.core.selection.strategy import CLASSES, built_in
from lipt.core.selection.vectors import gradients_of, weighted_sum
from lipt.core.signals.signals import Signals

Scale = Literal["mean_square", "absolute"]
Rows = Literal["all", "own_class"]

# The inverse Gram matrix of the chosen atoms has K x K numbers: 8 GiB.
_MAX_ATOMS = 32_768
# A sum of gradients this small relative to their norms is rounding.
_CANCELLED = 1e-12


@built_in(
    summary="few weighted gradients that add up to all, by orthogonal matching pursuit",
    paper='Killamsetty et al. 2021, "GRAD-MATCH" (arXiv:2103.00123)',
    cost="k N (C + d + k)",
    returns_weights=True,
    kinds=lambda options: CLASSES if options["gradient"] == "own_class" else ALL_KINDS,
    presets={
        "paper": Preset(
            "class by class, of each gradient the own class's row, ridge 0.5 as it is",
            {"gradient": "own_class", "ridge": "0.5", "ridge_scale": "absolute"},
            balanced=True,
        )
    },
)
def gradmatch(
    signals: Signals,
    budget: int,
    *,
    ridge: Annotated[
        float, Field(ge=0, allow_inf_nan=False), "what large weights cost; 0 for nothing"
    ] = 0.0,
    ridge_scale: Annotated[
        Scale, "what the ridge is a multiple of: the mean squared norm of a gradient, or 1"
    ] = "mean_square",
    gradient: Annotated[
        Rows, "match all of the last layer's rows, or of each example its own class's"
    ] = "all",
) -> Selection:
    """Choose examples and weights whose gradients add up to those of all.

    BudgetError if it would take too much memory.
    """
    if gradient == "own_class":
        signals = _own_rows(signals)
    gradients, capacity = gradients_of(signals), _capacity(len(signals), budget)
    target = weighted_sum(gradients, block_bytes=BLOCK_BYTES)
    atoms = GradientAtoms(gradients, target, capacity=capacity)
    if atoms.target_square <= (_CANCELLED * float(atoms.squares_N.sqrt().sum())) ** 2:
        nothing = signals.labels_N[:0]
        reason = (
            f"No example was chosen for a budget of {budget}, because the gradients of the "
            "examples add up to zero: there is nothing to match."
        )
        return Selection(nothing, nothing.float(), stopped_early=reason)
    scale = float(atoms.squares_N.mean()) if ridge_scale == "absolute" else 1.0
    found = Pursuer(atoms, ridge=ridge / scale).run(budget)
    num_chosen, reason = len(found.atoms_K), ""
    if num_chosen < budget:
        reason = (
            f"It ended with {num_chosen} examples of a budget of {budget}, because no other "
            "brings the weighted sum of gradients closer to that of the examples: what is missing "
            f"is {found.residual:.2g} of its norm."
        )
    return Selection(found.atoms_K, found.weights_K.float(), stopped_early=reason)


def _own_rows(signals: Signals) -> Signals:
    own_N1 = signals.labels_N[:, None]
    errors_NC = torch.zeros_like(signals.errors_NC)
    errors_NC.scatter_(1, own_N1, signals.errors_NC.gather(1, own_N1))
    return replace(signals, errors_NC=errors_NC)


def _capacity(num_examples: int, budget: int) -> int:
    capacity = min(num_examples, budget)
    if capacity > _MAX_ATOMS:
        raise BudgetError(
            f"gradmatch cannot choose {budget} of {num_examples} examples at once, which takes "
            f"{8 * capacity**2 / 1024**3:.0f} GiB. Choose at most {_MAX_ATOMS}, or balance the "
            "classes."
        )
    return capacity
