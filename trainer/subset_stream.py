"""Asks for a subset, puts the streamed answer together, and believes it only when it fits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from lipt.common.errors import InvalidRequestError, SubsetError
from lipt.trainer.conversion import progress_view
from lipt.trainer.subset import Subset
from lipt.trainer.views import ProgressView
from lipt.v1 import subset_pb2


def subset_request(
    run: str,
    strategy: str,
    *,
    fraction: float | None,
    budget: int | None,
    balanced: bool | None,
    options: Mapping[str, object] | None,
    previous: Subset | str | None = None,
) -> subset_pb2.GetSubsetRequest:
    """The request for a subset; None leaves the choice to the strategy.

    Raises:
        InvalidRequestError: both of fraction and budget, or neither.
    """
    if (fraction is None) == (budget is None):
        raise InvalidRequestError(
            f"fraction {fraction} and budget {budget} were given: give one of them, a "
            "fraction in (0, 1] of the data set or a number of examples."
        )
    request = subset_pb2.GetSubsetRequest(
        run_id=run,
        strategy=strategy,
        fraction=fraction,
        budget=budget,
        options={name: _option_text(value) for name, value in (options or {}).items()},
        previous=previous.digest if isinstance(previous, Subset) else previous,
    )
    if balanced is not None:
        request.balanced = balanced
    return request


def receive_subset(
    responses: Iterable[subset_pb2.GetSubsetResponse],
    on_progress: Callable[[ProgressView], None] | None = None,
) -> Subset:
    """The subset of a complete stream: progress, a description, then its examples.

    Raises:
        SubsetError: examples before their description, more or fewer than it
            says, or others than its digest says.
    """
    description: subset_pb2.Subset | None = None
    indices: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    received = 0
    for response in responses:
        part = response.WhichOneof("part")
        if part == "progress" and on_progress:
            on_progress(progress_view(response.progress))
        elif part == "subset":
            description = response.subset
        elif part == "examples":
            received += len(response.examples.indices)
            if description is None or received > description.num_examples:
                break  # what follows could be without end
            indices.append(np.array(response.examples.indices, dtype=np.int64))
            weights.append(np.array(response.examples.weights, dtype=np.float32))
    if description is None:
        raise SubsetError("the coordinator sent no description of the subset. Ask again.")
    if received != description.num_examples:
        raise SubsetError(
            f"the coordinator announced {description.num_examples} examples and sent {received}. "
            "Ask again; if it stays so, see the coordinator's log."
        )
    return Subset(
        indices=np.concatenate(indices) if indices else np.empty(0, np.int64),
        weights=np.concatenate(weights) if weights else np.empty(0, np.float32),
        fingerprint=description.fingerprint,
        digest=description.digest,
        strategy=description.strategy,
        manifest=_manifest(description.manifest_json),
        kept=description.kept,
    )


def _option_text(value: object) -> str:
    # True travels as the command line would write it.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _manifest(text: str) -> dict[str, object]:
    try:
        manifest = json.loads(text or "{}")
    except ValueError as error:
        raise SubsetError(f"the subset's manifest is not JSON ({error}). Ask again.") from None
    if not isinstance(manifest, dict):
        raise SubsetError("the subset's manifest is not a JSON object. Ask again.")
    return manifest
