"""Kinds of features: what each needs, what it depends on, and its extractor.

A provider states its missing input, its identity (all that its features depend on, besides the
data, the seed, the threads and the device), and how its features are computed. Results that depend
on several kinds have their identities as key. Prices in passes are in `lipt.core.proxies.proxy`.

Shapes: N examples, B of a block, M of a sample, D features, L learners of W features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.determinism import derive_generator
from lipt.common.requests import FeatureKind
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.kept_values import Key
from lipt.core.pretraining.evaluation import OpenWeights
from lipt.core.progress import CallPart
from lipt.core.proxies.features import Extractor, fold_batch_norm, model_bank
from lipt.core.proxies.untrained import (
    PatchFilters,
    column_values,
    draw_filters,
    is_projected,
    patch_features,
)
from lipt.core.signals.signals import required
from lipt.core.stages.resolve import Sources
from lipt.core.stages.warm_up import own_learners
from lipt.core.workspace import Workspace
from lipt.data.dataset import Dataset
from lipt.data.images.formats import mild_augmentation
from lipt.data.inputs.model_input import Stored, columns_in, images_in, to_model_input
from lipt.data.inputs.specs import ColumnsSpec, ImageSpec
from lipt.data.inputs.standardization import cut, figures_of
from lipt.data.sources.rows import ColumnRows

# Patches are drawn from this many images.
_IMAGES_FOR_FILTERS = 5_000
# A head on this many images, of 28 pixels or more, tests whether mirroring keeps their class.
_IMAGES_TO_MIRROR = 1_000
_EXAMPLES_FOR_MEANS = 1_000

# Called with the amount done, and the total.
OnDone = Callable[[int, int], None]
# The leave-one-out accuracy of a head on features of some examples, by id.
Accuracy = Callable[[Tensor, Tensor, OnDone], float]


@dataclass(frozen=True)
class FeatureProvider(ABC):
    """A kind of features; `accuracy` is None where labels may not be used."""

    workspace: Workspace
    sources: Sources
    accuracy: Accuracy | None

    @property
    @abstractmethod
    def missing(self) -> str | None:
        """The missing input, as a noun; None if its features are available."""

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """All that its features depend on besides the data, the seed, threads and device."""

    @abstractmethod
    def extract(self) -> Extractor:
        """An extractor, the same for samples and for all data."""

    @property
    def is_drawn(self) -> bool:
        """Whether the seed draws filters or projections."""
        return False

    def bank(
        self, model: nn.Module, loaders: Sequence[OpenWeights], batch_norm_examples_M: Stored | None
    ) -> Extractor:
        """Features of a model with each of some weights, side by side."""
        config, workspace = self.sources.config, self.workspace
        bank = model_bank(
            model,
            loaders,
            self.sources.model[0],
            workspace.device,
            batch_size=workspace.batch_size,
            batch_norm_examples_M=batch_norm_examples_M,
            seed=config.seed,
            frozen=workspace.frozen(config, model),
        )
        return lambda _, stored_B: bank(stored_B)

    def of_one_model(self, name: BlobName, batch_norm_examples_M: Stored | None) -> Extractor:
        """Features of a model with its own batch-norm statistics, if no examples are given."""
        workspace, config = self.workspace, self.sources.config
        model = workspace.loaded_model(config, name)
        if batch_norm_examples_M is None:
            stored_B = workspace.dataset.examples(
                torch.arange(min(len(workspace.dataset), workspace.batch_size))
            )
            inputs_B = to_model_input(stored_B, self.sources.model[0], workspace.device)
            model = fold_batch_norm(model, workspace.loaded_model(config, name), inputs_B)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return self.bank(model, [lambda: weights], batch_norm_examples_M)


class UsersFeatures(FeatureProvider):
    """The request's own, cut at 10 deviations."""

    @property
    def missing(self) -> str | None:
        given = self.sources.features is not None
        return None if given else "features in the request: --features FILE"

    def identity(self) -> tuple[object, ...]:
        return (self.sources.features,)

    def extract(self) -> Extractor:
        name = required(self.sources.features, "features")
        features_ND = self.workspace.user_features(name).features_ND
        # As a table's columns: one broken row would hide all other differences.
        figures = figures_of(features_ND)
        return lambda ids_B, _: cut(features_ND[ids_B], *figures)


class PatchesFeatures(FeatureProvider):
    """Whitened random patches of pictures."""

    @property
    def missing(self) -> str | None:
        inputs = self.workspace.dataset.inputs
        return None if are_pictures(inputs) else f"pictures, and the data has {inputs}"

    def identity(self) -> tuple[object, ...]:
        return (self.accuracy is not None,)

    @property
    def is_drawn(self) -> bool:
        return True

    def extract(self) -> Extractor:
        workspace = self.workspace
        depends_on = (*common_identity(workspace, self.sources), *self.identity())
        key = Key(PatchFilters, "patch-filters", depends_on)
        filters = workspace.cached(key, self._filters).to(workspace.device)
        return lambda _, stored_B: self._patches_of(images_in(stored_B), filters)

    def _patches_of(self, images_BCHW: Tensor, filters: PatchFilters) -> Tensor:
        return patch_features(images_BCHW.to(self.workspace.device), filters).cpu()

    def _filters(self) -> PatchFilters:
        dataset, device = self.workspace.dataset, self.workspace.device
        generator = derive_generator(self.sources.config.seed, "patches")
        drawn = torch.randperm(len(dataset), generator=generator)[:_IMAGES_FOR_FILTERS]
        filters = draw_filters(dataset.images(drawn.sort().values), generator=generator)
        inputs = dataset.inputs
        if not isinstance(inputs, ImageSpec):
            raise TypeError(f"patches of {inputs}")
        if self.accuracy is None or not mild_augmentation(inputs.shape)[0]:
            return filters
        ids_M = drawn[:_IMAGES_TO_MIRROR].sort().values
        images_MCHW = dataset.images(ids_M)
        ways = [replace(filters, mirrored=way) for way in (False, True)]
        parts = consecutive_parts(
            self.workspace.progress("trying mirror images", CallPart.FILTERS), len(ways), len(ids_M)
        )
        plain, averaged = (
            self.accuracy(self._patches_of(images_MCHW, way.to(device)), ids_M, part)
            for way, part in zip(ways, parts, strict=True)
        )
        return ways[averaged > plain]


class ColumnsFeatures(FeatureProvider):
    """The values of examples that are no images."""

    @property
    def missing(self) -> str | None:
        inputs = self.workspace.dataset.inputs
        is_there = isinstance(inputs, ColumnsSpec)
        return None if is_there else f"columns, and the data has {inputs}"

    def identity(self) -> tuple[object, ...]:
        return ()

    @property
    def is_drawn(self) -> bool:
        rows = _column_rows(self.workspace.dataset)
        return any(is_projected(column, rows.tensors[column.name]) for column in rows.columns)

    def extract(self) -> Extractor:
        rows = _column_rows(self.workspace.dataset)
        extract = column_values(rows.columns, rows.tensors, seed=self.sources.config.seed)
        return lambda _, stored_B: extract(columns_in(stored_B))


class SoupFeatures(FeatureProvider):
    """Those of theta_p, or of the request's weights."""

    @property
    def missing(self) -> str | None:
        return None if self.sources.weights is not None else "a run"

    def identity(self) -> tuple[object, ...]:
        sources = self.sources
        return sources.weights, sources.config.network, sources.inputs

    def extract(self) -> Extractor:
        return self.of_one_model(required(self.sources.weights, "weights"), None)


class InitialFeatures(FeatureProvider):
    """Those of theta*."""

    @property
    def missing(self) -> str | None:
        return None if self.sources.initial is not None else "a run"

    def identity(self) -> tuple[object, ...]:
        sources, config = self.sources, self.sources.config
        began = config.initialization.weights_sha256
        return (
            sources.initial,
            began,
            config.network,
            sources.inputs,
            config.validation,
            config.soup,
        )

    def extract(self) -> Extractor:
        # Statistics of random weights carry no information. For a trained backbone on other
        # classes, its own statistics are better than an estimate from the run's images (82.9% and
        # 80.7%).
        config = self.sources.config
        trained = config.initialization.weights_sha256 is not None
        examples_M = None if trained else self.workspace.batch_norm_examples(config)
        return self.of_one_model(required(self.sources.initial, "theta*"), examples_M)


class LearnersFeatures(FeatureProvider):
    """Those of every learner, side by side."""

    @property
    def missing(self) -> str | None:
        return None if self.sources.num_learners else "a run's own theta_p: no other `weights`"

    def identity(self) -> tuple[object, ...]:
        sources, config = self.sources, self.sources.config
        # Learners and split decide which learner was trained on which examples.
        drawn = (config.learners, config.validation)
        soup = config.soup
        statistics = soup.batch_norm_examples if soup.reestimate_batch_norm else None
        return sources.trajectories, config.network, sources.inputs, drawn, statistics

    def extract(self) -> Extractor:
        config, workspace = self.sources.config, self.workspace
        model = workspace.new_model(config)
        trajectories = required(self.sources.trajectories, "learners")
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        loaders = [partial(read, learner.result) for learner in trajectories.learners]
        bank = self.bank(model, loaders, workspace.batch_norm_examples(config))
        own_learner_N = own_learners(workspace, config, trajectories).long()
        # A learner's features of its own shard depend on the labels there, so their mean over
        # validation examples replaces them: the head's outputs stay held out.
        ids_M = workspace.split(config).validation_ids[:_EXAMPLES_FOR_MEANS]
        mean_D = bank(ids_M, workspace.dataset.examples(ids_M)).mean(dim=0)
        mean_LW = mean_D.view(len(loaders), -1)

        def of_others(ids_B: Tensor, stored_B: Stored) -> Tensor:
            features_BLW = bank(ids_B, stored_B).view(len(ids_B), *mean_LW.shape)
            own_B = own_learner_N[ids_B]
            rows = torch.nonzero(own_B >= 0).flatten()
            features_BLW[rows, own_B[rows]] = mean_LW[own_B[rows]]
            return features_BLW.flatten(start_dim=1)

        return of_others


class BackboneFeatures(FeatureProvider):
    """Those of the operator's network."""

    @property
    def missing(self) -> str | None:
        inputs = self.workspace.dataset.inputs
        is_there = self.workspace.has_backbone and isinstance(inputs, ImageSpec)
        return None if is_there else "images, and a coordinator started with --backbone"

    def identity(self) -> tuple[object, ...]:
        # Its name and content hash.
        backbone = self.workspace.backbone
        return (None if backbone is None else backbone.identity,)

    def extract(self) -> Extractor:
        backbone, size = required(self.workspace.backbone, "backbone"), self.workspace.batch_size
        return lambda _, stored_B: torch.cat(
            [backbone(part) for part in torch.split(images_in(stored_B), size)]
        )


PROVIDERS: Mapping[FeatureKind, type[FeatureProvider]] = {
    FeatureKind.USER: UsersFeatures,
    FeatureKind.PATCHES: PatchesFeatures,
    FeatureKind.COLUMNS: ColumnsFeatures,
    FeatureKind.SOUP: SoupFeatures,
    FeatureKind.INITIAL: InitialFeatures,
    FeatureKind.LEARNERS: LearnersFeatures,
    FeatureKind.BACKBONE: BackboneFeatures,
}


def common_identity(workspace: Workspace, sources: Sources) -> tuple[object, ...]:
    """Inputs of features of every kind."""
    config = sources.config
    return (
        config.seed,
        workspace.dataset.fingerprint,
        config.evaluation_threads,
        str(workspace.device),
    )


def consecutive_parts(report: OnDone, number: int, num_examples: int) -> list[OnDone]:
    """Progress of consecutive parts of one activity, each of which visits the examples once."""

    def of_part(before: int, done: int, total: int) -> None:
        report((before * total + done) * num_examples // total, number * num_examples)

    return [partial(of_part, before) for before in range(number)]


def _column_rows(dataset: Dataset) -> ColumnRows:
    if not isinstance(dataset.rows, ColumnRows):
        raise TypeError(f"{dataset.inputs} in place of columns")
    return dataset.rows
