"""A call's arguments: the request that they make, and a user's own files as safetensors.

Other formats are refused before upload; the coordinator checks shapes and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import FeaturesError, InvalidRequestError, WeightsError
from lipt.common.requests import Budget, LabelUse, Proxy, SubsetRequest, split_warm_up
from lipt.common.tensor_header import require_safetensors
from lipt.trainer.views import DEFAULT_FRACTION

if TYPE_CHECKING:
    from torch import Tensor

_HOW = (
    "Give {'features': N x d} with one row per example, for strategies on pairs also "
    "'paired_features', or a file that safetensors.torch.save_file wrote of them."
)

Source = str | Path | bytes
# A file, its content, tensors by name, or a tensor or array of features.
Features = Source | Mapping[str, Any] | Any


class SelectionArguments(TypedDict, total=False):
    """Arguments of all calls that select, as `lipt.select` describes them; None for the default."""

    budget: int | None
    balanced: bool | None
    options: Mapping[str, object] | None
    preset: str | None
    proxy: str | None
    features: Features | None
    labels: Literal["given", "none"]
    soft_labels: bool
    mixture: Any
    target_data: Any
    pred_probs: Any


def request_of(
    strategy: str,
    fraction: float | None,
    arguments: SelectionArguments,
    store: Callable[[Path | bytes | dict[str, Tensor]], BlobName],
    *,
    run: str = "",
    previous: str = "",
    weights: Source | None = None,
    probabilities: BlobName | None = None,
    targets: tuple[BlobName, ...] = (),
) -> SubsetRequest:
    """The request of a call's arguments; `store` keeps a file, or tensors, for the computation."""
    budget, features = arguments.get("budget"), arguments.get("features")
    if fraction is None and budget is None:
        fraction = DEFAULT_FRACTION
    # NumPy's numbers are no JSON.
    size = Budget(
        None if fraction is None else float(fraction), None if budget is None else int(budget)
    )
    texts = {name: option_text(value) for name, value in (arguments.get("options") or {}).items()}
    options, warm_up = split_warm_up(texts)
    proxy, mixture = arguments.get("proxy"), arguments.get("mixture")
    return SubsetRequest(
        run=run,
        strategy=strategy,
        budget=size,
        balanced=arguments.get("balanced"),
        options=options,
        preset=arguments.get("preset") or "",
        warm_up=warm_up,
        proxy=Proxy.parse(proxy) if proxy else None,
        labels=LabelUse.parse(arguments.get("labels") or ""),
        soft_labels=bool(arguments.get("soft_labels")),
        weights=None if weights is None else store(weights_source(weights)),
        features=None if features is None else store(features_source(features)),
        probabilities=probabilities,
        mixture=None if mixture is None else store(_mixture_source(mixture)),
        targets=targets,
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


def features_source(features: Features) -> Path | bytes | dict[str, Tensor]:
    """Return a path, a safetensors file's content, or its tensors; else FeaturesError."""
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

    from lipt.common.tensor_files import DTYPES  # noqa: PLC0415

    def tensor(values: Any) -> torch.Tensor:
        if isinstance(values, np.ndarray):  # copied where it is read-only or in another order
            values = np.require(values, requirements=("C", "W"))
        made = torch.as_tensor(values).detach()
        if made.dtype not in DTYPES.values() or made.layout is not torch.strided or made.is_meta:
            raise TypeError(f"they are {made.dtype}, {made.layout}, on {made.device}")
        return made

    try:
        return {str(name): tensor(values) for name, values in named.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeaturesError(f"the features are no tensors ({error}). {_HOW}") from error


def _mixture_source(mixture: Any) -> Path | bytes:
    """A path, or the content of a mixture or of its file; InvalidRequestError for other values."""
    if isinstance(mixture, bytes):
        return mixture
    if isinstance(mixture, str | Path):
        try:
            return Path(mixture).read_bytes()
        except OSError as error:
            raise InvalidRequestError(
                f"the mixture cannot be read: {error}. Give a file of lipt mix."
            ) from error
    if hasattr(mixture, "to_json"):
        content: bytes = mixture.to_json()
        return content
    raise InvalidRequestError(
        f"the mixture is a {type(mixture).__name__}. Give what lipt.mix returns, or its file."
    )


def option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
