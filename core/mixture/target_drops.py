"""Target drops: losses of a pool before and after one short learner on a target.

theta* is given, or trained on the pool. Then two forward passes of the pool, whatever the target.

Shapes: N examples of the pool, B of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.tensor_files import Weights, pack
from lipt.core.pipeline import one_learner
from lipt.core.pretraining.initialization import initialize
from lipt.core.pretraining.sharding import draw_by_shares
from lipt.core.pretraining.training import ForwardPass
from lipt.core.workspace import InMemory
from lipt.data.dataset import input_format
from lipt.models.head import evaluation_mode, freeze
from lipt.models.registry import memory_format

# Of theta* on the pool, where it is not given.
SHARED_STEPS = 400


def losses_by_target(
    workspace: InMemory,
    config: RunConfig,
    pool_ids: Tensor,
    target_ids: Tensor,
    given: Weights | None = None,
) -> tuple[Tensor, Tensor]:
    """Each pool example's loss under theta*, and after the learner; N float32 each."""
    dataset, model = workspace.dataset, workspace.new_model(config)
    inputs = input_format(dataset, pool_ids, derive_seed(config.seed, "normalization"))
    if given is not None:
        model.load_state_dict(given)
    freeze(model, workspace.frozen(config, model))
    steps = config.initialization.steps
    if steps is None:
        steps = SHARED_STEPS if given is None else 0
    initial = initialize(
        model,
        dataset,
        pool_ids,
        config.initialization.model_copy(update={"steps": steps}),
        inputs,
        seed=derive_seed(config.seed, "target initialization"),
        device=workspace.device,
        cpu_threads=config.learners.cpu_threads,
        on_progress=workspace.progress("training the initial weights"),
    )
    size = config.learners.num_minibatches * config.learners.batch_size
    draws = derive_generator(config.seed, "target shard")
    shard = draw_by_shares([target_ids], torch.ones(1), size, generator=draws)
    density = config.pruning.density_max
    learner = one_learner(workspace, config, inputs, initial, 0, shard, density)
    read = workspace.read_learners(config, workspace.put(pack(initial)), model)
    layout = memory_format(config.model)
    forward = ForwardPass(inputs, dataset.target, workspace.device, layout, bfloat16=False)

    def losses(weights: Weights, activity: str) -> Tensor:
        model.load_state_dict(weights)
        report, found = workspace.progress(activity), list[Tensor]()
        # A computation sets its own gradient mode.
        with evaluation_mode(model), computation(1), torch.inference_mode():
            for ids_B in torch.split(pool_ids, workspace.batch_size):
                outputs_B = forward(model, dataset.examples(ids_B))
                targets_B = dataset.targets_N[ids_B].to(workspace.device)
                found.append(dataset.target.losses(outputs_B, targets_B).cpu())
                report(sum(map(len, found)), len(pool_ids))
        return torch.cat(found)

    before_N = losses(initial, "losses before the target")
    return before_N, losses(dict(read(learner.result)), "losses after the target")
