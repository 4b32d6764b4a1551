"""Workspace: the data, the device, and the weights that the stages of LiPT read and keep.

The stages of `lipt.core` do no file access of their own. Their workspace is `InMemory` in one
process, and in the service a job's context with a state directory.

Shapes: N examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig, ShardRule
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import DataError, WeightsError
from lipt.common.tensor_files import (
    Weights,
    packed_name,
    read_container,
    read_weights,
    specs_of,
    unusable,
)
from lipt.core.kept_values import KeptT, Key
from lipt.core.passes import Batches, texts_at_once
from lipt.core.pretraining.evaluation import batch_size_for
from lipt.core.pretraining.initialization import begins_trained
from lipt.core.pretraining.learner import TrainedLearner, train_learner
from lipt.core.pretraining.results import open_learner
from lipt.core.pretraining.sharding import (
    Split,
    draw_shards,
    draw_shards_by_source,
    split_validation,
)
from lipt.core.progress import CallPart, CallParts
from lipt.core.proxies.features import Backbone
from lipt.core.signals.probabilities import PROBABILITIES
from lipt.core.signals.signals import UserFeatures, features_of_tensors, read_user_features
from lipt.core.tasks import LearnerTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import InputFormat
from lipt.data.shard import open_shard, pack_shard
from lipt.models.adapters import adapter_names
from lipt.models.head import frozen_names, matching_names
from lipt.models.registry import OwnModel, build_model, lay_out

# Called with an activity, the amount done, and the total.
OnProgress = Callable[[str, int, int], None]


class Workspace(ABC):
    """Inputs and stored values of the stages; weights are named by their file's digest and size."""

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, without excluded examples."""
        raise NotImplementedError

    @cached_property
    def device(self) -> torch.device:
        """The device of all models."""
        raise NotImplementedError

    @cached_property
    def allowed_modules(self) -> tuple[str, ...]:
        """Modules that model factories may be imported from."""
        return ()

    @cached_property
    def own_model(self) -> OwnModel | None:
        """A live model of this process, in place of the run's by name."""
        return None

    @cached_property
    def backbone(self) -> Backbone | None:
        """The operator's network with trained weights, if there is one."""
        return None

    @cached_property
    def scratch(self) -> Path | None:
        """The folder of arrays too large for memory; None keeps them in memory."""
        return None

    @cached_property
    def parts(self) -> CallParts:
        """The parts of the current call."""
        return CallParts({})

    @property
    def has_backbone(self) -> bool:
        """Whether there is a backbone, without opening it."""
        return self.backbone is not None

    @abstractmethod
    def report(self, activity: str, done: int, total: int) -> None:
        """Report progress."""

    @abstractmethod
    def read(self, name: BlobName) -> bytes | Path:
        """The content of a file, or its verified path."""

    @abstractmethod
    def find(self, key: Key[KeptT]) -> KeptT | None:
        """The kept value."""

    @abstractmethod
    def keep(self, key: Key[KeptT], value: KeptT) -> KeptT:
        """Keep a value."""

    def cached(self, key: Key[KeptT], compute: Callable[[], KeptT]) -> KeptT:
        kept = self.find(key)
        return self.keep(key, compute()) if kept is None else kept

    def read_weights(self, name: BlobName, model: nn.Module) -> Weights:
        """Weights of all tensors of a model, on the CPU."""
        like = specs_of(model.state_dict())
        return read_weights(self.read(name), like=like, max_bytes=name.size_bytes)

    def read_learners(
        self, config: RunConfig, initial: BlobName, model: nn.Module
    ) -> Callable[[BlobName], Mapping[str, Tensor]]:
        """Opens learners' states, completed by the frozen tensors of theta*, decoded on access.

        Each file is verified again, as the disk may change it between two openings.
        """
        specs, names = specs_of(model.state_dict()), self.frozen(config, model)
        weights = self.read_weights(initial, model) if names else {}
        frozen = {name: weights[name] for name in names}
        return lambda name: open_learner(self.read(name), specs, frozen)

    def user_features(self, features: BlobName) -> UserFeatures:
        """A user's features of every example; FeaturesError for another file."""
        source, num_ids = self.read(features), self.dataset.num_ids
        return self.by_position(
            read_user_features(source, num_examples=num_ids, max_bytes=features.size_bytes)
        )

    def by_position(self, by_id: UserFeatures) -> UserFeatures:
        """Features without those of excluded examples."""
        id_mapping, paired_NP = self.dataset.id_mapping, by_id.paired_features_NP
        return UserFeatures(
            id_mapping.by_position(by_id.features_ND),
            None if paired_NP is None else id_mapping.by_position(paired_NP),
        )

    def probabilities(self, name: BlobName) -> Tensor:
        """A user's class probabilities of every example, by position."""
        file = read_container(self.read(name), max_bytes=name.size_bytes, max_tensors=1)
        return self.dataset.id_mapping.by_position(file.tensor(PROBABILITIES))

    def progress(
        self, activity: str, part: CallPart | None = None, before: float = 0.0, share: float = 1.0
    ) -> Callable[[int, int], None]:
        """A callback for (done, total) that reports under one name.

        The activity is `share` of a part of the call, of which `before` is done already.
        """

        def report(done: int, total: int) -> None:
            if part is not None:
                self.parts.advance(part, before + share * done / total)
            self.report(activity, done, total)

        return report

    def split(self, config: RunConfig) -> Split:
        return split_validation(self.dataset.labels_N, config.validation, seed=config.seed)

    def source_ids(self, config: RunConfig) -> dict[str, Tensor]:
        """Each source's ids in the training split, none of those that workers hold.

        DataError for another source without any.
        """
        dataset, train_ids = self.dataset, self.split(config).train_ids
        by_source = {
            name: ids[torch.isin(ids, train_ids)] for name, ids in dataset.source_ids.items()
        }
        for name, ids in by_source.items():
            if not len(ids):
                raise DataError(
                    f"the source {name} of {dataset.source} has {len(dataset.source_ids[name])} "
                    "examples, and none is left to train on. Give more, or leave it out."
                )
        none = torch.empty(0, dtype=torch.int64)
        return by_source | dict.fromkeys(config.learners.worker_sources, none)

    def shards(self, config: RunConfig) -> tuple[Tensor, ...]:
        """The M x B ids of each learner's shard, the same at every call; none of a worker's own."""
        learners, seed = config.learners, config.seed
        if learners.shards is ShardRule.SOURCE:
            return draw_shards_by_source(self.source_ids(config), learners, seed=seed)
        return draw_shards(self.split(config).train_ids, learners, seed=seed)

    def batch_norm_examples(self, config: RunConfig) -> Stored | None:
        """The run's training examples for estimating batch-norm statistics."""
        if not config.soup.reestimate_batch_norm:
            return None
        train_ids = self.split(config).train_ids
        generator = derive_generator(config.seed, "batch norm")
        drawn = torch.randperm(len(train_ids), generator=generator)
        return self.dataset.examples(train_ids[drawn[: config.soup.batch_norm_examples]])

    @property
    def batch_size(self) -> int:
        """Examples whose outputs are computed together; a text has logits for each position."""
        most = texts_at_once(self.dataset.target)
        return min(batch_size_for(self.dataset.inputs, self.device), most)

    def batches(
        self,
        inputs: InputFormat,
        activity: str,
        *,
        size: int | None = None,
        some: Tensor | None = None,
    ) -> Batches:
        """The examples (all if `some` is None) for a model, with progress under one name."""
        progress = self.progress(activity)
        return Batches(self.dataset, inputs, self.device, size or self.batch_size, progress, some)

    def new_model(self, config: RunConfig, seed: int | None = None) -> nn.Module:
        """The run's model on the device, with random weights of its seed or another."""
        model = build_model(
            self.own_model or config.model,
            num_classes=self.dataset.target.num_outputs,
            inputs=self.dataset.inputs,
            seed=model_seed(config) if seed is None else seed,
            allowed_modules=self.allowed_modules,
            adapters=config.adapters,
        )
        return lay_out(model, config.model, self.device)

    def frozen(self, config: RunConfig, model: nn.Module) -> frozenset[str]:
        """The names of theta*'s tensors that the run's learners leave frozen."""
        return frozen_names(model, config.learners.frozen)

    def frozen_at_first(self, config: RunConfig, model: nn.Module) -> frozenset[str]:
        """The names that theta*'s own training leaves frozen: adapters, if it begins at random."""
        added = adapter_names(model)
        if begins_trained(config) or not added:
            return self.frozen(config, model)
        return matching_names(model, config.learners.frozen) | added

    def beside(self, dataset: Dataset) -> InMemory:
        """A workspace of other data for the same models, on the same device."""
        return InMemory(
            dataset,
            self.device,
            allowed_modules=self.allowed_modules,
            own_model=self.own_model,
            on_progress=self.report,
        )

    def loaded_model(self, config: RunConfig, weights: BlobName) -> nn.Module:
        """The run's model with some weights, for evaluation; WeightsError if they do not fit."""
        model = self.new_model(config)
        loaded = self.read_weights(weights, model)
        if bad := unusable(loaded):
            raise WeightsError(
                f"the weights {weights.sha256[:12]} cannot be selected on: {bad}. The model has "
                "diverged: take a checkpoint from before, and lower the learning rate."
            )
        model.load_state_dict(loaded)
        return model.eval()

    def train_learner(
        self,
        config: RunConfig,
        inputs: InputFormat,
        initial: Weights,
        index: int,
        ids: Tensor,
        density: float,
    ) -> TrainedLearner:
        """Train a learner on examples of this process's data, packed as for a worker."""
        dataset, learners = self.dataset, config.learners
        task = LearnerTask.of(config, inputs, dataset.target, index=index, density=density)
        content, number = pack_shard(dataset, ids), learners.num_learners
        activity, share = f"training learner {index + 1} of {number}", 1 / number
        report = self.progress(activity, CallPart.LEARNERS, index * share, share)
        return train_learner(
            task,
            initial,
            open_shard(content, inputs, num_examples=len(ids), target=task.target),
            device=self.device,
            allowed_modules=self.allowed_modules,
            own_model=self.own_model,
            on_step=lambda step, _loss: report(step, learners.num_steps),
            should_stop=lambda: False,
            ids=ids,
        )


def model_seed(config: RunConfig) -> int:
    return derive_seed(config.seed, "model")


class InMemory(Workspace):
    """The workspace of one process: files are bytes in memory, and a user's tensors no files."""

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        *,
        allowed_modules: tuple[str, ...] = (),
        own_model: OwnModel | None = None,
        on_progress: OnProgress = lambda _activity, _done, _total: None,
    ) -> None:
        self.dataset, self.device, self.allowed_modules = dataset, device, allowed_modules
        self.own_model = own_model
        self.parts = CallParts({})
        self._on_progress = on_progress
        self._files: dict[BlobName, bytes] = {}
        self._tensors: dict[BlobName, Weights] = {}
        self._kept: dict[tuple[str, str], Any] = {}
        self._features: dict[BlobName, UserFeatures] = {}

    def report(self, activity: str, done: int, total: int) -> None:
        self._on_progress(activity, done, total)

    def put(self, content: bytes) -> BlobName:
        name = BlobName.of(content)
        self._files[name] = content
        return name

    def read(self, name: BlobName) -> bytes:
        return self._files[name]

    def put_tensors(self, tensors: Weights) -> BlobName:
        """Keep tensors as they are, under the name that their file would have."""
        name = packed_name(tensors)
        self._tensors[name] = tensors
        return name

    def user_features(self, features: BlobName) -> UserFeatures:
        # Reading checks every value, and a call asks several times.
        if features not in self._features:
            given = self._tensors.get(features)
            self._features[features] = (
                super().user_features(features)
                if given is None
                else self.by_position(features_of_tensors(given, self.dataset.num_ids))
            )
        return self._features[features]

    def probabilities(self, name: BlobName) -> Tensor:
        return self.dataset.id_mapping.by_position(self._tensors[name][PROBABILITIES])

    def find(self, key: Key[KeptT]) -> KeptT | None:
        kept: KeptT | None = self._kept.get((key.kind, repr(key.depends_on)))
        return kept

    def keep(self, key: Key[KeptT], value: KeptT) -> KeptT:
        self._kept[key.kind, repr(key.depends_on)] = value
        return value
