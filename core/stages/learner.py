"""A learner that this process trains on its own data, as a worker trains on a shard."""

from __future__ import annotations

from torch import Tensor

from lipt.common.config.run_config import RunConfig
from lipt.common.tensor_files import Weights
from lipt.core.call_parts import CallPart
from lipt.core.pretraining.learner import TrainedLearner, train_learner
from lipt.core.tasks import LearnerTask
from lipt.core.workspace import Workspace
from lipt.data.inputs.specs import InputFormat
from lipt.data.shard import open_shard, pack_shard


def train_here(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    initial: Weights,
    index: int,
    ids: Tensor,
    density: float,
) -> TrainedLearner:
    """Train a learner on examples of this process's data, packed as for a worker."""
    dataset, learners = workspace.dataset, config.learners
    targets = dataset.rows.targets
    task = LearnerTask.of(
        config,
        inputs,
        num_classes=dataset.target.num_outputs,
        other_target=None if targets is None else targets.target,
        index=index,
        density=density,
    )
    content = pack_shard(dataset, ids)
    number = learners.num_learners
    activity, share = f"training learner {index + 1} of {number}", 1 / number
    report = workspace.progress(activity, CallPart.LEARNERS, index * share, share)
    return train_learner(
        task,
        initial,
        open_shard(content, inputs, num_examples=len(ids), target=task.target),
        device=workspace.device,
        allowed_modules=workspace.allowed_modules,
        own_model=workspace.own_model,
        on_step=lambda step, _loss: report(step, learners.num_steps),
        should_stop=lambda: False,
        ids=ids,
    )
