"""Messages: converts records to protobuf messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.config.values import dump, run_config_to_proto
from lipt.common.errors import DataError
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, enum_to_proto, fill_message
from lipt.common.states import LearnerPhase, RunState
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.state.records import Done, LearnerRecord, Leased, RunRecord, RunSummary
from lipt.data.inputs.specs import ImageSpec
from lipt.v1 import info_pb2, run_pb2, worker_pb2

MessageT = TypeVar("MessageT", bound=Message)

# gRPC's limit of a message is 4 MiB, and an answer has more than the data set.
_MAX_VIEW_BYTES = 3 * 2**20


def message_of(kind: type[MessageT], value: object, /, **more: Any) -> MessageT:
    """Build a message from `value`'s attributes; keywords in `more` take precedence.

    Times are in seconds, enums are given by member names, and None leaves a field unset.
    """
    given = {
        name: convert(attribute)
        for name, convert in _fields(kind.DESCRIPTOR)
        if (attribute := more[name] if name in more else getattr(value, name, None)) is not None
    }
    return kind(**given)


@cache
def _fields(kind: Descriptor) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    def converter(field: Any) -> Callable[[Any], Any]:
        if field.enum_type is not None:
            return lambda value: enum_to_proto(field.enum_type, value)
        return timestamp if field.message_type is Timestamp.DESCRIPTOR else _plain

    return tuple((field.name, converter(field)) for field in kind.fields)


def _plain(value: Any) -> Any:
    if isinstance(value, BlobName):
        return blob_to_proto(value)
    if isinstance(value, BaseModel):
        return value.model_dump()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp


def protocol_version() -> worker_pb2.ProtocolVersion:
    return worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR)


def run_view(
    store: RunStore, run: RunRecord, *, waiting_reason: str = "", learners: bool = True
) -> run_pb2.Run:
    """A run with its learners' progress; `waiting_reason` is why its learners wait."""
    return message_of(
        run_pb2.Run,
        run,
        state=store.shown_state(run),
        revision=store.revision(run.run_id),
        config=run_config_to_proto(run.config),
        message=_message(store.held(run.run_id), run),
        progress=run_pb2.Progress(**asdict(store.activity(run.run_id))),
        costs=run_pb2.Costs(**run.all_costs),
        waiting_reason=waiting_reason,
        learners=[
            _learner(store, learner, store.progress(run.run_id, learner.index), run)
            for learner in (run.learners if learners else ())
        ],
    )


def unreadable_view(store: RunStore, run: RunSummary, problem: str) -> run_pb2.Run:
    """A run whose record cannot be read: its id, name and creation."""
    shown = {"state": RunState.UNREADABLE, "message": problem, "fingerprint": ""}
    return message_of(run_pb2.Run, run, revision=store.revision(run.run_id), **shown)


def _message(held: str, run: RunRecord) -> str:
    if held and not run.state.ended:
        return f"{held} The run goes on by itself then, from where it is: {run.state}."
    if held and run.state is RunState.READY:
        return f"{held} Until then the run gives what is stored, and nothing new."
    return run.message


def _learner(
    store: RunStore, learner: LearnerRecord, progress: LearnerProgress, run: RunRecord
) -> run_pb2.Learner:
    num_steps = run.config.learners.num_steps
    curve = store.losses(run.run_id, learner.index)
    shown: dict[str, Any] = {
        "step": progress.step,
        "loss": progress.loss,
        "losses": curve.losses,
        "loss_steps": curve.steps,
    }
    match learner.status:
        case Leased(holder=holder):
            known = progress.phase is not LearnerPhase.UNKNOWN
            shown |= dict(holder) | {"phase": progress.phase if known else None}
        case Done(holder=holder, result=result):
            shown = dict(holder) | dict(result) | {"result": result.blob, "step": num_steps}
    return message_of(
        run_pb2.Learner,
        learner,
        attempts=learner.epoch,
        message=learner.account,
        ingredient=store.ingredient(run.run_id, learner),
        num_steps=num_steps,
        **shown,
    )


def dataset_view(data: DataDescription) -> info_pb2.DatasetInfo:
    """The data set as GetInfo sends it; raises DataError if it does not fit into a message."""
    inputs, other = data.inputs, data.other_target
    channels, height, width = inputs.shape if isinstance(inputs, ImageSpec) else (0, 0, 0)
    columns = () if isinstance(inputs, ImageSpec) else inputs.columns
    view = message_of(
        info_pb2.DatasetInfo,
        data,
        num_examples=data.num_rows,
        channels=channels,
        height=height,
        width=width,
        columns=[fill_message(worker_pb2.Column(), dump(column)) for column in columns],
        other_target=None if other is None else fill_message(worker_pb2.Target(), dump(other)),
    )
    if view.ByteSize() > _MAX_VIEW_BYTES:
        names, broken = len(data.class_names) + len(data.target_names), len(data.quarantined)
        raise DataError(
            f"{data.source} has {names} names of classes and targets, {broken} broken images; "
            f"its description takes {view.ByteSize() / 1e6:.1f} MB; a message takes "
            f"{_MAX_VIEW_BYTES / 1e6:.1f}. Give shorter names, and replace broken images."
        )
    return view
