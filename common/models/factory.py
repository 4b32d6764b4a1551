"""Model factory: a user's own model, from a function `package.module:factory`."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from lipt.common.errors import ConfigError
from lipt.common.imports.factory import load_factory


def build_from_factory(
    spec: str, *, num_classes: int, allowed_modules: Collection[str]
) -> nn.Module:
    """Call the factory that `spec` names, with the keyword num_classes only.

    Raises:
        FactoryNotAllowedError: this process's flags do not allow the module.
        ConfigError: the factory cannot be imported, fails, or returns something else
            than an nn.Module.
    """
    factory = load_factory(spec, allowed_modules=allowed_modules)
    try:
        model = factory(num_classes=num_classes)
    except Exception as error:
        raise ConfigError(
            f"{spec!r} called with num_classes={num_classes} failed with "
            f"{type(error).__name__}: {error}. Define it as def factory(*, num_classes: int)."
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{spec!r} returned a {type(model).__name__}, not a torch.nn.Module. "
            "Return the model itself."
        )
    return model
