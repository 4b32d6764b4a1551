"""Jobs of the page: a map of some examples, and their pictures or first values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import pinned_kernels
from lipt.common.images.formats import data_url
from lipt.common.inputs.model_input import columns_in, images_in
from lipt.common.inputs.specs import ImageSpec, InputFormat
from lipt.common.maps import placed, principal_components
from lipt.coordinator.compute.context import Context
from lipt.core.signals.compute import compute_signals

# Larger pictures are scaled down to this.
_MAX_PIXELS = 224
_MAX_VALUES, _MAX_CHARACTERS = 12, 300


@dataclass(frozen=True)
class MapExamples:
    """Place M examples in the unit square by two principal components of their D features."""

    config: RunConfig
    inputs: InputFormat
    weights: BlobName
    ids: tuple[int, ...]

    def run(self, context: Context) -> tuple[tuple[float, float], ...]:
        """Compute their features with the model of these weights, and place them."""
        model = context.loaded_model(self.config, self.weights)
        rows_M = context.numbering.places(torch.tensor(self.ids))
        with pinned_kernels(self.config.evaluation_threads):
            batches = context.batches(self.inputs, "computing features", some=rows_M)
            places_M2 = principal_components(compute_signals(model, batches).features_ND.float())
        square_M2 = placed(places_M2, width=1.0, height=1.0, margin=0.02)
        return tuple((x, y) for x, y in square_M2.tolist())


@dataclass(frozen=True)
class ShownExample:
    """An example: a data URL where it is an image, or else its first values as text."""

    picture: str | None
    text: str


@dataclass(frozen=True)
class ShowExamples:
    """Show some examples, in this order."""

    ids: tuple[int, ...]

    def run(self, context: Context) -> tuple[ShownExample, ...]:
        """Read them."""
        dataset = context.dataset
        if not self.ids:
            return ()
        context.report("reading examples", 0, len(self.ids))
        stored_B = dataset.examples(context.numbering.places(torch.tensor(self.ids)))
        if isinstance(dataset.inputs, ImageSpec):
            return tuple(
                ShownExample(data_url(image_CHW, _MAX_PIXELS), "")
                for image_CHW in images_in(stored_B)
            )
        columns = columns_in(stored_B)
        return tuple(
            ShownExample(None, _text({name: values[row] for name, values in columns.items()}))
            for row in range(len(self.ids))
        )


def _text(values: dict[str, Tensor]) -> str:
    parts = (f"{name}: {_values(one)}" if name else _values(one) for name, one in values.items())
    return "; ".join(parts)[:_MAX_CHARACTERS]


def _values(tensor: Tensor) -> str:
    first = tensor.flatten()[:_MAX_VALUES].tolist()
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in first]
    return ", ".join(texts + ["..."] * (tensor.numel() > _MAX_VALUES))
