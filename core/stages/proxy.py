"""Proxied signals: those of a ridge head on a proxy's features, computed once, kept on disk.

Errors are the calibrated softmax of leave-one-out outputs minus one-hot, features the scaled ones
of the proxy. Where labels are surely wrong, a second head is fitted to those that the first one
trusts. Of labels and numbers errors are the outputs' own residuals.

Every kind of features becomes an extractor, made when it is first needed: filters, weights and
batch-norm statistics are the same for a sample of the data and then for all of it.

Shapes: N examples, B of a block, C classes, D features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.determinism import derive_generator, pinned_kernels
from lipt.common.errors import ProxyError
from lipt.common.inputs.model_input import Stored, columns_in, images_in
from lipt.common.inputs.specs import Column, ColumnsSpec, ImageSpec, InputFormat
from lipt.common.signals.blocks import row_blocks
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.diagnosis.label_errors import find_label_errors, trust_after
from lipt.core.proxies.features import Extractor, Loader, ModelBank, side_by_side
from lipt.core.proxies.proxy import MAX_SAMPLE, Kind, Proxy, Tried, candidates, choose, passes_of
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    class_weights,
    fit_sharpness,
    leave_one_out,
    scaling_of,
)
from lipt.core.proxies.untrained import column_values, draw_filters, patch_features
from lipt.core.results import Trajectories
from lipt.core.signals.compute import errors_of
from lipt.core.signals.signals import Signals, unlabelled
from lipt.core.signals.stored import STORAGE_LIMITS, load_tensors, save_tensors
from lipt.core.workspace import Workspace

# Patches are drawn from as many images.
_IMAGES_FOR_FILTERS = 5_000

ValueT = TypeVar("ValueT")
Facts = Mapping[str, Any]
Kinds = tuple[Kind, ...]


@dataclass(frozen=True)
class ProxyQuestion:
    """The signals that are wanted.

    inputs: the input format of the run's models; None without a run.
    weights: of the model that the feature `soup` is of; None without a run.
    features: the request's own, where it has some.
    trajectories: the run's learners, where they led to `weights`.
    initial: the run's theta*, where the feature `initial` may be used.
    """

    config: RunConfig
    inputs: InputFormat | None
    proxy: Proxy
    weights: BlobName | None
    features: BlobName | None = None
    trajectories: Trajectories | None = None
    initial: BlobName | None = None


@dataclass(frozen=True)
class Proxied:
    """Signals, and facts about them for a manifest, as JSON."""

    signals: Signals
    facts: Facts

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        tensors = {
            "errors_NC": self.signals.errors_NC,
            "features_ND": self.signals.features_ND,
            "labels_N": self.signals.labels_N,
        }
        if self.signals.second_errors_NC is not None:
            tensors["second_errors_NC"] = self.signals.second_errors_NC
        facts = json.dumps(dict(self.facts))
        save_tensors(path, tensors, {"facts": facts, "kind": self.signals.kind.value})

    @classmethod
    def load(cls, path: Path) -> Proxied:
        """Map a file of `save` into memory."""

        def build(tensors: dict[str, Any], metadata: dict[str, str]) -> Proxied:
            kind = TargetKind(metadata.get("kind", TargetKind.CLASS))
            return cls(Signals(**tensors, kind=kind), json.loads(metadata["facts"]))

        return load_tensors(path, "signals of a proxy", build)


def proxied_signals(workspace: Workspace, question: ProxyQuestion) -> tuple[Signals, Facts]:
    """Signals of a ridge head on the proxy's features, and facts for a manifest.

    Raises:
        ProxyError: features are unavailable.
        FeaturesError: the request's features cannot be read.
        SignalsError: features are not finite.
    """
    return _kept("proxied", workspace, question, _compute)


def proxied_features(workspace: Workspace, question: ProxyQuestion) -> tuple[Signals, Facts]:
    """The proxy's features alone: no label is used, all examples are of one class, no errors."""
    return _kept("features", workspace, question, _compute_features)


def _kept(
    kind: str,
    workspace: Workspace,
    question: ProxyQuestion,
    compute: Callable[[Workspace, FeatureMaker], Proxied],
) -> tuple[Signals, Facts]:
    maker = FeatureMaker(workspace, question)
    maker.require(question.proxy)
    config, proxy, soup = question.config, question.proxy, question.config.soup
    statistics = (soup.batch_norm_examples, config.validation)
    learners = proxy.may_use(Kind.LEARNERS)
    depends_on: tuple[object, ...] = (
        str(proxy),
        config.seed,
        workspace.dataset.fingerprint,
        config.evaluation_threads,
        str(workspace.device),
        (question.weights, config.model, question.inputs)
        if proxy.may_use(Kind.SOUP) or learners
        else None,
        (question.trajectories, statistics if soup.reestimate_batch_norm else None)
        if learners
        else None,
        question.features if proxy.may_use(Kind.USER) else None,
        maker.backbone_identity if proxy.may_use(Kind.BACKBONE) else None,
    )
    if question.initial is not None:
        began = config.initialization.weights_sha256
        depends_on += (question.initial, began, config.model, question.inputs, statistics, soup)
    with pinned_kernels(config.evaluation_threads):
        kept = workspace.cached(
            kind, depends_on, load=Proxied.load, compute=lambda: compute(workspace, maker)
        )
    return kept.signals, kept.facts


def _compute(workspace: Workspace, maker: FeatureMaker) -> Proxied:
    started, dataset = monotonic(), workspace.dataset
    wanted = maker.question.proxy.features
    possible = candidates(maker.available) if wanted is None else [wanted]
    trials = _Trials(torch.empty(0), {}, {}, [])
    kinds = possible[0]
    # Of one alone there is nothing to try.
    if len(possible) > 1:
        trials = _try_on_a_sample(workspace, maker, possible)
        kinds = choose(trials.tried).features
    labels_N, targets = dataset.labels_N, HeadTargets.of(dataset)
    if len(trials.ids_N) == len(labels_N):
        features_ND, head = trials.features_of(kinds), trials.heads[kinds]
    else:
        features_ND = _features_of_all(workspace, maker, kinds)
        head = _head(workspace, maker, features_ND, "fitting a ridge head")
    facts = {
        **_facts_of(maker.question, kinds, features_ND),
        "accuracy": head.accuracy,
        "penalty": head.penalty,
        "tried": [one.facts for one in trials.tried],
    }
    if targets is not None:
        # Strata are no classes: every example counts alike.
        _scale(features_ND, torch.zeros_like(labels_N))
        errors_NC = _errors(head.outputs_NC, targets.errors)
        signals = Signals(errors_NC, features_ND, labels_N, kind=targets.target.kind)
        facts |= {"score": targets.target.kind.score_name, "seconds": monotonic() - started}
        return Proxied(signals, facts)
    errors_NC, sharpness = _calibrated_errors(head, labels_N, class_weights(labels_N))
    _scale(features_ND, labels_N)
    signals = Signals(errors_NC, features_ND, labels_N)
    trust_N = trust_after(find_label_errors(signals), labels_N)
    if trust_N is not None:
        activity = "fitting a second head, to trusted labels"
        second = _head(workspace, maker, features_ND, activity, trust_N=trust_N)
        weights_N = class_weights(labels_N, trust_N)
        second_NC, second_sharpness = _calibrated_errors(second, labels_N, weights_N)
        signals = replace(signals, second_errors_NC=second_NC)
        facts["second"] = {"accuracy": second.accuracy, "sharpness": second_sharpness}
    facts |= {
        "sharpness": sharpness,
        "distrusted": 0 if trust_N is None else int((trust_N < 1).sum()),
        "seconds": monotonic() - started,
    }
    return Proxied(signals, facts)


def _compute_features(workspace: Workspace, maker: FeatureMaker) -> Proxied:
    started, kinds = monotonic(), maker.question.proxy.features
    if not kinds:
        raise ValueError(f"the proxy {maker.question.proxy} names no features")
    features_ND = _features_of_all(workspace, maker, kinds)
    signals = unlabelled(len(features_ND))
    _scale(features_ND, signals.labels_N)
    facts = _facts_of(maker.question, kinds, features_ND)
    facts = {**facts, "seconds": monotonic() - started}
    return Proxied(replace(signals, features_ND=features_ND), facts)


def _features_of_all(workspace: Workspace, maker: FeatureMaker, kinds: Kinds) -> Tensor:
    return side_by_side(
        [maker.extractor(kind) for kind in kinds],
        workspace.dataset,
        torch.arange(len(workspace.dataset)),
        on_progress=workspace.progress(f"computing features ({'+'.join(kinds)})"),
    )


def _facts_of(question: ProxyQuestion, kinds: Kinds, features_ND: Tensor) -> Facts:
    return {
        "proxy": str(question.proxy),
        "features": "+".join(kinds),
        "num_features": features_ND.shape[1],
    }


@dataclass(frozen=True)
class _Trials:
    ids_N: Tensor
    features: dict[Kind, Tensor]
    heads: dict[Kinds, LeaveOneOut]
    tried: list[Tried]

    def features_of(self, kinds: Kinds) -> Tensor:
        return torch.cat([self.features[kind] for kind in kinds], dim=1)


def _try_on_a_sample(
    workspace: Workspace, maker: FeatureMaker, possible: Sequence[Kinds]
) -> _Trials:
    dataset, activity = workspace.dataset, "trying proxies on a sample"
    generator = derive_generator(maker.question.config.seed, "proxy sample")
    ids_N = torch.randperm(len(dataset), generator=generator)[:MAX_SAMPLE].sort().values
    trials = _Trials(ids_N, {}, {}, [])
    for kinds in possible:
        for kind in kinds:
            if kind not in trials.features:
                trials.features[kind] = side_by_side(
                    [maker.extractor(kind)],
                    dataset,
                    ids_N,
                    on_progress=workspace.progress(activity),
                )
        head = _head(workspace, maker, trials.features_of(kinds), activity, some=ids_N)
        trials.heads[kinds] = head
        price = passes_of(kinds, maker.num_learners)
        trials.tried.append(Tried(kinds, head.accuracy, price))
    return trials


def _head(
    workspace: Workspace,
    maker: FeatureMaker,
    features_ND: Tensor,
    activity: str,
    *,
    some: Tensor | None = None,
    trust_N: Tensor | None = None,
) -> LeaveOneOut:
    device, dataset = workspace.device, workspace.dataset
    ids_N = torch.arange(len(dataset)) if some is None else some
    wanted = HeadTargets.of(dataset)
    head = leave_one_out(
        features_ND.to(device),
        dataset.labels_N[ids_N].to(device),
        len(dataset.class_names),
        generator=derive_generator(maker.question.config.seed, "ridge sample"),
        trust_N=None if trust_N is None else trust_N.to(device),
        wanted=None if wanted is None else wanted.take(ids_N).to(device),
        on_progress=workspace.progress(activity),
    )
    return replace(head, outputs_NC=head.outputs_NC.cpu())


def _calibrated_errors(
    head: LeaveOneOut, labels_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, float]:
    sharpness = fit_sharpness(head.outputs_NC, labels_N, weights_N)

    def errors(outputs_BC: Tensor, rows: slice) -> Tensor:
        return errors_of(outputs_BC.double() * sharpness, labels_N[rows])

    return _errors(head.outputs_NC, errors), sharpness


def _errors(outputs_NC: Tensor, errors: Callable[[Tensor, slice], Tensor]) -> Tensor:
    dtype = STORAGE_LIMITS.error_dtype(outputs_NC.numel())
    errors_NC = torch.empty(outputs_NC.shape, dtype=dtype)
    for rows in row_blocks(len(outputs_NC), 8 * outputs_NC.shape[1]):
        errors_NC[rows] = errors(outputs_NC[rows], rows).to(dtype)
    return errors_NC


def _scale(features_ND: Tensor, labels_N: Tensor) -> None:
    scaling = scaling_of(features_ND, class_weights(labels_N))
    for rows in row_blocks(len(features_ND), 8 * features_ND.shape[1]):
        features_ND[rows] = scaling.apply(features_ND[rows]).to(features_ND.dtype)


class FeatureMaker:
    """Makes the extractors of features, each once: for a sample, and then for all."""

    def __init__(self, workspace: Workspace, question: ProxyQuestion) -> None:
        self._workspace = workspace
        self.question = question
        self._made: dict[Kind, Extractor] = {}

    @cached_property
    def available(self) -> frozenset[Kind]:
        """The kinds of features that there are inputs for."""
        question, inputs = self.question, self._workspace.dataset.inputs
        there = {
            Kind.USER: question.features is not None,
            Kind.PATCHES: are_pictures(inputs),
            Kind.COLUMNS: isinstance(inputs, ColumnsSpec),
            Kind.SOUP: question.weights is not None,
            Kind.INITIAL: question.initial is not None,
            Kind.LEARNERS: self.num_learners > 0,
            Kind.BACKBONE: self._workspace.has_backbone and isinstance(inputs, ImageSpec),
        }
        return frozenset(kind for kind, is_there in there.items() if is_there)

    @property
    def num_learners(self) -> int:
        """Learners whose features there are."""
        trajectories = self.question.trajectories
        return len(trajectories.learners) if trajectories is not None else 0

    @property
    def backbone_identity(self) -> str | None:
        """The backbone's name and content, where there is one."""
        backbone = self._workspace.backbone
        return backbone.identity if backbone is not None else None

    def require(self, proxy: Proxy) -> None:
        """Refuse a proxy whose features are not all available."""
        inputs = self._workspace.dataset.inputs
        reasons = {
            Kind.USER: "the request has no features of its own. Give them (--features FILE, or "
            "features=...), or leave `user` out.",
            Kind.PATCHES: f"the data has {inputs}, which are no pictures to take patches of. "
            "Leave `patches` out, or give features of your own.",
            Kind.COLUMNS: f"the data has {inputs}, and no columns. Leave `columns` out.",
            Kind.SOUP: "no run is named whose weights they could be of. Name one, or leave `soup` "
            "out.",
            Kind.INITIAL: "no run is named whose theta* they could be of. Name one, or leave "
            "`initial` out.",
            Kind.LEARNERS: "the weights that are selected on are not what the run's learners "
            "became. Leave `weights` unset, or leave `learners` out.",
            Kind.BACKBONE: "the coordinator has none for such data. Its operator starts it with "
            "--backbone torchvision:NAME@FILE, or leave `backbone` out.",
        }
        for kind in proxy.features or ():
            if kind not in self.available:
                raise ProxyError(f"the proxy {proxy} is unavailable: {reasons[kind]}")

    def extractor(self, kind: Kind) -> Extractor:
        """The extractor of such features."""
        if kind not in self._made:
            make = {
                Kind.USER: self._user,
                Kind.PATCHES: self._patches,
                Kind.COLUMNS: self._columns,
                Kind.SOUP: self._soup,
                Kind.INITIAL: self._initial,
                Kind.LEARNERS: self._learners,
                Kind.BACKBONE: self._backbone,
            }[kind]
            self._made[kind] = make()
        return self._made[kind]

    def _user(self) -> Extractor:
        features_ND = self._workspace.user_features(_given(self.question.features)).features_ND
        return lambda ids_B, _: features_ND[ids_B].float()

    def _patches(self) -> Extractor:
        dataset, device = self._workspace.dataset, self._workspace.device
        generator = derive_generator(self.question.config.seed, "patches")
        drawn = torch.randperm(len(dataset), generator=generator)[:_IMAGES_FOR_FILTERS]
        images_NCHW = dataset.images(drawn.sort().values)
        filters = draw_filters(images_NCHW, generator=generator).to(device)
        return lambda _, stored_B: patch_features(images_in(stored_B).to(device), filters).cpu()

    def _columns(self) -> Extractor:
        rows, seed = self._workspace.dataset.rows, self.question.config.seed
        if not isinstance(rows, ColumnRows):
            raise TypeError(f"{self._workspace.dataset.inputs} in place of columns")

        def largest(column: Column) -> int:
            values = rows.tensors[column.name]
            return int(values.max()) if int(values.min()) >= 0 else -1

        extract = column_values(
            rows.columns, largest, lambda name: derive_generator(seed, f"column {name}")
        )
        return lambda _, stored_B: extract(columns_in(stored_B))

    def _soup(self) -> Extractor:
        return self._of_one_model(_given(self.question.weights), None)

    def _initial(self) -> Extractor:
        config = self.question.config
        # Random weights have no statistics worth the name; measured, those of a trained backbone
        # are better on other classes than an estimate from the run's images (82.9% and 80.7%).
        given = config.initialization.weights_sha256 is not None
        examples_M = None if given else self._workspace.batch_norm_examples(config)
        return self._of_one_model(_given(self.question.initial), examples_M)

    def _of_one_model(self, name: BlobName, batch_norm_examples_M: Stored | None) -> Extractor:
        model = self._workspace.loaded_model(self.question.config, name)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return self._bank(model, [lambda: weights], batch_norm_examples_M)

    def _learners(self) -> Extractor:
        config, workspace = self.question.config, self._workspace
        model, trajectories = workspace.new_model(config), _given(self.question.trajectories)
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        loaders = [partial(read, learner.result) for learner in trajectories.learners]
        return self._bank(model, loaders, workspace.batch_norm_examples(config))

    def _bank(
        self, model: nn.Module, loaders: Sequence[Loader], batch_norm_examples_M: Stored | None
    ) -> Extractor:
        config, workspace = self.question.config, self._workspace
        inputs: InputFormat | None = self.question.inputs
        if inputs is None:
            raise ValueError("features of models were asked for without a run")
        bank = ModelBank(
            model,
            loaders,
            inputs,
            workspace.device,
            workspace.batch_size,
            batch_norm_examples_M,
            generator_of=lambda number: derive_generator(config.seed, "projection", number),
            frozen=workspace.frozen(config, model),
        )
        return lambda _, stored_B: bank(stored_B)

    def _backbone(self) -> Extractor:
        backbone, size = _given(self._workspace.backbone), self._workspace.batch_size
        return lambda _, stored_B: torch.cat(
            [backbone(part) for part in torch.split(images_in(stored_B), size)]
        )


def _given(value: ValueT | None) -> ValueT:
    if value is None:
        raise ValueError("features were asked for that are not available")
    return value
