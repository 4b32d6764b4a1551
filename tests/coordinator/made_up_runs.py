from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.state.records import (
    FailureReason,
    Holder,
    LearnerFailure,
    LearnerRecord,
    LearnerResult,
    LearnerStatus,
    Leased,
    RunRecord,
)
from lipt.data.inputs.specs import ImageFormat

_STATUS: TypeAdapter[LearnerStatus] = TypeAdapter(LearnerStatus)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


def shard_of(learner: LearnerRecord) -> BlobName:
    assert learner.shard is not None
    return learner.shard


def made_up_run(
    run_id: str = "r",
    *,
    num_learners: int = 3,
    model: str = "resnet8",
    state: RunState = RunState.TRAINING,
    min_learners: int = 1,
    deadline_seconds: float = 0.0,
    max_attempts: int = 3,
) -> RunRecord:
    """A run, in TRAINING if not told otherwise, with `num_learners` queued learners."""
    learners = LearnersConfig(
        num_learners=num_learners,
        min_learners=min_learners,
        deadline_seconds=deadline_seconds,
        max_attempts=max_attempts,
    )
    return RunRecord(
        run_id=run_id,
        name=f"name-{run_id}",
        request_id=f"request-{run_id}",
        created_at=1.0,
        config=RunConfig(model=model, learners=learners),
        fingerprint="f" * 64,
        num_classes=10,
        state=state,
        inputs=IMAGE,
        initial_weights=BlobName.of(b"theta*"),
        pretrained_weights=BlobName.of(b"theta_p") if state is RunState.READY else None,
        learners=tuple(
            LearnerRecord(index=index, density=0.9, shard=BlobName.of(b"%d" % index))
            for index in range(num_learners)
        ),
    )


def having(run: RunRecord, *states: LearnerState, message: str = "") -> RunRecord:
    """The run whose first learners are in these states, at or of a worker "box"."""
    for index, state in enumerate(states):
        learner = run.learners[index].changed(status=status(state), message=message)
        run = run.with_learner(learner)
    return run


def holder(worker: str = "box", **facts: Any) -> Holder:
    known = {"worker_id": worker, "worker_name": worker, "credential": worker}
    return Holder(**{"device": "cpu", "kind": "", "leased_at": 0.0, **known, **facts})


def status(state: LearnerState, result: LearnerResult | None = None) -> LearnerStatus:
    """A learner's status, at or of a worker "box"."""
    values: dict[str, object] = {"state": state}
    if state in (LearnerState.LEASED, LearnerState.DONE):
        values["holder"] = holder()
    if state is LearnerState.DONE:
        values["result"] = result or LearnerResult(blob=BlobName.of(b"learner"))
    return _STATUS.validate_python(values)


def leased(learner: LearnerRecord, worker: str) -> LearnerRecord:
    """The learner at a worker, under a new epoch."""
    return learner.changed(status=Leased(holder=holder(worker)), epoch=learner.epoch + 1)


def error(detail: str) -> LearnerFailure:
    """An attempt that failed with an error on its worker."""
    return LearnerFailure(reason=FailureReason.ERROR, detail=detail)
