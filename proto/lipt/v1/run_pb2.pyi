import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lipt.v1 import blob_pb2 as _blob_pb2
from lipt.v1 import config_pb2 as _config_pb2
from lipt.v1 import limits_pb2 as _limits_pb2
from lipt.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_PENDING: _ClassVar[RunState]
    RUN_STATE_INITIALIZING: _ClassVar[RunState]
    RUN_STATE_SHARDING: _ClassVar[RunState]
    RUN_STATE_TRAINING: _ClassVar[RunState]
    RUN_STATE_MERGING: _ClassVar[RunState]
    RUN_STATE_READY: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
    RUN_STATE_HELD: _ClassVar[RunState]
    RUN_STATE_UNREADABLE: _ClassVar[RunState]

class LearnerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_STATE_UNSPECIFIED: _ClassVar[LearnerState]
    LEARNER_STATE_QUEUED: _ClassVar[LearnerState]
    LEARNER_STATE_LEASED: _ClassVar[LearnerState]
    LEARNER_STATE_DONE: _ClassVar[LearnerState]
    LEARNER_STATE_FAILED: _ClassVar[LearnerState]
    LEARNER_STATE_DROPPED: _ClassVar[LearnerState]

class WeightsKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTS_KIND_UNSPECIFIED: _ClassVar[WeightsKind]
    WEIGHTS_KIND_INITIAL: _ClassVar[WeightsKind]
    WEIGHTS_KIND_PRETRAINED: _ClassVar[WeightsKind]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_PENDING: RunState
RUN_STATE_INITIALIZING: RunState
RUN_STATE_SHARDING: RunState
RUN_STATE_TRAINING: RunState
RUN_STATE_MERGING: RunState
RUN_STATE_READY: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
RUN_STATE_HELD: RunState
RUN_STATE_UNREADABLE: RunState
LEARNER_STATE_UNSPECIFIED: LearnerState
LEARNER_STATE_QUEUED: LearnerState
LEARNER_STATE_LEASED: LearnerState
LEARNER_STATE_DONE: LearnerState
LEARNER_STATE_FAILED: LearnerState
LEARNER_STATE_DROPPED: LearnerState
WEIGHTS_KIND_UNSPECIFIED: WeightsKind
WEIGHTS_KIND_INITIAL: WeightsKind
WEIGHTS_KIND_PRETRAINED: WeightsKind

class Run(_message.Message):
    __slots__ = ("run_id", "name", "state", "revision", "config", "learners", "message", "progress", "created_at", "ended_at", "fingerprint", "soup", "costs", "initial_weights", "pretrained_weights", "waiting_reason", "lowered_defaults", "initialization_note", "sources")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SOUP_FIELD_NUMBER: _ClassVar[int]
    COSTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PRETRAINED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REASON_FIELD_NUMBER: _ClassVar[int]
    LOWERED_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    INITIALIZATION_NOTE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    state: RunState
    revision: int
    config: _config_pb2.RunConfig
    learners: _containers.RepeatedCompositeFieldContainer[Learner]
    message: str
    progress: Progress
    created_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    fingerprint: str
    soup: SoupReport
    costs: Costs
    initial_weights: _blob_pb2.BlobRef
    pretrained_weights: _blob_pb2.BlobRef
    waiting_reason: str
    lowered_defaults: str
    initialization_note: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., revision: _Optional[int] = ..., config: _Optional[_Union[_config_pb2.RunConfig, _Mapping]] = ..., learners: _Optional[_Iterable[_Union[Learner, _Mapping]]] = ..., message: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fingerprint: _Optional[str] = ..., soup: _Optional[_Union[SoupReport, _Mapping]] = ..., costs: _Optional[_Union[Costs, _Mapping]] = ..., initial_weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., pretrained_weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., waiting_reason: _Optional[str] = ..., lowered_defaults: _Optional[str] = ..., initialization_note: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("activity", "done", "total", "ahead")
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    activity: str
    done: int
    total: int
    ahead: int
    def __init__(self, activity: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., ahead: _Optional[int] = ...) -> None: ...

class Learner(_message.Message):
    __slots__ = ("index", "state", "density", "attempts", "worker_name", "device", "step", "loss", "result", "train_seconds", "message", "ingredient", "phase", "num_steps", "leased_at", "committed_at", "losses", "loss_steps")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DENSITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INGREDIENT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LEASED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    LOSS_STEPS_FIELD_NUMBER: _ClassVar[int]
    index: int
    state: LearnerState
    density: float
    attempts: int
    worker_name: str
    device: str
    step: int
    loss: float
    result: _blob_pb2.BlobRef
    train_seconds: float
    message: str
    ingredient: IngredientReport
    phase: _worker_pb2.LearnerPhase
    num_steps: int
    leased_at: _timestamp_pb2.Timestamp
    committed_at: _timestamp_pb2.Timestamp
    losses: _containers.RepeatedScalarFieldContainer[float]
    loss_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., state: _Optional[_Union[LearnerState, str]] = ..., density: _Optional[float] = ..., attempts: _Optional[int] = ..., worker_name: _Optional[str] = ..., device: _Optional[str] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., result: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., train_seconds: _Optional[float] = ..., message: _Optional[str] = ..., ingredient: _Optional[_Union[IngredientReport, _Mapping]] = ..., phase: _Optional[_Union[_worker_pb2.LearnerPhase, str]] = ..., num_steps: _Optional[int] = ..., leased_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., committed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., losses: _Optional[_Iterable[float]] = ..., loss_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class IngredientReport(_message.Message):
    __slots__ = ("position", "accuracy", "soup_accuracy", "alpha", "kept")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SOUP_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    position: int
    accuracy: float
    soup_accuracy: float
    alpha: float
    kept: bool
    def __init__(self, position: _Optional[int] = ..., accuracy: _Optional[float] = ..., soup_accuracy: _Optional[float] = ..., alpha: _Optional[float] = ..., kept: bool = ...) -> None: ...

class SoupReport(_message.Message):
    __slots__ = ("initial_accuracy", "mean_learner_accuracy", "best_learner_accuracy", "soup_accuracy", "num_kept", "num_validation_examples")
    INITIAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    MEAN_LEARNER_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    BEST_LEARNER_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SOUP_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    NUM_VALIDATION_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    initial_accuracy: float
    mean_learner_accuracy: float
    best_learner_accuracy: float
    soup_accuracy: float
    num_kept: int
    num_validation_examples: int
    def __init__(self, initial_accuracy: _Optional[float] = ..., mean_learner_accuracy: _Optional[float] = ..., best_learner_accuracy: _Optional[float] = ..., soup_accuracy: _Optional[float] = ..., num_kept: _Optional[int] = ..., num_validation_examples: _Optional[int] = ...) -> None: ...

class Costs(_message.Message):
    __slots__ = ("initialization_seconds", "sharding_seconds", "training_seconds", "merging_seconds", "bytes_to_workers", "bytes_from_workers")
    INITIALIZATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARDING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MERGING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_TO_WORKERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FROM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    initialization_seconds: float
    sharding_seconds: float
    training_seconds: float
    merging_seconds: float
    bytes_to_workers: int
    bytes_from_workers: int
    def __init__(self, initialization_seconds: _Optional[float] = ..., sharding_seconds: _Optional[float] = ..., training_seconds: _Optional[float] = ..., merging_seconds: _Optional[float] = ..., bytes_to_workers: _Optional[int] = ..., bytes_from_workers: _Optional[int] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("request_id", "name", "config")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    name: str
    config: _config_pb2.RunConfig
    def __init__(self, request_id: _Optional[str] = ..., name: _Optional[str] = ..., config: _Optional[_Union[_config_pb2.RunConfig, _Mapping]] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_revision")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_revision: int
    def __init__(self, run_id: _Optional[str] = ..., after_revision: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class GetWeightsRequest(_message.Message):
    __slots__ = ("run_id", "kind")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    kind: WeightsKind
    def __init__(self, run_id: _Optional[str] = ..., kind: _Optional[_Union[WeightsKind, str]] = ...) -> None: ...

class GetWeightsResponse(_message.Message):
    __slots__ = ("weights",)
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    weights: _blob_pb2.BlobRef
    def __init__(self, weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ...) -> None: ...
