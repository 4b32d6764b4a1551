"""Features of a proxy: what is available, one extractor of each kind, and heads on them.

An extractor is the same for samples and for all data.

Shapes: N examples, B of a block, M of a sample, D features, L learners of W features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.requests import FeatureKind, Proxy
from lipt.common.tensor_files import KeptValue
from lipt.core.call_parts import CallPart
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.pretraining.evaluation import OpenWeights
from lipt.core.proxies.features import (
    Extractor,
    concatenated_features,
    fold_batch_norm,
    model_bank,
)
from lipt.core.proxies.proxy import MAX_SAMPLE
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    leave_one_out,
)
from lipt.core.proxies.untrained import (
    PatchFilters,
    column_values,
    draw_filters,
    is_projected,
    patch_features,
)
from lipt.core.signals.signals import required
from lipt.core.stages.request import TRAINED_FEATURES, Sources
from lipt.core.stages.warm_up import own_learners
from lipt.core.workspace import Key, Workspace
from lipt.data.dataset import Dataset
from lipt.data.images.formats import mild_augmentation
from lipt.data.inputs.model_input import Stored, columns_in, images_in, to_model_input
from lipt.data.inputs.specs import ColumnsSpec, ImageSpec, InputFormat
from lipt.data.sources.rows import ColumnRows

# Patches are drawn from this many images.
_IMAGES_FOR_FILTERS = 5_000
# A head on this many images, of 28 pixels or more, tests whether mirroring keeps their class.
_IMAGES_TO_MIRROR = 1_000
_EXAMPLES_FOR_MEANS = 1_000

Kinds = tuple[FeatureKind, ...]
# Called with the amount done, and the total.
OnDone = Callable[[int, int], None]


class ProxyFeatures:
    """The features available to a proxy, and heads on them."""

    def __init__(
        self, workspace: Workspace, sources: Sources, proxy: Proxy, *, labelled: bool
    ) -> None:
        self.workspace, self.sources, self.proxy = workspace, sources, proxy
        self._labelled = labelled
        self._made: dict[FeatureKind, Extractor] = {}
        self._used = set[FeatureKind]()

    @cached_property
    def _needed(self) -> Mapping[FeatureKind, str]:
        """Unavailable kinds of features, and their missing inputs."""
        sources, inputs = self.sources, self.workspace.dataset.inputs
        of_images = self.workspace.has_backbone and isinstance(inputs, ImageSpec)
        kinds = [
            (
                FeatureKind.USER,
                sources.features is not None,
                "features in the request: --features FILE",
            ),
            (FeatureKind.PATCHES, are_pictures(inputs), f"pictures, and the data has {inputs}"),
            (
                FeatureKind.COLUMNS,
                isinstance(inputs, ColumnsSpec),
                f"columns, and the data has {inputs}",
            ),
            (FeatureKind.SOUP, sources.weights is not None, "a run"),
            (FeatureKind.INITIAL, sources.initial is not None, "a run"),
            (
                FeatureKind.LEARNERS,
                sources.num_learners > 0,
                "a run's own theta_p: no other `weights`",
            ),
            (FeatureKind.BACKBONE, of_images, "images, and a coordinator started with --backbone"),
        ]
        return {kind: need for kind, is_there, need in kinds if not is_there}

    @property
    def available(self) -> frozenset[FeatureKind]:
        return frozenset(set(FeatureKind) - self._needed.keys())

    def require(self) -> None:
        for kind in self.proxy.features or ():
            if kind in self._needed:
                raise ProxyError(
                    f"the proxy {self.proxy} is unavailable: `{kind}` needs {self._needed[kind]}. "
                    f"Give what is needed, or leave `{kind}` out."
                )

    def depends_on(self, proxy: Proxy) -> tuple[object, ...]:
        """All that a head on a proxy's features depends on."""
        workspace, sources, config = self.workspace, self.sources, self.sources.config
        soup, learners = config.soup, proxy.may_use(FeatureKind.LEARNERS)
        statistics = (soup.batch_norm_examples, config.validation)
        backbone = workspace.backbone if proxy.may_use(FeatureKind.BACKBONE) else None
        depends_on: tuple[object, ...] = (
            str(proxy),
            config.seed,
            workspace.dataset.fingerprint,
            config.evaluation_threads,
            str(workspace.device),
            (sources.weights, config.model, sources.inputs)
            if proxy.may_use(FeatureKind.SOUP) or learners
            else None,
            (
                sources.trajectories,
                # They decide which learner was trained on which examples.
                (config.learners, config.validation),
                statistics if soup.reestimate_batch_norm else None,
            )
            if learners
            else None,
            sources.features if proxy.may_use(FeatureKind.USER) else None,
            # Its name and content hash.
            None if backbone is None else backbone.identity,
        )
        if sources.initial is not None:
            began = config.initialization.weights_sha256
            depends_on += (sources.initial, began, config.model, sources.inputs, statistics, soup)
        return depends_on

    def facts(self, kinds: Kinds, features_ND: Tensor) -> dict[str, Any]:
        return {
            "proxy": str(self.proxy),
            "features": list(kinds),
            "num_features": features_ND.shape[1],
            # Whether the seed drew filters or projections.
            "drawn": FeatureKind.PATCHES in self._used
            or (FeatureKind.COLUMNS in self._used and _projects(self.workspace.dataset)),
        }

    def use(self, kinds: Kinds) -> None:
        """Record that a result depends on features of these kinds."""
        self._used.update(kinds)

    def of_all(self, kinds: Kinds) -> Tensor:
        every_N = torch.arange(len(self.workspace.dataset))
        activity = f"computing features ({'+'.join(kinds)})"
        return self.of(kinds, every_N, self.workspace.progress(activity, CallPart.FEATURES))

    def of(self, kinds: Kinds, ids_N: Tensor, on_progress: OnDone) -> Tensor:
        """Features of some examples, side by side."""
        self.use(kinds)
        for kind in kinds:
            if kind not in self._made:
                self._made[kind] = self._extractor(kind)
        return concatenated_features(
            [self._made[kind] for kind in kinds],
            self.workspace.dataset,
            ids_N,
            on_progress=on_progress,
        )

    def head(
        self,
        features_ND: Tensor,
        on_progress: OnDone,
        *,
        some: Tensor | None = None,
        confidence_N: Tensor | None = None,
    ) -> LeaveOneOut:
        """A ridge head on the features of all examples, or of some."""
        device, dataset = self.workspace.device, self.workspace.dataset
        ids_N = torch.arange(len(dataset)) if some is None else some
        wanted = HeadTargets.of(dataset)
        head = leave_one_out(
            features_ND.to(device),
            dataset.labels_N[ids_N].to(device),
            len(dataset.class_names),
            generator=derive_generator(self.sources.config.seed, "ridge sample"),
            confidence_N=None if confidence_N is None else confidence_N.to(device),
            wanted=None if wanted is None else wanted.take(ids_N, device),
            on_progress=on_progress,
        )
        return replace(head, outputs_NC=head.outputs_NC.cpu())

    def _extractor(self, kind: FeatureKind) -> Extractor:
        sources, workspace = self.sources, self.workspace
        match kind:
            case FeatureKind.USER:
                name = required(sources.features, "features")
                features_ND = workspace.user_features(name).features_ND
                return lambda ids_B, _: features_ND[ids_B].float()
            case FeatureKind.PATCHES:
                return self._patches()
            case FeatureKind.COLUMNS:
                return self._columns()
            case FeatureKind.SOUP:
                return self._of_one_model(required(sources.weights, "weights"), None)
            case FeatureKind.INITIAL:
                # Statistics of random weights carry no information. For a trained backbone on other
                # classes, its own statistics are better than an estimate from the run's images
                # (82.9% and 80.7%).
                trained = sources.config.initialization.weights_sha256 is not None
                examples_M = None if trained else workspace.batch_norm_examples(sources.config)
                return self._of_one_model(required(sources.initial, "theta*"), examples_M)
            case FeatureKind.LEARNERS:
                return self._learners()
            case FeatureKind.BACKBONE:
                backbone, size = required(workspace.backbone, "backbone"), workspace.batch_size
                return lambda _, stored_B: torch.cat(
                    [backbone(part) for part in torch.split(images_in(stored_B), size)]
                )

    def _patches(self) -> Extractor:
        depends_on = (*self.depends_on(Proxy((FeatureKind.PATCHES,))), self._labelled)
        key = Key(PatchFilters, "patch-filters", depends_on)
        filters = self.workspace.cached(key, self._filters).to(self.workspace.device)
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
        if not self._labelled or not mild_augmentation(inputs.shape)[0]:
            return filters
        ids_M = drawn[:_IMAGES_TO_MIRROR].sort().values
        images_MCHW = dataset.images(ids_M)
        ways = [replace(filters, mirrored=way) for way in (False, True)]
        parts = _parts(
            self.workspace.progress("trying mirror images", CallPart.FILTERS), len(ways), len(ids_M)
        )
        plain, averaged = (
            self.head(self._patches_of(images_MCHW, way.to(device)), part, some=ids_M)
            for way, part in zip(ways, parts, strict=True)
        )
        return ways[averaged.accuracy > plain.accuracy]

    def _columns(self) -> Extractor:
        rows = _column_rows(self.workspace.dataset)
        extract = column_values(rows.columns, rows.tensors, seed=self.sources.config.seed)
        return lambda _, stored_B: extract(columns_in(stored_B))

    def _of_one_model(self, name: BlobName, batch_norm_examples_M: Stored | None) -> Extractor:
        workspace, config = self.workspace, self.sources.config
        model = workspace.loaded_model(config, name)
        if batch_norm_examples_M is None:
            stored_B = workspace.dataset.examples(
                torch.arange(min(len(workspace.dataset), workspace.batch_size))
            )
            inputs_B = to_model_input(stored_B, self._inputs, workspace.device)
            model = fold_batch_norm(model, workspace.loaded_model(config, name), inputs_B)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return self._bank(model, [lambda: weights], batch_norm_examples_M)

    def _learners(self) -> Extractor:
        config, workspace = self.sources.config, self.workspace
        model = workspace.new_model(config)
        trajectories = required(self.sources.trajectories, "learners")
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        loaders = [partial(read, learner.result) for learner in trajectories.learners]
        bank = self._bank(model, loaders, workspace.batch_norm_examples(config))
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

    @property
    def _inputs(self) -> InputFormat:
        if self.sources.inputs is None:
            raise ValueError("features of models were asked for without a run")
        return self.sources.inputs

    def _bank(
        self, model: nn.Module, loaders: Sequence[OpenWeights], batch_norm_examples_M: Stored | None
    ) -> Extractor:
        config, workspace = self.sources.config, self.workspace
        bank = model_bank(
            model,
            loaders,
            self._inputs,
            workspace.device,
            batch_size=workspace.batch_size,
            batch_norm_examples_M=batch_norm_examples_M,
            seed=config.seed,
            frozen=workspace.frozen(config, model),
        )
        return lambda _, stored_B: bank(stored_B)


def _parts(report: OnDone, number: int, num_examples: int) -> list[OnDone]:
    """Progress of consecutive parts of one activity, each of which visits the examples once."""

    def of_part(before: int, done: int, total: int) -> None:
        report((before * total + done) * num_examples // total, number * num_examples)

    return [partial(of_part, before) for before in range(number)]


@dataclass(frozen=True)
class SampleHead(KeptValue):
    """Features of the sample, M x D, and leave-one-out outputs of a head on them, M x C."""

    features_MD: Tensor
    outputs_MC: Tensor
    accuracy: float
    penalty: float


class ProxySample:
    """The examples that proxies are compared on; each kind of their features is computed once."""

    def __init__(self, features: ProxyFeatures) -> None:
        num_examples = len(features.workspace.dataset)
        generator = derive_generator(features.sources.config.seed, "proxy sample")
        drawn_N = torch.randperm(num_examples, generator=generator)
        self.ids_M = drawn_N[:MAX_SAMPLE].sort().values
        self._features = features
        self._parts: dict[FeatureKind, Tensor] = {}

    def head(self, kinds: Kinds, activity: str, part: CallPart) -> tuple[Tensor, LeaveOneOut]:
        """The sample's features of some kinds, side by side, and a head on them.

        Without features of learners both are kept: they tell whether learners are needed, and are
        compared with these.
        """
        features = self._features
        features.use(kinds)

        def compute() -> SampleHead:
            missing = [kind for kind in kinds if kind not in self._parts]
            report = features.workspace.progress(f"{activity} ({'+'.join(kinds)})", part)
            *each, last = _parts(report, len(missing) + 1, len(self.ids_M))
            for kind, on_progress in zip(missing, each, strict=True):
                self._parts[kind] = features.of((kind,), self.ids_M, on_progress)
            features_MD = torch.cat([self._parts[kind] for kind in kinds], dim=1)
            head = features.head(features_MD, last, some=self.ids_M)
            return SampleHead(features_MD, head.outputs_NC, head.accuracy, head.penalty)

        if not set(kinds).isdisjoint(TRAINED_FEATURES):
            kept = compute()
        else:
            key = Key(SampleHead, "sample-head", features.depends_on(Proxy(kinds)))
            kept = features.workspace.cached(key, compute)
        if len(kinds) == 1:
            self._parts[kinds[0]] = kept.features_MD
        # A copy, as the caller may scale it in place.
        head = LeaveOneOut(kept.outputs_MC, kept.accuracy, kept.penalty)
        return kept.features_MD.clone(), head


def _projects(dataset: Dataset) -> bool:
    rows = _column_rows(dataset)
    return any(is_projected(column, rows.tensors[column.name]) for column in rows.columns)


def _column_rows(dataset: Dataset) -> ColumnRows:
    if not isinstance(dataset.rows, ColumnRows):
        raise TypeError(f"{dataset.inputs} in place of columns")
    return dataset.rows
