"""How a run's record changes with what became of its learners: pure functions."""

from __future__ import annotations

from lipt.common.blobs.name import BlobName
from lipt.coordinator.compute.jobs.pretraining import SoupResult
from lipt.coordinator.dispatch.choosing import requeued
from lipt.coordinator.state.records import (
    IngredientRecord,
    LearnerRecord,
    LearnerState,
    RunRecord,
    SoupRecord,
)

DAMAGED = "its result was in, but the coordinator's disk has changed or lost it"


def without_open_learners(run: RunRecord, reason: str) -> RunRecord:
    """The run as it closes: what is not in by now is dropped, for that reason."""
    learners = tuple(
        learner.changed(state=LearnerState.DROPPED, message=reason)
        if learner.state.open
        else learner
        for learner in run.learners
    )
    return run.changed(learners=learners)


def without_results(run: RunRecord, indices: tuple[int, ...]) -> RunRecord:
    """The run with these learners queued again: their results are not there any more."""
    for index in indices:
        learner = requeued(run.learners[index], DAMAGED)
        run = run.with_learner(learner.changed(result=None, snapshots=()))
    return run


def with_ingredients(
    run: RunRecord, made: SoupResult, arrived: tuple[tuple[int, BlobName], ...]
) -> tuple[LearnerRecord, ...]:
    """The run's learners, those that were offered with their part in the soup."""
    learners = list(run.learners)
    for part in made.ingredients:
        index, _ = arrived[part.index]
        learners[index] = learners[index].changed(
            ingredient=IngredientRecord(
                position=part.position,
                accuracy=part.accuracy,
                soup_accuracy=part.soup_accuracy,
                alpha=part.alpha,
                kept=part.kept,
            )
        )
    return tuple(learners)


def soup_record(made: SoupResult) -> SoupRecord:
    """The soup beside what it was made of."""
    accuracies = [part.accuracy for part in made.ingredients]
    return SoupRecord(
        initial_accuracy=made.initial_accuracy,
        mean_learner_accuracy=sum(accuracies) / len(accuracies),
        best_learner_accuracy=max(accuracies),
        soup_accuracy=made.soup_accuracy,
        num_kept=sum(part.kept for part in made.ingredients),
        num_validation_examples=made.num_validation_examples,
    )
