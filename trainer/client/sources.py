"""A call's arguments: the request that they make, and a user's own files as safetensors.

Other formats are refused before upload; the coordinator checks shapes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import FeaturesError, WeightsError
from lipt.common.requests import Budget, Labels, Proxy, SubsetRequest, split_warm_up
from lipt.common.tensor_header import require_safetensors
from lipt.trainer.views import DEFAULT_FRACTION

_HOW = (
    "Give {'features': N x d} with one row per example, for strategies on pairs also "
    "'paired_features', or a file that safetensors.torch.save_file wrote of them."
)

Source = str | Path | bytes
# A file, its content, tensors by name, or a tensor or array of features.
Features = Source | Mapping[str, Any] | Any


class SelectionArguments(TypedDict, total=False):
    """Arguments of all calls that select, besides the strategy and the fraction; None for none."""

    budget: int | None
    """Number of examples, in place of a fraction."""
    balanced: bool | None
    """Equal shares per class; None for the strategy's default."""
    options: Mapping[str, object] | None
    """The strategy's options, by name."""
    preset: str | None
    """Defaults for `options` and `balanced`, such as "paper"."""
    proxy: str | None
    """Proxy model: "soup" (theta_p), "auto", or "ridge:" with patches, columns, learners, soup,
    initial (theta*), user, backbone, joined by "+"; None for the strategy's default."""
    features: Features | None
    """Replace the model's: a tensor or array (N x d), a safetensors file, its content, or
    {"features": N x d}, for pairs with "paired_features" as well."""
    labels: Literal["given", "none"]
    """"none" selects by features alone."""
    soft_labels: bool
    """Return `Subset.soft_labels` as well, as training targets: probabilities by a ridge head
    fitted without the example."""
    pred_probs: Any
    """Out-of-sample class probabilities of your own model, N x C, columns in the order of the class
    names: an array, tensor or frame. They replace a head's: for `auto`, scores of errors, and soft
    labels. A coordinator takes none."""


def request_of(
    strategy: str,
    fraction: float | None,
    arguments: SelectionArguments,
    store: Callable[[Path | bytes], BlobName],
    *,
    run: str = "",
    previous: str = "",
    weights: Source | None = None,
    probabilities: BlobName | None = None,
) -> SubsetRequest:
    """The request of a call's arguments; `store` keeps a file for the computation."""
    budget, features = arguments.get("budget"), arguments.get("features")
    if fraction is None and budget is None:
        fraction = DEFAULT_FRACTION
    # NumPy's numbers are no JSON.
    size = Budget(
        None if fraction is None else float(fraction), None if budget is None else int(budget)
    )
    texts = {name: option_text(value) for name, value in (arguments.get("options") or {}).items()}
    options, warm_up = split_warm_up(texts)
    proxy = arguments.get("proxy")
    return SubsetRequest(
        run=run,
        strategy=strategy,
        budget=size,
        balanced=arguments.get("balanced"),
        options=options,
        preset=arguments.get("preset") or "",
        warm_up=warm_up,
        proxy=Proxy.parse(proxy) if proxy else None,
        labels=Labels.parse(arguments.get("labels") or ""),
        soft_labels=bool(arguments.get("soft_labels")),
        weights=None if weights is None else store(weights_source(weights)),
        features=None if features is None else store(features_source(features)),
        probabilities=probabilities,
        previous=previous,
    )


def weights_source(weights: Source) -> Path | bytes:
    """Return a path, or safetensors content (also of `torch.save` files); else WeightsError."""
    source = Path(weights) if isinstance(weights, str) else weights
    if not isinstance(source, Source):
        raise WeightsError(
            f"the weights are a {type(weights).__name__}. Give a safetensors file or its content, "
            "as safetensors.torch.save(model.state_dict()) returns it."
        )
    try:
        require_safetensors(source)
    except WeightsError as error:
        if isinstance(source, bytes):
            raise
        from lipt.common.tensor_files import pack  # noqa: PLC0415
        from lipt.models.checkpoints import read_torch_file, state_dict_in  # noqa: PLC0415

        try:
            return pack(state_dict_in(read_torch_file(source)))
        except ValueError as reason:
            why = str(reason).partition("\n")[0]
            raise WeightsError(f"{error} Its tensors alone cannot be read either: {why}") from None
    return source


def features_source(features: Features) -> Path | bytes:
    """Return a path, or a safetensors file's content; FeaturesError for other values."""
    if isinstance(features, Source):
        source = Path(features) if isinstance(features, str) else features
        try:
            require_safetensors(source)
        except WeightsError as error:
            # The rest of the message is about model weights.
            raise FeaturesError(f"{error.problem}. {_HOW}") from error
        except OSError as error:
            raise FeaturesError(f"the features cannot be read: {error}. {_HOW}") from error
        return source
    named = features if isinstance(features, Mapping) else {"features": features}
    import numpy as np  # noqa: PLC0415 - as torch
    import torch  # noqa: PLC0415 - slow, and a file needs none of it

    from lipt.common.tensor_files import pack  # noqa: PLC0415

    def tensor(values: Any) -> torch.Tensor:
        if isinstance(values, np.ndarray):  # copied where it is read-only or in another order
            values = np.require(values, requirements=("C", "W"))
        return torch.as_tensor(values).detach()

    try:
        return pack({str(name): tensor(values) for name, values in named.items()})
    except (TypeError, ValueError, RuntimeError, WeightsError) as error:
        raise FeaturesError(f"the features are no tensors ({error}). {_HOW}") from error


def option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
