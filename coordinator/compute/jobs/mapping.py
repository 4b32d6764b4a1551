"""Mapping job: some examples as points on a plane, by what a run's model sees in them.

Shapes: M examples that are drawn, D features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import pinned_kernels
from lipt.common.inputs.specs import InputFormat
from lipt.common.maps import placed, principal_components
from lipt.coordinator.compute.context import Context
from lipt.core.signals.compute import compute_signals


@dataclass(frozen=True)
class MapExamples:
    """Place some examples by the features of a model."""

    config: RunConfig
    inputs: InputFormat
    weights: BlobName
    ids: tuple[int, ...]

    def run(self, context: Context) -> tuple[tuple[float, float], ...]:
        """Their places in the unit square, in the order of the ids.

        Raises:
            WeightsError: the weights are another model's.
            SignalsError: the features are not finite.
        """
        model = context.loaded_model(self.config, self.weights)
        places_M = context.numbering.places(torch.tensor(self.ids))
        with pinned_kernels(self.config.evaluation_threads):
            batches = context.batches(self.inputs, "computing features", some=places_M)
            features_MD = compute_signals(model, batches).features_ND.float()
            places_M2 = principal_components(features_MD)
        square_M2 = placed(places_M2, width=1.0, height=1.0, margin=0.02)
        return tuple((x, y) for x, y in square_M2.tolist())
