"""Messages: records as the contract shows them."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.config.values import dump, run_config_to_proto
from lipt.common.inputs.specs import ImageSpec
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, enum_to_proto, fill_message
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.dispatch.quarantine import account_of, furthest_step
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.state.records import LearnerRecord, RunRecord
from lipt.v1 import blob_pb2, info_pb2, run_pb2, worker_pb2


def protocol_version() -> worker_pb2.ProtocolVersion:
    """The protocol of this version."""
    return worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR)


def run_view(
    store: RunStore, run: RunRecord, *, waiting: str = "", learners: bool = True
) -> run_pb2.Run:
    """A run with its learners' progress; `waiting` is what its learners wait for."""
    activity = store.activity(run.run_id)
    view = run_pb2.Run(
        run_id=run.run_id,
        name=run.name,
        state=enum_to_proto(run_pb2.RunState.DESCRIPTOR, store.shown_state(run)),
        revision=store.revision(run.run_id),
        config=run_config_to_proto(run.config),
        message=_message(store.held(run.run_id), run) or _standing(store, run),
        progress=run_pb2.Progress(
            activity=activity.text, done=activity.done, total=activity.total, ahead=activity.ahead
        ),
        created_at=timestamp(run.created_at),
        fingerprint=run.fingerprint,
        costs=run_pb2.Costs(**run.all_costs),
        initial_weights=_blob(run.initial_weights),
        pretrained_weights=_blob(run.pretrained_weights),
        waiting=waiting,
        fitted=run.fitted,
        note=run.note,
    )
    if run.ended_at is not None:
        view.ended_at.CopyFrom(timestamp(run.ended_at))
    if run.soup is not None:
        view.soup.CopyFrom(run_pb2.SoupReport(**run.soup.model_dump()))
    if learners:
        view.learners.extend(
            _learner(store, learner, store.progress(run.run_id, learner.index), run)
            for learner in run.learners
        )
    return view


def _message(held: str, run: RunRecord) -> str:
    if held and not run.state.ended:
        return f"{held} The run goes on by itself then, from where it is: {run.state}."
    if held and run.state is RunState.READY:
        return f"{held} Until then the run gives what is stored, and nothing new."
    return run.message


def _standing(store: RunStore, run: RunRecord) -> str:
    """A note on learners under suspicion."""
    under_suspicion = any(learner.silent_ends for learner in run.learners)
    if run.state is not RunState.TRAINING or not under_suspicion:
        return ""
    return account_of(run, furthest=furthest_step(run, store))


def _learner(
    store: RunStore, learner: LearnerRecord, progress: LearnerProgress, run: RunRecord
) -> run_pb2.Learner:
    done = learner.state is LearnerState.DONE
    out = learner.state is LearnerState.LEASED and progress.phase is not LearnerPhase.UNKNOWN
    view = run_pb2.Learner(
        index=learner.index,
        state=enum_to_proto(run_pb2.LearnerState.DESCRIPTOR, learner.state),
        density=learner.density,
        attempts=learner.epoch,
        worker_name=learner.worker_name,
        device=learner.device,
        step=run.config.learners.num_steps if done else progress.step,
        loss=learner.loss if done else progress.loss,
        result=_blob(learner.result),
        train_seconds=learner.train_seconds,
        message=learner.account,
        phase=enum_to_proto(worker_pb2.LearnerPhase.DESCRIPTOR, progress.phase) if out else None,
        num_steps=run.config.learners.num_steps,
        leased_at=optional_timestamp(learner.leased_at),
        committed_at=optional_timestamp(learner.committed_at),
    )
    ingredient = store.ingredient(run.run_id, learner)
    if ingredient is not None:
        view.ingredient.CopyFrom(run_pb2.IngredientReport(**ingredient.model_dump()))
    return view


def dataset_view(data: DataDescription) -> info_pb2.DatasetInfo:
    """The data set as `lipt doctor` shows it."""
    inputs = data.inputs
    image = inputs.shape if isinstance(inputs, ImageSpec) else (0, 0, 0)
    channels, height, width = image
    columns = () if isinstance(inputs, ImageSpec) else inputs.columns
    other = data.other_target
    return info_pb2.DatasetInfo(
        source=data.source,
        num_examples=data.num_rows,
        class_names=data.class_names,
        class_counts=data.class_counts,
        fingerprint=data.fingerprint,
        channels=channels,
        height=height,
        width=width,
        columns=[fill_message(worker_pb2.Column(), dump(column)) for column in columns],
        other_target=None if other is None else fill_message(worker_pb2.Target(), dump(other)),
        target_names=data.target_names,
        quarantined=data.quarantined,
    )


def _blob(name: BlobName | None) -> blob_pb2.BlobRef | None:
    return None if name is None else blob_to_proto(name)


def optional_timestamp(seconds: float | None) -> Timestamp | None:
    """A moment of the wall clock, where there is one."""
    return None if seconds is None else timestamp(seconds)


def timestamp(seconds: float) -> Timestamp:
    """A moment of the wall clock."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
