"""Proxy features: what each kind of them is made of, from a workspace.

Every kind becomes an extractor, made when it is first needed: filters, weights and batch-norm
statistics are the same for a sample of the data and then for all of it.

Shapes: N examples, B of a block, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data.sources.rows import ColumnRows
from lipt.common.determinism import derive_generator
from lipt.common.errors import ProxyError
from lipt.common.inputs.model_input import Stored, columns_in, images_in
from lipt.common.inputs.specs import Column, ColumnsSpec, ImageSpec, InputFormat
from lipt.core.diagnosis.duplicates import are_pictures
from lipt.core.proxies.features import Extractor, Loader, ModelBank
from lipt.core.proxies.proxy import Kind, Proxy
from lipt.core.proxies.untrained import column_values, draw_filters, patch_features
from lipt.core.results import Trajectories
from lipt.core.workspace import Workspace

ValueT = TypeVar("ValueT")

# Patches are drawn from as many images.
_IMAGES_FOR_FILTERS = 5_000


@dataclass(frozen=True)
class ProxyQuestion:
    """What signals are wanted.

    inputs: what a model is given; None without a run.
    weights: of the model that the feature `soup` is of; None without a run.
    features: the request's own, where it has some.
    trajectories: the run's learners, where they led to `weights`.
    initial: the run's theta*, where the feature `initial` may be looked at.
    """

    config: RunConfig
    inputs: InputFormat | None
    proxy: Proxy
    weights: BlobName | None
    features: BlobName | None = None
    trajectories: Trajectories | None = None
    initial: BlobName | None = None


class FeatureMaker:
    """Makes the extractors of features, each once: for a sample, and then for all."""

    def __init__(self, workspace: Workspace, question: ProxyQuestion) -> None:
        self._workspace = workspace
        self.question = question
        self._made: dict[Kind, Extractor] = {}

    @cached_property
    def available(self) -> frozenset[Kind]:
        """What there is."""
        question, workspace = self.question, self._workspace
        there = {
            Kind.USER: question.features is not None,
            Kind.PATCHES: are_pictures(workspace.dataset.inputs),
            Kind.COLUMNS: isinstance(workspace.dataset.inputs, ColumnsSpec),
            Kind.SOUP: question.weights is not None,
            Kind.INITIAL: question.initial is not None,
            Kind.LEARNERS: self.num_learners > 0,
            Kind.BACKBONE: workspace.has_backbone
            and isinstance(workspace.dataset.inputs, ImageSpec),
        }
        return frozenset(kind for kind, is_there in there.items() if is_there)

    @property
    def num_learners(self) -> int:
        """How many of them there are."""
        trajectories = self.question.trajectories
        return len(trajectories.learners) if trajectories is not None else 0

    @property
    def backbone_identity(self) -> str | None:
        """What stands for the backbone, where there is one."""
        backbone = self._workspace.backbone
        return backbone.identity if backbone is not None else None

    def require(self, proxy: Proxy) -> None:
        """Refuse a proxy whose features are not all there."""
        for kind in proxy.features or ():
            if kind not in self.available:
                raise ProxyError(f"the proxy {proxy} cannot be had: {self._why_not(kind)}")

    def _why_not(self, kind: Kind) -> str:
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
        return reasons[kind]

    def extractor(self, kind: Kind) -> Extractor:
        """What takes features of such a kind."""
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
        config, workspace = self.question.config, self._workspace
        model = workspace.loaded_model(config, _given(self.question.weights))
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return self._bank(model, [lambda: weights], None)

    def _initial(self) -> Extractor:
        config, workspace = self.question.config, self._workspace
        # Random weights have no statistics worth the name; measured, those of a trained backbone
        # are better on other classes than an estimate from the run's images (82.9% and 80.7%).
        given = config.initialization.weights_sha256 is not None
        examples_M = None if given else workspace.batch_norm_examples(config)
        model = workspace.loaded_model(config, _given(self.question.initial))
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        frozen = workspace.frozen(config, model)
        return self._bank(model, [lambda: weights], examples_M, frozen)

    def _learners(self) -> Extractor:
        config, workspace = self.question.config, self._workspace
        model, trajectories = workspace.new_model(config), _given(self.question.trajectories)
        read = workspace.read_learners(config, trajectories.initial_weights, model)
        loaders = [partial(read, learner.result) for learner in trajectories.learners]
        frozen = workspace.frozen(config, model)
        return self._bank(model, loaders, workspace.batch_norm_examples(config), frozen)

    def _bank(
        self,
        model: nn.Module,
        loaders: Sequence[Loader],
        batch_norm_examples_M: Stored | None,
        frozen: frozenset[str] = frozenset(),
    ) -> Extractor:
        seed, inputs = self.question.config.seed, self.question.inputs
        if inputs is None:
            raise ValueError("features of models were asked for without a run")
        bank = ModelBank(
            model,
            loaders,
            inputs,
            self._workspace.device,
            self._workspace.batch_size,
            batch_norm_examples_M,
            generator_of=lambda number: derive_generator(seed, "projection", number),
            frozen=frozen,
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
