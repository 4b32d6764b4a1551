"""Pre-training jobs: each takes the previous one's value and returns a frozen one.

DescribeData                          at start-up
InitializeWeights -> CutShards        theta*, one shard and density per learner
MakeSoup                              committed learners -> theta_p
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import CorruptBlobError, UnknownBlobError
from lipt.common.tensor_files import pack
from lipt.coordinator.compute.context import Context, DataDescription
from lipt.coordinator.state.records import LearnerRecord, SoupRecord
from lipt.core.pipeline import cut_shards, initial_weights, merge_learners
from lipt.core.pretraining.results import Ingredient, pack_initial
from lipt.data.inputs.specs import InputFormat
from lipt.data.shard import pack_shard


@dataclass(frozen=True)
class DescribeData:
    """Open the data set; a missing or damaged one is refused before any run."""

    def run(self, context: Context) -> DataDescription:
        return DataDescription.of(context.dataset)


@dataclass(frozen=True)
class InitialWeights:
    """theta*, and the format of the models' inputs."""

    weights: BlobName
    inputs: InputFormat


@dataclass(frozen=True)
class InitializeWeights:
    """Make theta*: random or given weights, then a little training."""

    config: RunConfig

    def run(self, context: Context) -> InitialWeights:
        given = self.config.initialization.weights_sha256
        blobs = context.blobs
        source = None if given is None else blobs.verified_path(blobs.find(given))
        weights, frozen, inputs = initial_weights(context, self.config, source)
        return InitialWeights(blobs.put_bytes(pack_initial(weights, frozen)), inputs)


@dataclass(frozen=True)
class CutShards:
    """Draw n disjoint shards from the training split, and a density for each learner."""

    config: RunConfig

    def run(self, context: Context) -> tuple[LearnerRecord, ...]:
        cuts = cut_shards(context, self.config)
        report = context.progress("cutting shards")
        records: list[LearnerRecord] = []
        by_source = [*context.dataset.source_ids, *self.config.learners.worker_sources]
        for index, (ids, density) in enumerate(cuts):
            shard = context.blobs.put_bytes(pack_shard(context.dataset, ids)) if len(ids) else None
            own = by_source[index % len(by_source)] if shard is None else ""
            records.append(LearnerRecord(index=index, density=density, shard=shard, own_source=own))
            report(len(records), len(cuts))
        return tuple(records)


@dataclass(frozen=True)
class SoupResult:
    """theta_p and its measurements; `ingredients` by learner index."""

    weights: BlobName
    record: SoupRecord
    ingredients: dict[int, Ingredient]


@dataclass(frozen=True)
class LearnerOffered:
    """A learner offered to the soup, by index, and its outcome."""

    index: int
    ingredient: Ingredient


@dataclass(frozen=True)
class DamagedLearners:
    """Learners whose results the disk has changed or lost, by index."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class MakeSoup:
    """Merge the committed learners, or return those that are damaged."""

    config: RunConfig
    inputs: InputFormat
    initial_weights: BlobName
    # Learner index and committed result, ascending by index.
    learners: tuple[tuple[int, BlobName], ...]

    def run(self, context: Context) -> SoupResult | DamagedLearners:
        try:
            return self._merge(context)
        except (CorruptBlobError, UnknownBlobError):
            # All of them, so that they are retrained together.
            damaged = tuple(
                index
                for index, name in self.learners
                if not context.blobs.is_whole(name, remove_damaged=True)
            )
            if not damaged:
                raise
            return DamagedLearners(damaged)

    def _merge(self, context: Context) -> SoupResult:
        model = context.new_model(self.config)
        initial = context.read_weights(self.initial_weights, model)
        read = context.read_learners(self.config, self.initial_weights, model)
        made, initial_accuracy = merge_learners(
            context,
            self.config,
            self.inputs,
            initial,
            [partial(read, name) for _, name in self.learners],
            lambda at, part: context.send(LearnerOffered(self.learners[at][0], part)),
        )
        accuracies = [part.accuracy for part in made.ingredients.values()]
        record = SoupRecord(
            initial_accuracy=initial_accuracy,
            mean_learner_accuracy=sum(accuracies) / len(accuracies),
            best_learner_accuracy=max(accuracies),
            soup_accuracy=made.accuracy,
            num_kept=sum(part.kept for part in made.ingredients.values()),
            num_validation_examples=len(context.split(self.config).validation_ids),
        )
        return SoupResult(
            weights=context.blobs.put_bytes(pack(made.weights)),
            record=record,
            ingredients={self.learners[at][0]: part for at, part in made.ingredients.items()},
        )
