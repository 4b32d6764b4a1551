"""GradMatch: few examples whose weighted gradients add up to those of all.

Minimizes |sum_S w_i g_i - b|^2 + ridge s |w|^2 over |S| <= K and w >= 0 by orthogonal matching
pursuit. g are the last layer's gradients, b their sum over all examples (of the class where
balanced). s is the mean of |g_i|^2; with ridge_scale=absolute it is 1. The presets are the authors'
two ways. They fill up the budget at random where the pursuit ends; here the subset is smaller.

Shapes: N examples, C classes, D features, K budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field

from lipt.common.errors import BudgetError
from lipt.core.selection.selection import Selection
from lipt.core.selection.solvers.pursuit import BLOCK_BYTES, GradientAtoms, Pursuer, Pursuit
from lipt.core.selection.strategy import CLASSES, Cost, Growth, Preset, built_in
from lipt.core.selection.vectors import gradients_of, weighted_sum
from lipt.core.signals.views import LastLayer, ValidationSignals
from lipt.data.targets.kinds import ALL_KINDS

Target = Literal["train", "validation"]
Scale = Literal["mean_square", "absolute"]
Rows = Literal["all", "own_class"]

# The inverse Gram matrix of the chosen atoms has K x K numbers: 8 GiB.
_MAX_ATOMS = 32_768
_NAMES = {"train": "the examples", "validation": "the validation examples"}
# A sum of gradients this small relative to their norms is rounding.
_CANCELLED = 1e-12


@built_in(
    summary="few weighted gradients that add up to all",
    paper='Killamsetty et al. 2021, "GRAD-MATCH" (arXiv:2103.00123)',
    cost=Cost(Growth.ITERATIONS, "k N (C + d + k)"),
    returns_weights=True,
    needs=lambda options: ValidationSignals if options["target"] == "validation" else LastLayer,
    kinds=lambda options: CLASSES if options["gradient"] == "own_class" else ALL_KINDS,
    presets={
        "paper": Preset(
            "class by class, of each gradient the own class's row, ridge 0.5 as it is",
            {"batch_size": "1", "gradient": "own_class", "ridge": "0.5", "ridge_scale": "absolute"},
            balanced=True,
        ),
        "paper-per-batch": Preset(
            "batches of 128 of all classes together, without a ridge",
            {"batch_size": "128", "gradient": "all", "ridge": "0"},
            balanced=False,
        ),
    },
)
def gradmatch(
    layer: LastLayer,
    target_layer: LastLayer | ValidationSignals,
    budget: int,
    *,
    target: Annotated[Target, "whose gradients the chosen ones add up to"] = "train",
    batch_size: Annotated[
        int, Field(ge=1, le=1024), "choose so many consecutive examples at a time"
    ] = 1,
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
    """Choose examples and weights whose gradients add up to the target.

    A chosen batch gives all its examples with one weight. The last one is cut to the budget and its
    weight raised in proportion. BudgetError if it would take too much memory.
    """
    if gradient == "own_class":
        layer, target_layer = _own_rows(layer), _own_rows(target_layer)
    group_size = min(batch_size, len(layer))
    capacity = _capacity(len(layer), budget, group_size)
    # The sum over all examples, or the validation's mean times their number.
    total = weighted_sum(gradients_of(target_layer), block_bytes=BLOCK_BYTES)
    atoms = GradientAtoms(
        gradients_of(layer),
        total.scaled(len(layer) / len(target_layer)),
        capacity=capacity,
        group_size=group_size,
    )
    if atoms.target_square <= (_CANCELLED * float(atoms.squares_N.sqrt().sum())) ** 2:
        nothing = layer.labels_N[:0]
        reason = (
            f"No example was chosen for a budget of {budget}, because the gradients of "
            f"{_NAMES[target]} add up to zero: there is nothing to match."
        )
        return Selection(nothing, nothing.float(), stopped_early=reason)
    scale = float(atoms.squares_N.mean()) if ridge_scale == "absolute" else 1.0
    pursuit = Pursuer(atoms, ridge=ridge / scale).run(budget)
    return _selection(pursuit, len(layer), budget, group_size=group_size, target=target)


def _own_rows(layer: LastLayer) -> LastLayer:
    own_N1 = layer.labels_N[:, None]
    errors_NC = torch.zeros_like(layer.errors_NC)
    errors_NC.scatter_(1, own_N1, layer.errors_NC.gather(1, own_N1))
    return replace(layer, errors_NC=errors_NC)


def _capacity(num_examples: int, budget: int, group_size: int) -> int:
    num_atoms = -(-num_examples // group_size)
    capacity = min(num_atoms, -(-budget // group_size) + (num_examples % group_size > 0))
    if capacity > _MAX_ATOMS:
        raise BudgetError(
            f"gradmatch cannot choose {budget} of {num_examples} examples at once, which takes "
            f"{8 * capacity**2 / 1024**3:.0f} GiB. Choose at most {_MAX_ATOMS}, balance the "
            "classes, or use batch_size=128."
        )
    return capacity


def _selection(
    pursuit: Pursuit, num_examples: int, budget: int, *, group_size: int, target: str
) -> Selection:
    atoms_K, device = pursuit.atoms_K, pursuit.atoms_K.device
    ids_KG = atoms_K[:, None] * group_size + torch.arange(group_size, device=device)
    exist_KG = ids_KG < num_examples
    weights_K = pursuit.weights_K.clone()
    excess = int(exist_KG.sum()) - budget
    if excess > 0:
        size = int(exist_KG[-1].sum())
        exist_KG[-1, size - excess :] = False
        weights_K[-1] *= size / (size - excess)
    indices_K = ids_KG[exist_KG]
    reason = ""
    if len(indices_K) < budget:
        reason = (
            f"It ended with {len(indices_K)} examples of a budget of {budget}, because no other "
            f"brings the weighted sum of gradients closer to that of {_NAMES[target]}: what is "
            f"missing is {pursuit.residual:.2g} of its norm."
        )
    return Selection(
        indices_K=indices_K,
        weights_K=weights_K[:, None].expand_as(ids_KG)[exist_KG].float(),
        stopped_early=reason,
    )
