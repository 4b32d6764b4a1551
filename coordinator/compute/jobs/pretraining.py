"""Pre-training jobs: each takes the previous one's value and returns a frozen one.

DescribeData                          at start-up
InitializeWeights -> CutShards        theta*, one shard and density per learner
MakeSoup                              committed learners -> theta_p
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from lipt.common.blobs.name import BlobName
from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.config.run_config import RunConfig, SoupMethod
from lipt.common.data import all_labels, input_format, pack_shard
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.determinism.seeding import derive_seed
from lipt.common.errors import CorruptBlobError, UnknownBlobError
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.specs import InputSpec
from lipt.common.models.freezing import freeze, head_names
from lipt.common.observability.tracing import span
from lipt.common.targets.single_label import SingleLabel
from lipt.common.targets.target import Target
from lipt.common.targets.values import OtherTarget
from lipt.common.weights.checkpoints import read_checkpoint
from lipt.common.weights.container import pack
from lipt.common.weights.specs import Weights, specs_of
from lipt.coordinator.compute.cheap import KnownData
from lipt.coordinator.compute.context import Context
from lipt.coordinator.state.records import LearnerRecord, SoupRecord
from lipt.core.evaluation import Evaluator
from lipt.core.evaluators import evaluate_for_soup
from lipt.core.frozen_part import LearnerReader, pack_initial
from lipt.core.initialization import initialize
from lipt.core.results import Ingredient
from lipt.core.sharding import draw_densities, draw_shards
from lipt.core.soup import Evaluate, OpenWeights, greedy_soup, uniform_soup


@dataclass(frozen=True)
class DataDescription:
    """What the service needs to know of the data set."""

    source: str
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    inputs: InputSpec
    # Of the kind that was asked for, which new runs are bound to.
    fingerprint: str
    # The sampled one as well, which older runs may be bound to; empty where that is the former.
    sampled_fingerprint: str = ""
    # What its images are scaled to and what that costs, as a clause; empty where they are not.
    scaling: str = ""
    # Little-endian int32, of every id: for the lane that opens no data set.
    labels: bytes = field(default=b"", repr=False, compare=False)
    # Ids of images that cannot be used, which nothing but the labels counts in.
    quarantined: tuple[int, ...] = ()
    # What a model is to give where that is no single class; classes are strata then.
    other_target: OtherTarget | None = None
    # Of the labels or the numbers.
    target_names: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """What a model is to give of an example."""
        return self.other_target or SingleLabel(len(self.class_names))

    @property
    def known(self) -> KnownData:
        """What cheap jobs are given of it."""
        return KnownData(
            self.source,
            self.class_names,
            self.inputs,
            self.fingerprints,
            self.labels,
            self.quarantined,
        )

    @property
    def num_examples(self) -> int:
        """N, of those that can be used."""
        return sum(self.class_counts)

    @property
    def num_rows(self) -> int:
        """All that the source has: ids are below this."""
        return self.num_examples + len(self.quarantined)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """All that it is known by."""
        return tuple(filter(None, (self.fingerprint, self.sampled_fingerprint)))

    def fingerprint_like(self, other: str) -> str:
        """Of the kind that another fingerprint is; empty where there is none of that kind."""
        kind = FingerprintKind.of(other)
        return next((own for own in self.fingerprints if FingerprintKind.of(own) is kind), "")


@dataclass(frozen=True)
class DescribeData:
    """Open the data set; a missing or damaged one is refused here, before any run."""

    def run(self, context: Context) -> DataDescription:
        """Open and describe it."""
        dataset = context.dataset
        targets = dataset.rows.targets
        counts_C = torch.bincount(dataset.labels_N, minlength=len(dataset.class_names))
        full = context.settings.dataset.fingerprint is FingerprintKind.FULL
        labels_N: np.ndarray = all_labels(dataset).numpy()
        return DataDescription(
            source=dataset.source,
            class_names=dataset.class_names,
            class_counts=tuple(counts_C.tolist()),
            inputs=dataset.inputs,
            fingerprint=dataset.full_fingerprint if full else dataset.fingerprint,
            sampled_fingerprint=dataset.fingerprint if full else "",
            scaling=dataset.scaling,
            labels=labels_N.astype("<i4").tobytes(),
            quarantined=dataset.quarantined,
            other_target=None if targets is None else targets.target,
            target_names=() if targets is None else targets.names,
        )


@dataclass(frozen=True)
class InitialWeights:
    """theta*, and what models are given."""

    weights: BlobName
    inputs: InputFormat


@dataclass(frozen=True)
class InitializeWeights:
    """Make theta*: random or given weights, then a little training."""

    config: RunConfig

    def run(self, context: Context) -> InitialWeights:
        """Initialize and store theta*."""
        config, dataset = self.config, context.dataset
        train_ids = context.split(config).train_ids
        inputs = input_format(dataset, train_ids, derive_seed(config.seed, "normalization"))
        model = context.new_model(config)
        given = config.initialization.weights_sha256
        if given is not None:
            model.load_state_dict(self._given(context, given, model), strict=False)
        frozen = context.frozen(config, model)
        freeze(model, frozen)
        weights = initialize(
            model,
            dataset,
            train_ids,
            config.initialization,
            inputs,
            seed=derive_seed(config.seed, "initialization"),
            device=context.device,
            cpu_threads=config.learners.cpu_threads,
            on_progress=context.progress("training the initial weights"),
        )
        return InitialWeights(context.blobs.put_bytes(pack_initial(weights, frozen)), inputs)

    def _given(self, context: Context, sha256: str, model: nn.Module) -> Weights:
        """What there is of the model; what is to be new stays as its seed has drawn it."""
        weights, _ = read_checkpoint(
            context.blobs.verified_path(context.blobs.find(sha256)),
            like=specs_of(model.state_dict()),
            head=head_names(model),
            new_head=self.config.initialization.new_head,
            max_bytes=context.settings.limits.max_blob_bytes,
        )
        return weights


@dataclass(frozen=True)
class CutShards:
    """Draw n disjoint shards from the training split, and a density for each learner."""

    config: RunConfig

    def run(self, context: Context) -> tuple[LearnerRecord, ...]:
        """Cut and store the shards; the learners as they wait for workers."""
        config, learners = self.config, self.config.learners
        shards = draw_shards(context.split(config).train_ids, learners, seed=config.seed)
        densities = draw_densities(learners.num_learners, config.pruning, seed=config.seed)
        report = context.progress("cutting shards")
        records: list[LearnerRecord] = []
        for ids, density in zip(shards, densities, strict=True):
            shard = context.blobs.put_bytes(pack_shard(context.dataset, ids))
            records.append(LearnerRecord(index=len(records), density=density, shard=shard))
            report(len(records), len(shards))
        return tuple(records)


@dataclass(frozen=True)
class SoupResult:
    """theta_p, and how it came about; `ingredients` by the learners' own indices."""

    weights: BlobName
    record: SoupRecord
    ingredients: dict[int, Ingredient]


@dataclass(frozen=True)
class Offered:
    """A learner that was offered to the soup, by its own index, and what became of it."""

    index: int
    ingredient: Ingredient


@dataclass(frozen=True)
class DamagedLearners:
    """Learners whose results the disk has changed or lost, by their own indices."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class MakeSoup:
    """Merge the learners that are in, or say which of them are not whole any more."""

    config: RunConfig
    inputs: InputFormat
    initial_weights: BlobName
    # Learner index and committed result, ascending by index.
    learners: tuple[tuple[int, BlobName], ...]

    def run(self, context: Context) -> SoupResult | DamagedLearners:
        """Evaluate every learner, merge, and store theta_p."""
        try:
            # Several weights are scored at a time instead, on a thread each.
            with pinned_kernels(1):
                return self._merge(context)
        except (CorruptBlobError, UnknownBlobError):
            # All of them, so that they are trained again together.
            damaged = tuple(
                index for index, name in self.learners if not context.blobs.keep_if_whole(name)
            )
            if not damaged:
                raise
            return DamagedLearners(damaged)

    def _merge(self, context: Context) -> SoupResult:
        soup = self.config.soup
        evaluator = self.evaluator(context)
        evaluate = self.evaluate(context, evaluator)
        initial = context.read_weights(self.initial_weights, evaluator.model)
        initial_accuracy = evaluator(initial).accuracy
        reader = LearnerReader.of(specs_of(initial), initial, evaluator.frozen)
        # What learners train of it is not needed any more.
        del initial

        def opener(name: BlobName) -> OpenWeights:
            # Each time: the disk may change it between two openings.
            return lambda: reader.open(context.blobs.verified_path(name))

        learners = [opener(name) for _, name in self.learners]
        report = context.progress("merging learners")
        with span("soup", method=soup.method.value, num_learners=len(learners)) as merging:
            if soup.method is SoupMethod.GREEDY:
                made = greedy_soup(
                    learners,
                    evaluate,
                    num_alphas=soup.num_alphas,
                    search=soup.search,
                    on_progress=report,
                    on_ingredient=lambda at, part: context.tell(
                        Offered(self.learners[at][0], part)
                    ),
                )
            else:
                made = uniform_soup(learners, evaluate, on_progress=report)
            merging.note(accuracy=made.accuracy)
        accuracies = [part.accuracy for part in made.ingredients.values()]
        record = SoupRecord(
            initial_accuracy=initial_accuracy,
            mean_learner_accuracy=sum(accuracies) / len(accuracies),
            best_learner_accuracy=max(accuracies),
            soup_accuracy=made.accuracy,
            num_kept=sum(part.kept for part in made.ingredients.values()),
            num_validation_examples=len(evaluator.targets_N),
        )
        return SoupResult(
            weights=context.blobs.put_bytes(pack(made.weights)),
            record=record,
            ingredients={self.learners[at][0]: part for at, part in made.ingredients.items()},
        )

    def evaluate(self, context: Context, evaluator: Evaluator) -> Evaluate:
        """Scores several of this run's weights at a time, as `evaluator` does one."""
        return evaluate_for_soup(evaluator, self.config, lambda: context.new_model(self.config))

    def evaluator(self, context: Context) -> Evaluator:
        """What scores this run's weights."""
        config, dataset = self.config, context.dataset
        split, model = context.split(config), context.new_model(config)
        return Evaluator(
            model=model,
            inputs=self.inputs,
            device=context.device,
            examples_N=dataset.examples(split.validation_ids),
            target=dataset.target,
            targets_N=dataset.targets_N[split.validation_ids],
            batch_norm_examples_M=context.batch_norm_examples(config),
            batch_size=context.batch_size,
            frozen=context.frozen(config, model),
        )
