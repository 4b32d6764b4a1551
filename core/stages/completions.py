"""Diagnosis of texts: completions that look wrong, by learners that have not seen them.

The examples are cut into four parts. For each, a learner trains on the other three, from the given
or from random weights, and gives the part's losses. theta* of a run is not used: it may have seen
all examples.

Shapes: N examples, M of a part, L positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.computation import computation
from lipt.common.config.run_config import InitializationConfig, RunConfig
from lipt.common.determinism import derive_generator, derive_seed
from lipt.common.errors import DataError, ProxyError
from lipt.common.requests import Proxy
from lipt.core.diagnosis.completions import completion_quality, prompt_features
from lipt.core.diagnosis.diagnosis import (
    DataFindings,
    DiagnosisFile,
    OutlierScores,
    diagnosis_of,
)
from lipt.core.diagnosis.duplicates import Matches, find_duplicates
from lipt.core.diagnosis.findings import LearningCurve, Redundancy
from lipt.core.diagnosis.label_errors import without_suspects
from lipt.core.passes import score_texts
from lipt.core.pretraining.initialization import begins_trained, initialize
from lipt.core.progress import CallPart
from lipt.core.stages.resolve import Sources
from lipt.core.workspace import Workspace
from lipt.data.dataset import input_format
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED
from lipt.models.head import freeze

_NUM_PARTS = 4
# Where the run does not set initialization.steps: of learners from random and from given weights.
_STEPS, _STEPS_OF_GIVEN, _BATCH, _LEARNING_RATE = 600, 100, 32, 1e-3


def diagnose_completions(
    workspace: Workspace, sources: Sources, proxy: Proxy, copies: Matches
) -> DiagnosisFile:
    """Diagnose completions and duplicates; ProxyError for what texts do not use.

    DataError for fewer examples than parts, and for texts without prompts.
    """
    if proxy.features is not None or sources.features or sources.probabilities:
        raise ProxyError(
            "the completions of texts are judged by learners, not by a proxy, features or "
            "pred_probs. Leave these out."
        )
    config, dataset = sources.config, workspace.dataset
    labels_N, size, num_strata = dataset.labels_N, len(dataset), len(dataset.class_names)
    if size < _NUM_PARTS:
        raise DataError(
            f"{size} examples are too few: learners train on three of {_NUM_PARTS} parts of them. "
            f"Give at least {_NUM_PARTS}, and better hundreds."
        )
    (tokens_NL,) = dataset.examples(torch.arange(size)).values()
    # Refused before anything is trained.
    features_ND = prompt_features(tokens_NL, dataset.targets_N)
    losses_N, score = losses_unseen(workspace, config)
    generator = derive_generator(config.seed, "diagnosis: similar prompts")
    quality_N = completion_quality(losses_N, features_ND, generator=generator)
    findings = DataFindings(
        without_suspects(quality_N, labels_N, num_strata),
        find_duplicates(labels_N, quality_N, copies),
        # Not looked for in texts.
        OutlierScores(torch.ones(size), torch.inf),
        LearningCurve(sizes=(size,), accuracies=(score,), suggested_fraction=1.0, reason=""),
    )
    return diagnosis_of(
        findings.by_id(dataset.id_mapping, dataset.rows.labels_N),
        labels_N=dataset.rows.labels_N,
        class_names=dataset.class_names,
        kind=TargetKind.TOKENS,
        proxy={"accuracy": score, "model": config.model},
        redundancy=Redundancy(share_for_90=1.0, examples_for_90=size, per_class=(), sampled=0),
    )


def losses_unseen(workspace: Workspace, config: RunConfig) -> tuple[Tensor, float]:
    """Each example's loss under a learner that has not seen it, float32; and their score."""
    dataset = workspace.dataset
    ids_N = torch.arange(len(dataset))
    inputs = input_format(dataset, ids_N, derive_seed(config.seed, "normalization"))
    order_N = torch.randperm(len(dataset), generator=derive_generator(config.seed, "unseen parts"))
    settings, losses_N, num_right = _settings(config), torch.empty(len(dataset)), 0
    for part in range(_NUM_PARTS):
        held_out_M = order_N[part::_NUM_PARTS].sort().values
        model = workspace.new_model(config)
        freeze(model, workspace.frozen(config, model))
        report = workspace.progress(
            f"training learner {part + 1} of {_NUM_PARTS}",
            *(CallPart.LEARNERS, part / _NUM_PARTS, 1 / _NUM_PARTS),
        )
        initialize(
            model,
            dataset,
            ids_N[~torch.isin(ids_N, held_out_M)],
            settings,
            inputs,
            seed=derive_seed(config.seed, "unseen learner", part),
            device=workspace.device,
            cpu_threads=config.learners.cpu_threads,
            on_progress=report,
        )
        batches = workspace.batches(inputs, "scoring completions", some=held_out_M)
        with computation(1):
            losses_N[held_out_M], right_M = score_texts(model, batches)
        num_right += int(right_M.sum())
    return losses_N, num_right / int((dataset.targets_N != MASKED).sum())


def _settings(config: RunConfig) -> InitializationConfig:
    """The run's own, where they have steps; else those that were measured."""
    given = config.initialization
    if given.steps is not None:
        return given
    return given.model_copy(
        update={
            "steps": _STEPS_OF_GIVEN if begins_trained(config) else _STEPS,
            "batch_size": _BATCH,
            "learning_rate": _LEARNING_RATE,
        }
    )
