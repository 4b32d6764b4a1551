"""Per-example signals: what every strategy selects on.

The last layer's gradient of example i under cross-entropy is the outer product of its
error e_i = softmax - onehot and its feature with a one for the bias, [h_i, 1]. So its
inner products are (e_i . e_j)(h_i . h_j + 1) and its norm is |e_i| sqrt(|h_i|^2 + 1),
exactly: N x (C + d) numbers stand for the N x C (d + 1) that nobody can store.

The gradient is that of each example's OWN loss. A mean over its batch would weigh the
examples of a last, smaller batch B / b times too much.

Of ImageNet that is 5 GB of errors, so what is larger than `StorageLimits` is kept in
float16, filled in batch by batch: a relative error of 5e-4, and errors below 6e-8 are 0.

Shapes: N examples, B of a batch, C classes, D features, K chosen rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.errors import SignalsError, StateError
from lipt.common.images.formats import ImageFormat
from lipt.common.images.model_input import to_model_input
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.coordinator.dynamics import Dynamics

OnProgress = Callable[[int, int], None]

# Fixed, so that a result does not depend on who asks.
SIGNALS_BATCH_SIZE = 256
_MAX_NAMED = 5
_TENSORS = ("errors_NC", "features_ND", "labels_N", "gradient_norms_N")


@dataclass(frozen=True)
class StorageLimits:
    """What all examples' values may take in float32; beyond that they are float16."""

    error_bytes: int = 2 * 1024**3
    feature_bytes: int = 4 * 1024**3

    def error_dtype(self, num_values: int) -> torch.dtype:
        """What so many errors are kept in."""
        return _dtype(num_values, self.error_bytes)

    def feature_dtype(self, num_values: int) -> torch.dtype:
        """What so many values of features are kept in."""
        return _dtype(num_values, self.feature_bytes)


STORAGE_LIMITS = StorageLimits()


def _dtype(num_values: int, max_bytes: int) -> torch.dtype:
    return torch.float16 if num_values * torch.float32.itemsize > max_bytes else torch.float32


@dataclass(frozen=True)
class Signals:
    """What is known of N examples; row i of every tensor is the same example.

    errors_NC: softmax - onehot; N x 0 where the strategy does not look at them. float32,
        or float16 where all examples together would be too large: read it in blocks.
    features_ND: what enters the last layer, likewise.
    labels_N: int64.
    gradient_norms_N: norms of the gradients of all parameters, where they were asked for.
    has_bias: whether the last layer has a bias: the 1 in [h_i, 1].
    dynamics: how the learners came to see the examples, where that was asked for.
    paired_features_NP: the other half of each example (a caption's features, say), float32,
        for strategies on pairs.
    validation: what is known of the run's validation examples, for strategies that look
        at the loss there. Not one of the rows' own values: it stays whole in `take`.
    """

    errors_NC: Tensor
    features_ND: Tensor
    labels_N: Tensor
    gradient_norms_N: Tensor | None = None
    has_bias: bool = True
    dynamics: Dynamics | None = None
    paired_features_NP: Tensor | None = None
    validation: Signals | None = None

    def __len__(self) -> int:
        return len(self.labels_N)

    def take(self, positions_K: Tensor) -> Signals:
        """The signals of some of the examples, in the order given, in float32."""
        norms_N, pairs_NP = self.gradient_norms_N, self.paired_features_NP
        return Signals(
            errors_NC=self.errors_NC[positions_K].float(),
            features_ND=self.features_ND[positions_K].float(),
            labels_N=self.labels_N[positions_K],
            gradient_norms_N=None if norms_N is None else norms_N[positions_K],
            has_bias=self.has_bias,
            dynamics=None if self.dynamics is None else self.dynamics.take(positions_K),
            paired_features_NP=None if pairs_NP is None else pairs_NP[positions_K],
            validation=self.validation,
        )

    def of_class(self, label: int) -> Signals:
        """The signals of one class, validated on its own validation examples.

        A class that has none keeps those of all classes.
        """
        taken = self.take(torch.nonzero(self.labels_N == label).flatten())
        if self.validation is None or not bool((self.validation.labels_N == label).any()):
            return taken
        return replace(taken, validation=self.validation.of_class(label))

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        tensors = {name: getattr(self, name) for name in _TENSORS}
        present = {
            name: values.contiguous() for name, values in tensors.items() if values is not None
        }
        partial = path.with_name(f"{path.name}.part")
        save_file(present, partial, {"has_bias": str(self.has_bias)})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Signals:
        """Map what `save` wrote into memory: pages are read as they are used.

        Raises:
            StateError: the file cannot be read, or is not one of `save`.
        """
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return cls(**tensors, has_bias=file.metadata()["has_bias"] == "True")
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise StateError(
                f"{path} does not hold signals ({error}). Delete it: they are computed again."
            ) from error


def labels_only(labels_N: Tensor) -> Signals:
    """Signals for strategies that look at nothing but the labels."""
    empty = torch.empty(len(labels_N), 0)
    return Signals(errors_NC=empty, features_ND=empty, labels_N=labels_N)


def compute_signals(
    model: nn.Module,
    dataset: Dataset,
    image: ImageFormat,
    *,
    device: torch.device,
    on_progress: OnProgress,
    batch_size: int = SIGNALS_BATCH_SIZE,
    ids: Tensor | None = None,
    limits: StorageLimits = STORAGE_LIMITS,
) -> Signals:
    """One forward pass over the examples, in evaluation mode.

    Args:
        model: on `device`; its training flags are restored.
        dataset: where images and labels come from.
        image: how its images are normalized.
        device: where the model is.
        on_progress: told after every batch how many of the N examples are done.
        batch_size: images per forward pass.
        ids: N int64 ids; row i of the signals is example ids[i]. All examples where None.
        limits: what is kept in float32.

    Raises:
        SignalsError: the model's outputs are not finite, or its features too large for
            float16 where they are kept in it; names the first ids.
        ConfigError: the model has no linear head.
    """
    _, head = find_head(model)
    ids_N = torch.arange(len(dataset)) if ids is None else ids
    labels_N = dataset.labels_N[ids_N]
    error_dtype = limits.error_dtype(len(ids_N) * head.out_features)
    feature_dtype = limits.feature_dtype(len(ids_N) * head.in_features)
    errors_NC = torch.empty(len(ids_N), head.out_features, dtype=error_dtype)
    features_ND = torch.empty(len(ids_N), head.in_features, dtype=feature_dtype)
    with evaluation_mode(model), pinned_kernels(), torch.inference_mode():
        for start in range(0, len(ids_N), batch_size):
            rows = slice(start, min(start + batch_size, len(ids_N)))
            inputs_BCHW = to_model_input(dataset.images(ids_N[rows]), image, device)
            logits_BC, features_BD = forward_with_features(model, inputs_BCHW)
            finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            errors_NC[rows] = errors_of(logits_BC, labels_N[rows].to(device)).cpu()
            features_ND[rows] = features_BD.cpu()
            if feature_dtype == torch.float16:
                finite_B = features_ND[rows].isfinite().all(dim=-1)
                require_finite_rows(finite_B, ids_N[rows], "features, kept in float16,")
            on_progress(rows.stop, len(ids_N))
    return Signals(errors_NC, features_ND, labels_N, has_bias=head.bias is not None)


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The errors softmax - onehot, float32: the gradient of each example's own loss by its logits.

    Computed in float64: p - 1 of a confident example has few correct digits in float32.
    """
    errors_NC = logits_NC.to(torch.float64).softmax(dim=-1)
    errors_NC -= functional.one_hot(labels_N, logits_NC.shape[-1])
    return errors_NC.to(torch.float32)


def require_finite_rows(finite_B: Tensor, ids_B: Tensor, what: str) -> None:
    """Refuse examples whose values are not finite.

    Args:
        finite_B: whether each example's are, on any device.
        ids_B: the examples' ids.
        what: what the values are, for the message.

    Raises:
        SignalsError: names the first ids.
    """
    bad = ids_B[~finite_B.cpu()].tolist()
    if bad:
        named = ", ".join(map(str, bad[:_MAX_NAMED])) + (", ..." if len(bad) > _MAX_NAMED else "")
        raise SignalsError(
            f"the model's {what} are not finite for {len(bad)} of {len(ids_B)} examples, with "
            f"ids {named}. Its weights have diverged: lower learners.learning_rate and start "
            "another run."
        )
