"""The pass over the data: of each example its error and its feature, batch by batch.

The gradient is that of each example's OWN loss. A mean over its batch would weigh the
examples of a last, smaller batch B / b times too much.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.models import forward_with_features
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.signals.arriving import arriving
from lipt.common.signals.batches import Batches
from lipt.common.signals.finite import require_finite_rows

# Told after every batch how many examples are done; may raise to end the pass.
OnDone = Callable[[int], None]


def pass_over(
    model: nn.Module,
    batches: Batches,
    errors_NC: Tensor,
    features_ND: Tensor,
    on_done: OnDone = lambda _: None,
) -> None:
    """One forward pass over the examples, in evaluation mode.

    Args:
        model: on the batches' device; its training flags are restored.
        batches: of N examples.
        errors_NC: is filled, on the CPU; row i is the example of the i-th id. Of float16, values
            are rounded to it.
        features_ND: likewise.
        on_done: called batch by batch, in order.

    Raises:
        SignalsError: the model's outputs are not finite, or its features too large for float16
            where they are kept in it; names the first ids.
        ConfigError: the model has no linear head.
    """
    ids_N = batches.ids_N
    with evaluation_mode(model), pinned_kernels(), torch.inference_mode():
        for rows, (finite_B, errors_BC, features_BD) in arriving(_outputs(model, batches)):
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            errors_NC[rows], features_ND[rows] = errors_BC, features_BD
            if features_ND.dtype == torch.float16:
                fits_B = features_ND[rows].isfinite().all(dim=-1)
                require_finite_rows(fits_B, ids_N[rows], "features, kept in float16,")
            on_done(rows.stop)


def _outputs(model: nn.Module, batches: Batches) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Of each batch its rows, and whether outputs are finite, errors and features."""
    target = batches.dataset.target
    for rows, inputs_B, targets_B in batches:
        logits_BC, features_BD = forward_with_features(model, inputs_B)
        finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
        yield rows, (finite_B, target.residuals(logits_BC, targets_B), features_BD)
