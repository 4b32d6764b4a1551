"""The stage of a target: losses under theta*, and what a target has to do with the examples.

The target's examples stand behind the data's, read as they are, so that one model and one pass sees
both. Each value is computed once for a request's weights and targets, and kept.

Shapes: N examples, M of the target, P parts of the target, D features, W words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.computation import computation
from lipt.common.config.run_config import PruningConfig, PruningMethod, ShardRule
from lipt.common.determinism import derive_generator
from lipt.common.errors import InvalidRequestError
from lipt.core.kept_values import Key
from lipt.core.passes import FEATURES, LOSSES, merged_account
from lipt.core.pretraining.sharding import draw_by_shares
from lipt.core.signals.compute import compute_values
from lipt.core.signals.targeted import TargetSignals, numbered, words_of
from lipt.core.signals.views import TARGET_NEEDS, Need
from lipt.core.stages.diagnosis import duplicates_of
from lipt.core.stages.resolve import ResolvedRequest, Sources
from lipt.core.stages.warm_up import (
    ModelPass,
    PassResult,
    RunPass,
    outputs_identity,
)
from lipt.core.tasks import ScoredValues
from lipt.core.workspace import InMemory, Workspace
from lipt.data.example_file import open_examples
from lipt.data.joining import MOST_TARGET, appended
from lipt.data.targets.values import MASKED


def target_signals(
    workspace: Workspace, request: ResolvedRequest, sources: Sources, run_pass: RunPass
) -> TargetSignals:
    """Values of theta* and its targets that the request's strategy needs, by position.

    DataError for a target of another form than the data, InvalidRequestError for data without
    prompts or words where they are looked at, SignalsError for losses that are not finite.
    """
    stage = _Stage(workspace, request, sources, run_pass)
    config, signals = sources.config, TargetSignals()
    of_theta = outputs_identity(workspace, sources)
    of_data = (workspace.dataset.fingerprint, [blob.sha256 for blob in request.targets])
    learner = (request.target_steps, config.seed, config.learners, config.augmentation)
    looks_at_features = Need.TARGET_FEATURES in request.needs
    made: tuple[tuple[set[Need], Callable[[], TargetSignals], tuple[object, ...]], ...] = (
        ({Need.LOSSES, Need.TARGET_FEATURES}, stage.initial, (*of_theta, looks_at_features)),
        ({Need.PROMPTS}, stage.losses_without_prompts, of_theta),
        ({Need.TARGET_LOSSES}, stage.losses_after, (*of_theta, *of_data, *learner)),
        ({Need.TARGET_FEATURES}, stage.target_features, (*of_theta, *of_data)),
        ({Need.TARGET_WORDS}, stage.words, of_data),
        (set(TARGET_NEEDS), stage.duplicates, (*of_data, config.evaluation_threads)),
    )
    for made_for, make, depends_on in made:
        if request.needs & made_for:
            key = Key(TargetSignals, f"target {make.__name__}", depends_on)
            signals = signals.merged(workspace.cached(key, make))
    return signals


@dataclass(frozen=True)
class _Stage:
    workspace: Workspace
    request: ResolvedRequest
    sources: Sources
    run_pass: RunPass

    @cached_property
    def joined(self) -> tuple[InMemory, list[Tensor]]:
        """The data with the targets behind it, and each target's positions."""
        workspace, pool = self.workspace, self.workspace.dataset
        targets = [
            open_examples(workspace.read(name), pool, max_examples=MOST_TARGET)[0]
            for name in self.request.targets
        ]
        both = appended(pool, *targets)
        every_M = torch.arange(len(pool), len(both))
        return workspace.beside(both), list(
            torch.split(every_M, [len(target) for target in targets])
        )

    @cached_property
    def model(self) -> nn.Module:
        """theta*, in evaluation mode."""
        return self.workspace.loaded_model(self.sources.config, self.sources.model[1])

    def initial(self) -> TargetSignals:
        """Losses under theta*, and features where they are looked at, in one pass."""
        with_features = Need.TARGET_FEATURES in self.request.needs
        values = ScoredValues.LOSSES_AND_FEATURES if with_features else ScoredValues.LOSSES
        done = self.scored(values, "losses under theta*", self.sources.model[1])
        return TargetSignals(
            losses_N=done.computed[LOSSES],
            features_ND=done.computed.get(FEATURES),
            scored_by=done.scored_by,
        )

    def losses_without_prompts(self) -> TargetSignals:
        self.require_prompts()
        values, weights = ScoredValues.UNPROMPTED, self.sources.model[1]
        done = self.scored(values, "losses without prompts", weights)
        return TargetSignals(unprompted_N=done.computed[LOSSES], scored_by=done.scored_by)

    def losses_after(self) -> TargetSignals:
        """After one short learner on each target; nothing of it is pruned, as nothing travels."""
        workspace, config, (inputs, weights) = (
            self.workspace,
            self.sources.config,
            self.sources.model,
        )
        joined, positions = self.joined
        learners = config.learners.model_copy(
            update={
                "shards": ShardRule.RANDOM,
                "num_learners": 1,
                "num_minibatches": self.request.target_steps,
                "num_steps": 1,
                "num_snapshots": 0,
            }
        )
        unpruned = PruningConfig(method=PruningMethod.NONE, density_min=1.0, density_max=1.0)
        short = config.model_copy(update={"learners": learners, "pruning": unpruned})
        model = self.model
        initial = workspace.read_weights(weights, model)
        after = list[PassResult]()
        for part, ids in enumerate(positions):
            draws = derive_generator(config.seed, "target shard", part)
            size = learners.num_minibatches * learners.batch_size
            shard = draw_by_shares([ids], torch.ones(1), size, generator=draws)
            learner = joined.train_learner(short, inputs, initial, 0, shard, 1.0)
            model.load_state_dict({**initial, **learner.weights})
            after.append(self.scored(ScoredValues.LOSSES, f"losses after target {part + 1}"))
        model.load_state_dict(initial)
        return TargetSignals(
            after_NP=torch.stack([done.computed[LOSSES] for done in after], dim=1),
            scored_by=merged_account(*(done.scored_by for done in after)),
        )

    def target_features(self) -> TargetSignals:
        joined, positions = self.joined
        inputs, ids_M = self.sources.model[0], torch.cat(positions)
        with computation(self.threads):
            batches = joined.batches(inputs, "features of the target", some=ids_M)
            values_of_target = compute_values(self.model, batches, ScoredValues.LOSSES_AND_FEATURES)
        return TargetSignals(target_features_MD=values_of_target[FEATURES])

    def words(self) -> TargetSignals:
        joined, positions = self.joined
        num_examples, vocabulary = len(self.workspace.dataset), dict[str, int]()
        words_NW, target_words_MW = (
            numbered(words_of(joined.dataset, ids), vocabulary)
            for ids in (torch.arange(num_examples), torch.cat(positions))
        )
        return TargetSignals(words_NW=words_NW, target_words_MW=target_words_MW)

    def duplicates(self) -> TargetSignals:
        joined, positions = self.joined
        duplicates_N = duplicates_of(joined, self.threads, torch.cat(positions))
        in_target_N = duplicates_N[: len(self.workspace.dataset)]
        facts = {
            "num_examples": [len(ids) for ids in positions],
            "sha256": [name.sha256 for name in self.request.targets],
            "equal_in_data": int(in_target_N.sum()),
        }
        return TargetSignals(in_target_N=in_target_N, facts=facts)

    def scored(
        self, values: ScoredValues, activity: str, weights: BlobName | None = None
    ) -> PassResult:
        """A pass of the model over the data, with the weights that it has now."""
        inputs, model = self.sources.model[0], self.model
        model_pass = ModelPass(self.sources.config, inputs, model, values, activity, weights)
        return self.run_pass(self.workspace, model_pass)

    @property
    def threads(self) -> int:
        return self.sources.config.evaluation_threads

    def require_prompts(self) -> None:
        targets_N = self.workspace.dataset.targets_N
        if targets_N.ndim == 1 or bool((targets_N[:, 0] != MASKED).all()):
            raise InvalidRequestError(
                f"strategy {self.request.strategy!r} compares completions with and without their "
                "prompts, and the data has no prompts. Name them: prompt=COLUMN&completion=COLUMN, "
                "with a max_length that leaves some of them."
            )
