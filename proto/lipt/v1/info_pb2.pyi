import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from lipt.v1 import config_pb2 as _config_pb2
from lipt.v1 import run_pb2 as _run_pb2
from lipt.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("protocol", "versions", "dataset", "default_run", "workers", "device")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_RUN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    protocol: _worker_pb2.ProtocolVersion
    versions: _containers.ScalarMap[str, str]
    dataset: DatasetInfo
    default_run: _config_pb2.RunConfig
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    device: str
    def __init__(self, protocol: _Optional[_Union[_worker_pb2.ProtocolVersion, _Mapping]] = ..., versions: _Optional[_Mapping[str, str]] = ..., dataset: _Optional[_Union[DatasetInfo, _Mapping]] = ..., default_run: _Optional[_Union[_config_pb2.RunConfig, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., device: _Optional[str] = ...) -> None: ...

class DatasetInfo(_message.Message):
    __slots__ = ("source", "num_examples", "class_names", "class_counts", "fingerprint", "channels", "height", "width", "columns", "other_target", "target_names", "quarantined", "source_names", "source_counts", "number_columns", "category_columns")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OTHER_TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_NAMES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAMES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    source: str
    num_examples: int
    class_names: _containers.RepeatedScalarFieldContainer[str]
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: str
    channels: int
    height: int
    width: int
    columns: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Column]
    other_target: _worker_pb2.Target
    target_names: _containers.RepeatedScalarFieldContainer[str]
    quarantined: _containers.RepeatedScalarFieldContainer[int]
    source_names: _containers.RepeatedScalarFieldContainer[str]
    source_counts: _containers.RepeatedScalarFieldContainer[int]
    number_columns: _containers.RepeatedScalarFieldContainer[str]
    category_columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source: _Optional[str] = ..., num_examples: _Optional[int] = ..., class_names: _Optional[_Iterable[str]] = ..., class_counts: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[str] = ..., channels: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[_worker_pb2.Column, _Mapping]]] = ..., other_target: _Optional[_Union[_worker_pb2.Target, _Mapping]] = ..., target_names: _Optional[_Iterable[str]] = ..., quarantined: _Optional[_Iterable[int]] = ..., source_names: _Optional[_Iterable[str]] = ..., source_counts: _Optional[_Iterable[int]] = ..., number_columns: _Optional[_Iterable[str]] = ..., category_columns: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "name", "device", "versions", "assignment", "seconds_since_last_call", "idle_reason", "joined_at", "certificate_expires_at")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_LAST_CALL_FIELD_NUMBER: _ClassVar[int]
    IDLE_REASON_FIELD_NUMBER: _ClassVar[int]
    JOINED_AT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    name: str
    device: str
    versions: _containers.ScalarMap[str, str]
    assignment: str
    seconds_since_last_call: float
    idle_reason: str
    joined_at: _timestamp_pb2.Timestamp
    certificate_expires_at: _timestamp_pb2.Timestamp
    def __init__(self, worker_id: _Optional[str] = ..., name: _Optional[str] = ..., device: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., assignment: _Optional[str] = ..., seconds_since_last_call: _Optional[float] = ..., idle_reason: _Optional[str] = ..., joined_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., certificate_expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchServiceRequest(_message.Message):
    __slots__ = ("interval_seconds", "num_runs")
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    num_runs: int
    def __init__(self, interval_seconds: _Optional[float] = ..., num_runs: _Optional[int] = ...) -> None: ...

class WatchServiceResponse(_message.Message):
    __slots__ = ("now", "runs", "workers", "num_workers", "computations", "num_runs")
    NOW_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    COMPUTATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    now: _timestamp_pb2.Timestamp
    runs: _containers.RepeatedCompositeFieldContainer[_run_pb2.Run]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    num_workers: int
    computations: _containers.RepeatedCompositeFieldContainer[Computation]
    num_runs: int
    def __init__(self, now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[_run_pb2.Run, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., num_workers: _Optional[int] = ..., computations: _Optional[_Iterable[_Union[Computation, _Mapping]]] = ..., num_runs: _Optional[int] = ...) -> None: ...

class Computation(_message.Message):
    __slots__ = ("queue", "job", "run_id", "num_callers", "computing", "seconds", "progress")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLERS_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    job: str
    run_id: str
    num_callers: int
    computing: bool
    seconds: float
    progress: _run_pb2.Progress
    def __init__(self, queue: _Optional[str] = ..., job: _Optional[str] = ..., run_id: _Optional[str] = ..., num_callers: _Optional[int] = ..., computing: bool = ..., seconds: _Optional[float] = ..., progress: _Optional[_Union[_run_pb2.Progress, _Mapping]] = ...) -> None: ...
