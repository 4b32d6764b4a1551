"""Subject: what the counts need to know of the data and the model, found out without measuring."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from lipt.common.config.run_config import RunConfig
from lipt.common.data import Dataset
from lipt.common.data.shard import pack_shard
from lipt.common.determinism.seeding import derive_generator
from lipt.common.models import find_head
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.models.footprint import measure_model
from lipt.common.models.freezing import frozen_names
from lipt.common.weights.specs import specs_of
from lipt.coordinator.planning.plan import DataFigures
from lipt.core.batch_norm import has_batch_norm
from lipt.core.learner.pruning import prunable_parameters
from lipt.core.proxies.pooled import pooled_features
from lipt.estimates.counting import Subject

# Examples whose bytes in a shard are counted: what files take differs.
_SAMPLE = 256


def subject_of(
    dataset: Dataset, model: nn.Module, config: RunConfig, *, batch_size: int
) -> Subject:
    """Look at the data and the model.

    Args:
        dataset: what is chosen from.
        model: as learners have it, on the CPU.
        config: of the run.
        batch_size: examples per forward pass on the coordinator.
    """
    frozen = frozen_names(model, config.learners.frozen)
    specs = specs_of(model.state_dict())
    figures = measure_model(model, config.model, inputs=dataset.inputs)
    frozen_bytes = sum(specs[name].num_bytes for name in frozen)
    generator = derive_generator(config.seed, "estimates")
    some = torch.randperm(len(dataset), generator=generator)[:_SAMPLE]
    _, head = find_head(model)
    with evaluation_mode(model):
        pooled_2D = pooled_features(model, dataset.inputs.zeros(2, torch.device("cpu")))
    return Subject(
        data=data_figures(dataset),
        figures=replace(figures, frozen_bytes=frozen_bytes),
        sent={name: spec for name, spec in specs.items() if name not in frozen},
        prunable=tuple(prunable_parameters(model, frozen)),
        num_features=head.in_features,
        pooled_features=pooled_2D.shape[1],
        has_batch_norm=has_batch_norm(model, frozen),
        in_memory=dataset.in_memory,
        packed_bytes=len(pack_shard(dataset, some)) / len(some),
        batch_size=batch_size,
    )


def data_figures(dataset: Dataset) -> DataFigures:
    """How many examples there are of each class, and what each of them is."""
    targets = dataset.rows.targets
    counts_C = torch.bincount(dataset.labels_N, minlength=len(dataset.class_names))
    return DataFigures(
        tuple(counts_C.tolist()),
        dataset.inputs,
        None if targets is None else targets.target,
    )
