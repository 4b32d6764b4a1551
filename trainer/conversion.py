"""From the wire's messages to what a trainer sees."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.rpc.wire import enum_value, run_config_from_proto
from lipt.common.run_config import RunConfig
from lipt.trainer.views import (
    BlobView,
    CostsView,
    DatasetView,
    InfoView,
    IngredientView,
    LearnerState,
    LearnerView,
    ProgressView,
    RunState,
    RunView,
    SoupView,
    StrategyOptionView,
    StrategyView,
    WorkerView,
)
from lipt.v1 import blob_pb2, info_pb2, run_pb2, subset_pb2

StateT = TypeVar("StateT", RunState, LearnerState)


def run_view(run: run_pb2.Run) -> RunView:
    """A run as the trainer sees it."""
    return RunView(
        run_id=run.run_id,
        name=run.name,
        state=_state(RunState, run_pb2.RunState.DESCRIPTOR, run.state),
        revision=run.revision,
        message=run.message,
        fingerprint=run.fingerprint,
        config=run_config_from_proto(run.config, RunConfig()),
        learners=tuple(_learner_view(learner) for learner in run.learners),
        progress=progress_view(run.progress) if run.HasField("progress") else None,
        created_at=_time(run.created_at) if run.HasField("created_at") else None,
        ended_at=_time(run.ended_at) if run.HasField("ended_at") else None,
        soup=_soup_view(run.soup) if run.HasField("soup") else None,
        costs=_costs_view(run.costs) if run.HasField("costs") else None,
        initial_weights=blob_view(run.initial_weights) if run.HasField("initial_weights") else None,
        pretrained_weights=(
            blob_view(run.pretrained_weights) if run.HasField("pretrained_weights") else None
        ),
    )


def progress_view(progress: run_pb2.Progress | subset_pb2.SubsetProgress) -> ProgressView:
    """What is being done, and how much of it."""
    return ProgressView(progress.activity, progress.done, progress.total)


def blob_view(blob: blob_pb2.BlobRef) -> BlobView:
    """A blob's name."""
    return BlobView(blob.sha256, blob.size_bytes)


def strategy_view(strategy: subset_pb2.Strategy) -> StrategyView:
    """A strategy with its options."""
    return StrategyView(
        name=strategy.name,
        summary=strategy.summary,
        paper=strategy.paper,
        returns_weights=strategy.returns_weights,
        balanced_by_default=strategy.balanced_by_default,
        options=tuple(
            StrategyOptionView(
                option.name, option.default_value, tuple(option.allowed_values), option.help
            )
            for option in strategy.options
        ),
        needs=tuple(strategy.needs),
        cost=strategy.cost,
    )


def info_view(info: info_pb2.GetInfoResponse) -> InfoView:
    """Who answers, with what data and which workers."""
    return InfoView(
        protocol=(info.protocol.major, info.protocol.minor),
        versions=dict(info.versions),
        device=info.device,
        dataset=_dataset_view(info.dataset) if info.HasField("dataset") else None,
        default_run=run_config_from_proto(info.default_run, RunConfig()),
        workers=tuple(
            WorkerView(
                worker_id=worker.worker_id,
                name=worker.name,
                device=worker.device,
                versions=dict(worker.versions),
                assignment=worker.assignment,
                seconds_since_heard=worker.seconds_since_heard,
            )
            for worker in info.workers
        ),
    )


def _state(states: type[StateT], enum: EnumDescriptor, number: int) -> StateT:
    # A newer coordinator may have states that this version has no word for.
    value = enum_value(enum, number)
    return states(value) if value in set(states) else states("unknown")


def _time(stamp: Timestamp) -> datetime | None:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except ValueError:  # a year that there is not: the rest of the answer is worth having
        return None


def _learner_view(learner: run_pb2.Learner) -> LearnerView:
    return LearnerView(
        index=learner.index,
        state=_state(LearnerState, run_pb2.LearnerState.DESCRIPTOR, learner.state),
        density=learner.density,
        attempts=learner.attempts,
        worker=learner.worker_name,
        device=learner.device,
        step=learner.step,
        loss=learner.loss,
        train_seconds=learner.train_seconds,
        message=learner.message,
        result=blob_view(learner.result) if learner.HasField("result") else None,
        ingredient=(
            IngredientView(
                position=learner.ingredient.position,
                accuracy=learner.ingredient.accuracy,
                soup_accuracy=learner.ingredient.soup_accuracy,
                alpha=learner.ingredient.alpha,
                kept=learner.ingredient.kept,
            )
            if learner.HasField("ingredient")
            else None
        ),
    )


def _soup_view(soup: run_pb2.SoupReport) -> SoupView:
    return SoupView(
        initial_accuracy=soup.initial_accuracy,
        mean_learner_accuracy=soup.mean_learner_accuracy,
        best_learner_accuracy=soup.best_learner_accuracy,
        soup_accuracy=soup.soup_accuracy,
        num_kept=soup.num_kept,
        num_validation_examples=soup.num_validation_examples,
    )


def _costs_view(costs: run_pb2.Costs) -> CostsView:
    return CostsView(
        initialization_seconds=costs.initialization_seconds,
        sharding_seconds=costs.sharding_seconds,
        training_seconds=costs.training_seconds,
        merging_seconds=costs.merging_seconds,
        bytes_to_workers=costs.bytes_to_workers,
        bytes_from_workers=costs.bytes_from_workers,
    )


def _dataset_view(dataset: info_pb2.DatasetInfo) -> DatasetView:
    return DatasetView(
        source=dataset.source,
        num_examples=dataset.num_examples,
        class_names=tuple(dataset.class_names),
        class_counts=tuple(dataset.class_counts),
        fingerprint=dataset.fingerprint,
        image_shape=(dataset.channels, dataset.height, dataset.width),
    )
