"""Proxied signals: those of a ridge head on a proxy's features, computed once, kept on disk.

Errors are the calibrated softmax of leave-one-out outputs minus one-hot, or the outputs' residuals
for labels and numbers. With surely wrong labels, a second head is fitted to the confident ones.
Each kind of features has one extractor for samples and for all data.

Shapes: N examples, B of a block, M of a sample, C classes, D features, L learners of W features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.data import Dataset
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.images.formats import mild_augmentation
from lipt.common.inputs.model_input import Stored, columns_in, images_in, to_model_input
from lipt.common.inputs.specs import ColumnsSpec, ImageSpec, InputFormat
from lipt.common.signals import row_blocks
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.diagnosis.label_errors import (
    find_label_errors,
    label_confidence,
    second_head_helps,
)
from lipt.core.evaluation import OpenWeights
from lipt.core.proxies.features import (
    Extractor,
    concatenated_features,
    fold_batch_norm,
    model_bank,
)
from lipt.core.proxies.proxy import (
    MAX_SAMPLE,
    FeatureKind,
    Proxy,
    ProxyScore,
    can_win,
    candidates,
    choose,
    passes_of,
)
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    class_weights,
    fit_inverse_temperature,
    float64_blocks,
    fullness,
    leave_one_out,
    scaling_of,
)
from lipt.core.proxies.untrained import column_values, draw_filters, is_projected, patch_features
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import STORAGE_LIMITS, Signals, required, unlabelled
from lipt.core.stages.question import Sources
from lipt.core.stages.warm_up import own_learners
from lipt.core.workspace import Key, Workspace

# Patches are drawn from this many images.
_IMAGES_FOR_FILTERS = 5_000
# A head on this many images, of 28 pixels or more, tests whether mirroring keeps their class.
_IMAGES_TO_MIRROR = 1_000
_EXAMPLES_FOR_MEANS = 1_000
# Accuracy on the sample above which the first proxy is fitted to all examples.
_EASY = 0.95

Kinds = tuple[FeatureKind, ...]


def proxied_signals(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """Signals of a ridge head on the proxy's features, with facts for a manifest.

    ProxyError or FeaturesError if features are unavailable; SignalsError if not finite.
    """
    return _kept("proxy", _Features(workspace, sources, proxy, labelled=True), _with_heads)


def sample_signals(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """Signals of a head on the best features of a sample, and their facts."""
    return _kept("proxy-sample", _Features(workspace, sources, proxy, labelled=True), _of_sample)


def proxied_features(workspace: Workspace, sources: Sources, proxy: Proxy) -> Signals:
    """The proxy's features without labels or errors; all examples are of one class."""
    features = _Features(workspace, sources, proxy, labelled=False)
    return _kept("proxy-features", features, _without_labels)


def _kept(kind: str, features: _Features, compute: Callable[[_Features], Signals]) -> Signals:
    features.require()
    workspace, sources, proxy = features.workspace, features.sources, features.proxy
    config, soup = sources.config, sources.config.soup
    statistics = (soup.batch_norm_examples, config.validation)
    learners = proxy.may_use(FeatureKind.LEARNERS)
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
        features.backbone_identity if proxy.may_use(FeatureKind.BACKBONE) else None,
    )
    if sources.initial is not None:
        began = config.initialization.weights_sha256
        depends_on += (sources.initial, began, config.model, sources.inputs, statistics, soup)
    with computation(config.evaluation_threads):
        return workspace.cached(Key(Signals, kind, depends_on), lambda: compute(features))


def _with_heads(features: _Features) -> Signals:
    started, dataset = monotonic(), features.workspace.dataset
    labels_N, targets = dataset.labels_N, HeadTargets.of(dataset)
    kinds, features_ND, head, tried = _chosen(features)
    facts = {
        **features.facts(kinds, features_ND),
        "accuracy": head.accuracy,
        "penalty": head.penalty,
        "tried": [one.facts for one in tried],
    }
    if targets is not None:
        # Strata are no classes: every example counts alike.
        _scale(features_ND, torch.zeros_like(labels_N))
        errors_NC = _errors(head.outputs_NC, targets.errors)
        kind = targets.target.kind
        facts |= {"score": kind.score_name, "seconds": monotonic() - started}
        return Signals(errors_NC, features_ND, labels_N, kind=kind, facts=facts)
    errors_NC, inverse_temperature = _calibrated_errors(head, labels_N, class_weights(labels_N))
    _scale(features_ND, labels_N)
    signals = Signals(errors_NC, features_ND, labels_N)
    confidence_N = label_confidence(find_label_errors(signals), labels_N)
    signals = replace(signals, confidence_N=confidence_N)
    if confidence_N is not None and second_head_helps(labels_N, features_ND.shape[1]):
        activity = "fitting a second head, to confident labels"
        second = features.head(features_ND, activity, confidence_N=confidence_N)
        weights_N = class_weights(labels_N, confidence_N)
        second_NC, second_inverse_temperature = _calibrated_errors(second, labels_N, weights_N)
        signals = replace(signals, second_errors_NC=second_NC)
        facts["second"] = {
            "accuracy": second.accuracy,
            "inverse_temperature": second_inverse_temperature,
        }
    facts |= {
        "chance": float(1 / fullness(labels_N.bincount()).sum()),
        "inverse_temperature": inverse_temperature,
        "suspected": 0 if confidence_N is None else int((confidence_N < 1).sum()),
        "seconds": monotonic() - started,
    }
    return replace(signals, facts=facts)


def _of_sample(features: _Features) -> Signals:
    ids_M, activity = features.sample(), "looking at a sample"
    sample, heads, tried = (
        _Parts(features, ids_M, {}),
        dict[Kinds, LeaveOneOut](),
        list[ProxyScore](),
    )
    for kinds in candidates(features.available):
        if can_win(passes := passes_of(kinds, 0), tried):
            heads[kinds] = features.head(sample.of(kinds, activity), activity, some=ids_M)
            tried.append(ProxyScore(kinds, heads[kinds].accuracy, passes))
    best, targets = choose(tried), HeadTargets.of(features.workspace.dataset)
    outputs_MC = heads[best.features].outputs_NC
    labels_M = features.workspace.dataset.labels_N[ids_M]
    if targets is None:
        errors_MC, _ = _calibrated_errors(heads[best.features], labels_M, class_weights(labels_M))
    else:
        errors_MC = _errors(outputs_MC, targets.take(ids_M).errors)
    facts = {"features": "+".join(best.features), "accuracy": best.accuracy}
    kind = features.workspace.dataset.target.kind
    features_MD = sample.of(best.features, activity)
    return Signals(errors_MC, features_MD, labels_M, kind=kind, facts=facts)


def _without_labels(features: _Features) -> Signals:
    started, kinds = monotonic(), required(features.proxy.features, "features")
    features_ND = features.of_all(kinds)
    signals = unlabelled(len(features_ND))
    _scale(features_ND, signals.labels_N)
    facts = {**features.facts(kinds, features_ND), "seconds": monotonic() - started}
    return replace(signals, features_ND=features_ND, facts=facts)


def _chosen(features: _Features) -> tuple[Kinds, Tensor, LeaveOneOut, list[ProxyScore]]:
    """The proxy's features, or the best's, their head, and the proxies tried."""
    wanted, num_examples = features.proxy.features, len(features.workspace.dataset)
    possible = candidates(features.available) if wanted is None else [wanted]
    first, tried = possible[0], list[ProxyScore]()
    # Features and heads of all examples.
    fitted = dict[Kinds, tuple[Tensor, LeaveOneOut]]()

    def scored(kinds: Kinds, head: LeaveOneOut) -> ProxyScore:
        return ProxyScore(kinds, head.accuracy, passes_of(kinds, features.sources.num_learners))

    def of_all(kinds: Kinds) -> tuple[Tensor, LeaveOneOut]:
        features_ND = features.of_all(kinds)
        return features_ND, features.head(features_ND, "fitting a ridge head")

    ids_M, activity = features.sample(), "trying proxies on a sample"
    sample = _Parts(features, ids_M, {})
    for kinds in possible if len(possible) > 1 else ():
        known = [*tried, *(scored(one, head) for one, (_, head) in fitted.items())]
        if not can_win(passes_of(kinds, features.sources.num_learners), known):
            continue
        features_MD = sample.of(kinds, activity)
        head = features.head(features_MD, activity, some=ids_M)
        tried.append(scored(kinds, head))
        if len(ids_M) == num_examples:
            fitted[kinds] = features_MD, head
        elif kinds == first and head.accuracy > _EASY:
            # With all examples it may leave too few errors for others to pay.
            fitted[first] = of_all(first)
    best = choose(tried).features if tried else first
    # Otherwise only the best on the sample is fitted to all examples.
    features_ND, head = fitted[best] if best in fitted else of_all(best)
    return best, features_ND, head, tried


@dataclass(frozen=True)
class _Parts:
    """Each kind of features of some examples, computed once."""

    features: _Features
    ids_M: Tensor
    parts: dict[FeatureKind, Tensor]

    def of(self, kinds: Kinds, activity: str) -> Tensor:
        for kind in kinds:
            if kind not in self.parts:
                self.parts[kind] = self.features.of((kind,), self.ids_M, activity)
        return torch.cat([self.parts[kind] for kind in kinds], dim=1)


def _calibrated_errors(
    head: LeaveOneOut, labels_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, float]:
    inverse_temperature = fit_inverse_temperature(head.outputs_NC, labels_N, weights_N)

    def errors(outputs_BC: Tensor, rows: slice) -> Tensor:
        return errors_of(outputs_BC.double() * inverse_temperature, labels_N[rows])

    return _errors(head.outputs_NC, errors), inverse_temperature


def _errors(outputs_NC: Tensor, errors: Callable[[Tensor, slice], Tensor]) -> Tensor:
    dtype = STORAGE_LIMITS.error_dtype(outputs_NC.numel())
    errors_NC = torch.empty(outputs_NC.shape, dtype=dtype)
    for rows in row_blocks(len(outputs_NC), 8 * outputs_NC.shape[1]):
        errors_NC[rows] = errors(outputs_NC[rows], rows).to(dtype)
    return errors_NC


def _scale(features_ND: Tensor, labels_N: Tensor) -> None:
    scaling = scaling_of(features_ND, class_weights(labels_N))
    for rows, block_BD in float64_blocks(features_ND):
        features_ND[rows] = scaling.apply_(block_BD)


def _projects(dataset: Dataset) -> bool:
    rows = _column_rows(dataset)
    return any(is_projected(column, rows.tensors[column.name]) for column in rows.columns)


def _column_rows(dataset: Dataset) -> ColumnRows:
    if not isinstance(dataset.rows, ColumnRows):
        raise TypeError(f"{dataset.inputs} in place of columns")
    return dataset.rows


class _Features:
    """The features available to a proxy, and heads on them."""

    def __init__(
        self, workspace: Workspace, sources: Sources, proxy: Proxy, *, labelled: bool
    ) -> None:
        self.workspace, self.sources, self.proxy = workspace, sources, proxy
        self._labelled = labelled
        self._made: dict[FeatureKind, Extractor] = {}

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

    @property
    def backbone_identity(self) -> str | None:
        """The backbone's name and content hash, if there is one."""
        backbone = self.workspace.backbone
        return backbone.identity if backbone is not None else None

    def facts(self, kinds: Kinds, features_ND: Tensor) -> dict[str, Any]:
        return {
            "proxy": str(self.proxy),
            "features": "+".join(kinds),
            "num_features": features_ND.shape[1],
            # Whether the seed drew filters or projections.
            "drawn": FeatureKind.PATCHES in self._made
            or (FeatureKind.COLUMNS in self._made and _projects(self.workspace.dataset)),
        }

    def sample(self) -> Tensor:
        """Ids of the examples that proxies are compared on, ascending."""
        generator = derive_generator(self.sources.config.seed, "proxy sample")
        drawn_N = torch.randperm(len(self.workspace.dataset), generator=generator)
        return drawn_N[:MAX_SAMPLE].sort().values

    def of_all(self, kinds: Kinds) -> Tensor:
        every_N = torch.arange(len(self.workspace.dataset))
        return self.of(kinds, every_N, f"computing features ({'+'.join(kinds)})")

    def of(self, kinds: Kinds, ids_N: Tensor, activity: str) -> Tensor:
        """Features of some examples, side by side."""
        for kind in kinds:
            if kind not in self._made:
                self._made[kind] = self._extractor(kind)
        return concatenated_features(
            [self._made[kind] for kind in kinds],
            self.workspace.dataset,
            ids_N,
            on_progress=self.workspace.progress(activity),
        )

    def head(
        self,
        features_ND: Tensor,
        activity: str,
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
            on_progress=self.workspace.progress(activity),
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
        dataset, device = self.workspace.dataset, self.workspace.device
        generator = derive_generator(self.sources.config.seed, "patches")
        drawn = torch.randperm(len(dataset), generator=generator)[:_IMAGES_FOR_FILTERS]
        filters = draw_filters(dataset.images(drawn.sort().values), generator=generator).to(device)

        def of(images_BCHW: Tensor, *, mirrored: bool) -> Tensor:
            return patch_features(images_BCHW.to(device), filters, mirrored=mirrored).cpu()

        mirrored, inputs = False, dataset.inputs
        if not isinstance(inputs, ImageSpec):
            raise TypeError(f"patches of {inputs}")
        if self._labelled and mild_augmentation(inputs.shape)[0]:
            ids_M = drawn[:_IMAGES_TO_MIRROR].sort().values
            images_MCHW = dataset.images(ids_M)
            plain, averaged = (
                self.head(of(images_MCHW, mirrored=way), "trying mirror images", some=ids_M)
                for way in (False, True)
            )
            mirrored = averaged.accuracy > plain.accuracy
        return lambda _, stored_B: of(images_in(stored_B), mirrored=mirrored)

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
