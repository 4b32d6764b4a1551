"""Job that fits the mixture of a run's sources to a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.coordinator.compute.context import Context
from lipt.core.mixture.learning import TargetedPool, learned_for
from lipt.core.mixture.mixture import mixture_of
from lipt.core.pretraining.initialization import num_initialization_steps
from lipt.data.example_file import open_examples
from lipt.data.inputs.specs import InputFormat
from lipt.data.joining import MOST_TARGET


@dataclass(frozen=True)
class FitMixture:
    """Fit the shares with which learners by source merge best on a target."""

    config: RunConfig
    inputs: InputFormat
    initial_weights: BlobName
    # Results, ascending by the learner's index.
    learners: tuple[BlobName, ...]
    target: BlobName
    # Sizes of sources whose data workers hold.
    elsewhere: Mapping[str, int]

    def run(self, context: Context) -> BlobName:
        """The name of the mixture's file; DataError for a target of another form."""
        config, dataset = self.config, context.dataset
        content = context.read(self.target).read_bytes()
        target, num_given = open_examples(content, dataset, max_examples=MOST_TARGET)
        pool = TargetedPool.of(dataset, target, num_given, self.elsewhere)
        workspace = context.beside(pool.dataset)
        model = context.new_model(config)
        initial = context.read_weights(self.initial_weights, model)
        read = context.read_learners(config, self.initial_weights, model)
        steps = num_initialization_steps(
            config.initialization, len(context.split(config).train_ids)
        )
        learned = learned_for(
            workspace,
            pool,
            config,
            self.inputs,
            initial,
            [dict(read(name)) for name in self.learners],
            steps=steps,
        )
        return context.blobs.put_bytes(mixture_of(workspace, pool, config, learned).to_json())
