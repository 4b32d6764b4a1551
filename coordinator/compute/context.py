"""Job context: the data set, the model and the blobs that jobs share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.config.run_config import RunConfig
from lipt.common.data import Bearable, Dataset, open_dataset, without_quarantined
from lipt.common.data.numbering import Numbering
from lipt.common.determinism.seeding import derive_generator, derive_seed
from lipt.common.errors import LiptError, OtherDataError, WeightsError
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.stored import Stored
from lipt.common.models import build_model, lay_out
from lipt.common.models.freezing import frozen_names
from lipt.common.process.devices import resolve_device
from lipt.common.signals.batches import Batches
from lipt.common.weights.files import read_weights
from lipt.common.weights.finite import non_finite
from lipt.common.weights.specs import Weights, specs_of
from lipt.coordinator.compute.cache import SaveableT, cached
from lipt.coordinator.compute.kept_quarantine import with_kept_quarantine
from lipt.coordinator.compute.progress import Made, Progressed
from lipt.coordinator.settings import CoordinatorSettings
from lipt.core.evaluation import batch_size_for
from lipt.core.frozen_part import LearnerReader
from lipt.core.proxies.backbone import Backbone, load_backbone
from lipt.core.sharding import Split, split_validation
from lipt.core.signals.user_features import UserFeatures, read_user_features

logger = logging.getLogger(__name__)

# Tells whoever waits how far a job is, or what it has made so far.
Report = Callable[[Progressed], None]


@dataclass(frozen=True)
class Context:
    """Lives as long as the compute process; everything in it is opened when first needed.

    The data is opened again where its files have changed since.
    """

    settings: CoordinatorSettings
    send: Report

    @cached_property
    def dataset(self) -> Dataset:
        """The coordinator's data set, without what is in quarantine."""
        settings = self.settings
        opened = open_dataset(
            settings.dataset.source,
            image_size=settings.dataset.image_size,
            allowed_modules=settings.allow_modules,
            progress=self.progress(f"reading {settings.dataset.source}"),
            bearable=Bearable(settings.dataset.max_corrupt),
        )
        return without_quarantined(with_kept_quarantine(opened, settings.state_dir / "quarantine"))

    @property
    def numbering(self) -> Numbering:
        """What the ids are of the places that examples have in `dataset`."""
        return Numbering(self.dataset.quarantined)

    def require_data(self, fingerprint: str) -> None:
        """See to it that the data set is a certain one, as it lies at its source now.

        Raises:
            OtherDataError: it is another, or cannot be read any more.
        """
        source = self.settings.dataset.source
        opened = vars(self).get("dataset")
        if opened is not None and opened.has_changed():
            logger.warning("files of %s have changed: it is opened again", source)
            del vars(self)["dataset"]
        remedy = "Put the run's own data back; for other data start a coordinator anew, and a run."
        try:
            found = self.dataset.fingerprint_like(fingerprint)
        except LiptError as error:
            raise OtherDataError(
                f"{source}, which had the fingerprint {fingerprint}, cannot be read any more: "
                f"{error.problem}. {remedy}"
            ) from error
        if found != fingerprint:
            raise OtherDataError(
                f"{source} has the fingerprint {found} now, and {fingerprint} is needed. {remedy}"
            )

    def cached(
        self,
        kind: str,
        depends_on: tuple[object, ...],
        *,
        load: Callable[[Path], SaveableT],
        compute: Callable[[], SaveableT],
    ) -> SaveableT:
        """What is computed per example, kept for later jobs: see `lipt.coordinator.compute.cache`.

        Not kept where the data has changed meanwhile: of which it was made nobody knows.
        """
        dataset = self.dataset
        return cached(
            self.signals_dir,
            kind,
            self.on_data(depends_on),
            load=load,
            compute=compute,
            worth_keeping=lambda: not dataset.has_changed(),
        )

    def on_data(self, depends_on: tuple[object, ...]) -> tuple[object, ...]:
        """What something depends on, as closely bound to the data as the settings want it."""
        if self.settings.dataset.fingerprint is not FingerprintKind.FULL:
            return depends_on
        # Callers know of the sampled one, which may be that of other data as well.
        return (*depends_on, self.dataset.full_fingerprint)

    @cached_property
    def device(self) -> torch.device:
        """Where models are evaluated."""
        return resolve_device(self.settings.device)

    @cached_property
    def blobs(self) -> BlobStore:
        """The state directory's blobs, shared with the service."""
        settings = self.settings
        return BlobStore(settings.state_dir, max_blob_bytes=settings.limits.max_blob_bytes)

    @cached_property
    def backbone(self) -> Backbone | None:
        """The network that the operator has named for proxies, where there is one."""
        spec = self.settings.backbone
        return None if spec is None else load_backbone(spec, self.device)

    @property
    def signals_dir(self) -> Path:
        """Per-example signals, a cache."""
        return self.settings.state_dir / "signals"

    @property
    def own_fingerprint(self) -> str:
        """The data's, of the kind that the settings want."""
        full = self.settings.dataset.fingerprint is FingerprintKind.FULL
        return self.dataset.full_fingerprint if full else self.dataset.fingerprint

    @property
    def warm_ups_dir(self) -> Path:
        """Ordinary warm-ups and their signals, a cache."""
        return self.signals_dir / "warm-ups"

    def progress(self, activity: str) -> Callable[[int, int], None]:
        """A callback for (done, total) that reports under one name."""
        return lambda done, total: self.report(activity, done, total)

    def report(self, activity: str, done: int, total: int) -> None:
        """Say how far the job is."""
        self.send(Progressed(activity, done, total))

    def tell(self, part: object) -> None:
        """Hand over a part of the job's result before the whole is there."""
        self.send(Made("", 0, 0, part=part))

    def user_features(self, features: BlobName) -> UserFeatures:
        """What a user has uploaded for every id, of those that are in `dataset`.

        Raises:
            FeaturesError: as `read_user_features`.
        """
        numbering, dataset = self.numbering, self.dataset
        read = read_user_features(
            self.blobs.verified_path(features),
            num_examples=len(dataset) + len(dataset.quarantined),
            max_bytes=self.settings.limits.max_blob_bytes,
        )
        paired_NP = read.paired_features_NP
        return UserFeatures(
            numbering.kept(read.features_ND),
            None if paired_NP is None else numbering.kept(paired_NP),
        )

    def split(self, config: RunConfig) -> Split:
        """The run's training and validation ids; the same at every call."""
        return split_validation(self.dataset.labels_N, config.validation, seed=config.seed)

    def batch_norm_examples(self, config: RunConfig) -> Stored | None:
        """The run's training examples that batch-norm statistics are estimated on.

        The same at every call; None where the run leaves the statistics as they are.
        """
        if not config.soup.reestimate_batch_norm:
            return None
        train_ids = self.split(config).train_ids
        drawn = torch.randperm(
            len(train_ids), generator=derive_generator(config.seed, "batch norm")
        )[: config.soup.batch_norm_examples]
        return self.dataset.examples(train_ids[drawn])

    @property
    def batch_size(self) -> int:
        """Examples per forward pass."""
        return batch_size_for(self.dataset.inputs, self.device)

    def batches(
        self,
        inputs: InputFormat,
        activity: str,
        *,
        size: int | None = None,
        some: Tensor | None = None,
    ) -> Batches:
        """The examples (all where `some` is None) for a model, with progress under one name."""
        progress = self.progress(activity)
        return Batches(self.dataset, inputs, self.device, size or self.batch_size, progress, some)

    def new_model(self, config: RunConfig) -> torch.nn.Module:
        """The run's model with the random weights of its seed, on the device."""
        model = build_model(
            config.model,
            num_classes=self.dataset.target.num_outputs,
            inputs=self.dataset.inputs,
            seed=model_seed(config),
            allowed_modules=self.settings.allow_modules,
        )
        return lay_out(model, config.model, self.device)

    def read_weights(self, name: BlobName, model: torch.nn.Module) -> Weights:
        """Dense weights of a model from a blob, checked."""
        return read_weights(
            self.blobs.verified_path(name),
            like=specs_of(model.state_dict()),
            max_bytes=self.settings.limits.max_blob_bytes,
        )

    def frozen(self, config: RunConfig, model: torch.nn.Module) -> frozenset[str]:
        """The names of what the run's learners leave as it is in theta*."""
        return frozen_names(model, config.learners.frozen)

    def learner_reader(
        self, config: RunConfig, initial: BlobName, model: torch.nn.Module
    ) -> LearnerReader:
        """What opens the files of the run's learners, as whole states of the model."""
        specs, frozen = specs_of(model.state_dict()), self.frozen(config, model)
        weights = self.read_weights(initial, model) if frozen else {}
        return LearnerReader.of(specs, weights, frozen)

    def loaded_model(self, config: RunConfig, weights: BlobName) -> torch.nn.Module:
        """The run's model with weights from a blob, on the device, in evaluation mode.

        Raises:
            WeightsError: they are another model's, or not finite.
        """
        model = self.new_model(config)
        loaded = self.read_weights(weights, model)
        if bad := non_finite(loaded):
            raise WeightsError(
                f"the weights {weights.sha256[:12]} cannot be selected on: {bad}. The model that "
                "they were taken from has diverged. Go back to a checkpoint from before it "
                "diverged, and train on with a lower learning rate."
            )
        model.load_state_dict(loaded)
        return model.eval()


def model_seed(config: RunConfig) -> int:
    """The seed that a run's model is built with."""
    return derive_seed(config.seed, "model")
