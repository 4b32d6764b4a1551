"""Selection for a target: the examples of a pool that help with what a few examples show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lipt.common.computation import computed
from lipt.common.config.run_config import merge, mixture_preset
from lipt.common.errors import DataError, InvalidRequestError
from lipt.common.process.devices import versions_on
from lipt.common.requests import Budget
from lipt.common.subsets import subset_digest
from lipt.common.tensor_files import copy_to_cpu
from lipt.core.mixture.learning import TargetedPool
from lipt.core.mixture.mixture import duplicates_of_target
from lipt.core.mixture.target_drops import losses_by_target
from lipt.core.selection.loss_drop import largest_drops, loss_drops
from lipt.data.loading import open_set
from lipt.data.targets.kinds import TargetKind
from lipt.mixture_data import open_mixture
from lipt.pretraining import Pretrained
from lipt.trainer.progress import progress_display
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import DEFAULT_FRACTION

LOSS_DROP = "loss_drop"
# A longer learner of a small target remembers it.
_SHORT: Mapping[str, Any] = {
    "initialization": {"steps": None},
    "learners": {
        "shards": "random",
        "num_learners": 1,
        "min_learners": 1,
        "num_minibatches": 10,
    },
}


@computed
def select_for_target(
    data: Any,
    target_data: Any,
    model: str | nn.Module | Callable[..., nn.Module] | None,
    budget: Budget,
    *,
    target: str | None,
    head: str | None,
    seed: int,
    run: Mapping[str, Any] | None,
    image_size: int | None,
    device: str,
    allow_modules: Sequence[str],
    progress: bool | None,
) -> Subset:
    """As `lipt.select` with `target_data`. Examples equal to the target's are left out."""
    found = open_mixture({"the data": data}, target_data, target=target, image_size=image_size)
    pool = TargetedPool.of(found.pool, found.target, found.num_target)
    pool_ids, kind = pool.pool_ids, pool.dataset.target.kind
    preset = mixture_preset(of_texts=kind is TargetKind.TOKENS)
    opened = Pretrained(
        pool.dataset,
        model,
        head=head,
        seed=seed,
        run=merge(merge(preset, _SHORT), dict(run or {})),
        device=device,
        allow_modules=allow_modules,
        progress=False,
    )
    workspace, config = opened.workspace, opened.config
    with progress_display(wanted=progress) as show:
        opened.on_progress = show
        is_new_N = ~duplicates_of_target(workspace, pool)[pool_ids]
        new_ids = pool_ids[is_new_N]
        if not len(new_ids):
            raise DataError(
                f"all {len(pool_ids)} examples equal one of the target's. Give a larger pool."
            )
        number = budget.of(len(pool_ids))
        if number > len(new_ids):
            raise InvalidRequestError(
                f"{number} of {len(pool_ids)} examples were asked for, and only {len(new_ids)} do "
                "not equal one of the target's. Ask for fewer."
            )
        given = (
            copy_to_cpu(workspace.new_model(config).state_dict())
            if isinstance(model, nn.Module)
            else None
        )
        losses = losses_by_target(workspace, config, new_ids, pool.target_ids, given)
    chosen = largest_drops(*losses, number)
    rows, weights = new_ids[chosen].numpy(), torch.ones(number).numpy()
    drops_K = loss_drops(*losses)[chosen]
    manifest = {
        "run_config": config.model_dump(mode="json"),
        "data": {"num_examples": len(pool_ids)},
        "target": {
            "num_examples": len(pool.target_ids),
            "fingerprint_with_data": pool.dataset.fingerprint,
            "equal_in_data": int((~is_new_N).sum()),
        },
        "drops": {"least": float(drops_K.min()), "mean": float(drops_K.mean())},
        "versions": versions_on(workspace.device),
    }
    fingerprint = open_set("data", data, target, image_size).fingerprint
    digest = subset_digest(rows, weights)
    return Subset(rows, weights, fingerprint, digest, LOSS_DROP, manifest)


def budget_for(strategy: str, fraction: float | None, arguments: Mapping[str, Any]) -> Budget:
    """The budget of a call with `target_data`, for which one strategy and few arguments exist."""
    if strategy not in {"auto", LOSS_DROP}:
        raise InvalidRequestError(
            f"the strategy {strategy!r} does not look at target_data. Leave one of them out, or "
            f"choose {LOSS_DROP}."
        )
    if given := sorted(name for name, value in arguments.items() if value and name != "budget"):
        raise InvalidRequestError(
            f"{', '.join(given)} cannot be used with target_data. Leave one of them out."
        )
    number = arguments.get("budget")
    if fraction is None and number is None:
        fraction = DEFAULT_FRACTION
    return Budget(fraction, number)
