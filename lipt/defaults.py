"""Defaults of one call: a model for the kind of data; pure."""

from __future__ import annotations

from lipt.common.inputs.specs import ImageSpec, InputSpec

# Images up to this keep their own size, and gain nothing from a network for larger ones.
_SMALL_IMAGE = 64


def default_model(inputs: InputSpec) -> str:
    """The built-in model that suits what examples are.

    Of words `text:tiny`, of other examples that are no images `mlp`; of images `resnet8`, or
    `torchvision:resnet18` where they are larger than 64 pixels.
    """
    if isinstance(inputs, ImageSpec):
        large = max(inputs.height, inputs.width) > _SMALL_IMAGE
        return "torchvision:resnet18" if large else "resnet8"
    (first, *others) = inputs.columns
    words = not others and len(first.shape) == 1 and first.num_values > 0
    return "text:tiny" if words else "mlp"
