"""Features by which a map places examples: what the run's merged model sees in them.

Shapes: N examples that are drawn, B of a batch, D features.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.errors import (
    InputError,
    LifecycleError,
    LiptError,
    RequestError,
    SignalsError,
)
from lipt.common.models import find_head
from lipt.common.models.modes import evaluation_mode
from lipt.common.process.devices import resolve_device
from lipt.common.weights.files import read_weights
from lipt.common.weights.specs import specs_of
from lipt.trainer.client.client import Client
from lipt.trainer.main_training import Recipe
from lipt.trainer.main_training.forward import place_model
from lipt.trainer.report.pictures import coarse_values
from lipt.trainer.views import RunView

_BATCH_SIZE = 256


def features_of(
    client: Client,
    run: RunView,
    dataset: Dataset,
    ids_N: Tensor,
    allowed_modules: Collection[str] = (),
) -> tuple[Tensor, str]:
    """The features of some examples, and whose they are, in words.

    Args:
        client: connected to the run's coordinator, which has the merged weights.
        run: the run.
        dataset: the coordinator's data.
        ids_N: row numbers, int64.
        allowed_modules: modules whose factories may be imported for the run's model.

    Returns:
        Finite float32, N x D, on the CPU: what enters the head of theta_p, or their values
        where the model cannot be had here, and then why.

    Raises:
        UnavailableError: the coordinator is away.
    """
    try:
        return _by_merged_model(client, run, dataset, ids_N, allowed_modules), "theta_p"
    except (RequestError, InputError, LifecycleError) as error:
        return coarse_values(dataset, ids_N), _in_place_of_the_model(error)


def _by_merged_model(
    client: Client,
    run: RunView,
    dataset: Dataset,
    ids_N: Tensor,
    allowed_modules: Collection[str],
) -> Tensor:
    recipe = Recipe(seed=run.config.seed)
    device = resolve_device("auto")
    model, forward_pass = place_model(run.config.model, dataset, recipe, device, allowed_modules)
    content = client.weights(run.run_id)
    specs = specs_of(model.state_dict())
    model.load_state_dict(read_weights(content, like=specs, max_bytes=len(content)))
    _, head = find_head(model)
    parts: list[Tensor] = []
    keeping = head.register_forward_pre_hook(lambda _, args: parts.append(args[0].float().cpu()))
    with keeping, evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, _BATCH_SIZE):
            forward_pass(model, dataset.examples(ids_B))
    features_ND = torch.cat(parts)
    if not features_ND.isfinite().all():
        raise SignalsError("theta_p's features of some examples are not finite.")
    return features_ND


def _in_place_of_the_model(error: LiptError) -> str:
    return f"their own values, not by theta_p: {error}"
