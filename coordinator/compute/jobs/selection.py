"""Jobs for trainers: subsets and their rechecks, diagnoses, mixtures, and examples to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

import torch
from torch import Tensor

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig
from lipt.common.process.devices import device_name
from lipt.common.requests import Proxy
from lipt.common.subsets import pack
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.messages import MAX_LIGHT_BYTES
from lipt.coordinator.compute.scan import scanned
from lipt.core.mixture.learning import TargetedPool, learned_for
from lipt.core.mixture.mixture import mixture_of
from lipt.core.pretraining.initialization import num_initialization_steps
from lipt.core.selection.select import find_strategy
from lipt.core.selection.strategy import Growth
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.views import INITIAL_NEEDS, Need
from lipt.core.stages.choice import ChosenSubset, choose
from lipt.core.stages.diagnosis import diagnose
from lipt.core.stages.recheck import Recheck, recheck
from lipt.core.stages.resolve import ResolvedRequest, Sources
from lipt.core.stages.warm_up import ModelPass, PassResult
from lipt.core.workspace import Workspace
from lipt.data.example_file import open_examples
from lipt.data.images.formats import data_url
from lipt.data.inputs.model_input import columns_in, images_in
from lipt.data.inputs.specs import ImageSpec, InputFormat
from lipt.data.joining import MOST_TARGET


@dataclass(frozen=True)
class StoredSubset:
    """A stored subset; `seconds` include `spent_warm_up_seconds`, but no wait in the queue."""

    blob: BlobName
    digest: str
    num_examples: int
    num_classes: int
    manifest: Mapping[str, Any]
    seconds: float = field(default=0.0, compare=False)
    warm_up_seconds: float | None = None
    spent_warm_up_seconds: float = 0.0

    @classmethod
    def stored(cls, blobs: BlobStore, chosen: ChosenSubset, *, seconds: float = 0.0) -> Self:
        examples = chosen.examples
        return cls(
            blobs.put_bytes(pack(examples)),
            examples.digest,
            num_examples=len(examples),
            num_classes=examples.num_classes,
            manifest=chosen.manifest,
            seconds=seconds,
            warm_up_seconds=chosen.warm_up_seconds,
            spent_warm_up_seconds=chosen.spent_warm_up_seconds,
        )


@dataclass(frozen=True)
class SelectSubset:
    """Answer a request for a subset."""

    request: ResolvedRequest
    sources: Sources

    @property
    def is_light(self) -> bool:
        """Whether labels and one look at every example's stored signals are enough."""
        request = self.request
        large = request.features is not None and request.features.size_bytes > MAX_LIGHT_BYTES
        # Paired features are the data set's own where none are given.
        reads_data = Need.PAIRED_FEATURES in request.needs and request.features is None
        reads_data |= bool(request.needs & INITIAL_NEEDS)
        is_linear = find_strategy(request.strategy).cost.growth is Growth.LINEAR
        return is_linear and not (large or request.warm_up or reads_data)

    def run(self, context: Context) -> StoredSubset:
        started = monotonic()

        def share(_: Workspace, model_pass: ModelPass) -> PassResult:
            return scanned(context, model_pass)

        chosen = choose(context, self.request, self.sources, run_pass=share)
        return StoredSubset.stored(context.blobs, chosen, seconds=monotonic() - started)


@dataclass(frozen=True)
class RecheckSubset:
    """Compare the loss at `weights` with the loss predicted around `anchor`."""

    config: RunConfig
    inputs: InputFormat
    anchor: BlobName
    weights: BlobName

    def run(self, context: Context) -> Recheck:
        return recheck(context, self.config, self.inputs, anchor=self.anchor, weights=self.weights)


@dataclass(frozen=True)
class Diagnosed:
    """A stored diagnosis."""

    blob: BlobName
    device: str


@dataclass(frozen=True)
class DiagnoseData:
    """Diagnose the data by a proxy model's signals."""

    sources: Sources
    proxy: Proxy

    def run(self, context: Context) -> Diagnosed:
        diagnosis = diagnose(context, self.sources, self.proxy)
        return Diagnosed(context.blobs.put_bytes(diagnosis.pack()), device_name(context.device))


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
        source = context.read(self.target)
        target, num_given = open_examples(source, dataset, max_examples=MOST_TARGET)
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


@dataclass(frozen=True)
class MapExamples:
    """Place M examples in the unit square by two principal components of their D features."""

    config: RunConfig
    inputs: InputFormat
    weights: BlobName
    ids: tuple[int, ...]

    def run(self, context: Context) -> tuple[tuple[float, float], ...]:
        model = context.loaded_model(self.config, self.weights)
        rows_M = context.dataset.id_mapping.positions(torch.tensor(self.ids))
        with computation(self.config.evaluation_threads):
            batches = context.batches(self.inputs, "computing features", some=rows_M)
            places_M2 = principal_components(compute_signals(model, batches).features_ND.float())
        square_M2 = scaled_to_box(places_M2, width=1.0, height=1.0, margin=0.02)
        return tuple((x, y) for x, y in square_M2.tolist())


_MAX_PIXELS = 224
_MAX_VALUES, _MAX_CHARACTERS = 12, 300


@dataclass(frozen=True)
class ShownExample:
    """An example: a data URL of an image, or else its first values as text."""

    png: str | None
    text: str


@dataclass(frozen=True)
class ShowExamples:
    """Show some examples, in the given order."""

    ids: tuple[int, ...]

    def run(self, context: Context) -> tuple[ShownExample, ...]:
        dataset = context.dataset
        if not self.ids:
            return ()
        context.report("reading examples", 0, len(self.ids))
        stored_B = dataset.examples(dataset.id_mapping.positions(torch.tensor(self.ids)))
        if isinstance(dataset.inputs, ImageSpec):
            return tuple(
                ShownExample(data_url(image_CHW, _MAX_PIXELS), "")
                for image_CHW in images_in(stored_B)
            )
        columns = columns_in(stored_B)
        return tuple(
            ShownExample(None, _text({name: values[row] for name, values in columns.items()}))
            for row in range(len(self.ids))
        )


def _text(values: dict[str, Tensor]) -> str:
    parts = (
        f"{name}: {_values(value)}" if name else _values(value) for name, value in values.items()
    )
    return "; ".join(parts)[:_MAX_CHARACTERS]


def _values(tensor: Tensor) -> str:
    first = tensor.flatten()[:_MAX_VALUES].tolist()
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in first]
    return ", ".join(texts + ["..."] * (tensor.numel() > _MAX_VALUES))


def principal_components(features_MD: Tensor) -> Tensor:
    """The points along the two directions of largest variance; float64, M x 2."""
    centred_MD = features_MD.double() - features_MD.double().mean(dim=0)
    _, directions_DD = torch.linalg.eigh(centred_MD.T @ centred_MD)
    projected = (centred_MD @ directions_DD.flip(1))[:, :2]
    places_M2 = centred_MD.new_zeros(len(centred_MD), 2)
    places_M2[:, : projected.shape[1]] = projected
    return places_M2


def scaled_to_box(places_M2: Tensor, *, width: float, height: float, margin: float) -> Tensor:
    """Scale points to a centred rectangle with a margin, equally on both axes."""
    places_M2 = places_M2.double()
    low_2, high_2 = places_M2.amin(dim=0), places_M2.amax(dim=0)
    size_2 = torch.tensor([width, height], dtype=torch.float64)
    scale = float(((size_2 - 2 * margin) / (high_2 - low_2).clamp(min=1e-9)).amin())
    return (places_M2 - (low_2 + high_2) / 2) * scale + size_2 / 2
