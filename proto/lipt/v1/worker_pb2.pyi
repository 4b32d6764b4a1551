from lipt.v1 import blob_pb2 as _blob_pb2
from lipt.v1 import config_pb2 as _config_pb2
from lipt.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoredValues(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORED_VALUES_UNSPECIFIED: _ClassVar[ScoredValues]
    SCORED_VALUES_SIGNALS: _ClassVar[ScoredValues]
    SCORED_VALUES_LOSSES: _ClassVar[ScoredValues]
    SCORED_VALUES_LOSSES_AND_FEATURES: _ClassVar[ScoredValues]
    SCORED_VALUES_UNPROMPTED: _ClassVar[ScoredValues]

class TargetKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TARGET_KIND_UNSPECIFIED: _ClassVar[TargetKind]
    TARGET_KIND_CLASS: _ClassVar[TargetKind]
    TARGET_KIND_CLASSES: _ClassVar[TargetKind]
    TARGET_KIND_NUMBER: _ClassVar[TargetKind]
    TARGET_KIND_TOKENS: _ClassVar[TargetKind]

class ColumnType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_TYPE_UNSPECIFIED: _ClassVar[ColumnType]
    COLUMN_TYPE_FLOAT64: _ClassVar[ColumnType]
    COLUMN_TYPE_FLOAT32: _ClassVar[ColumnType]
    COLUMN_TYPE_FLOAT16: _ClassVar[ColumnType]
    COLUMN_TYPE_BFLOAT16: _ClassVar[ColumnType]
    COLUMN_TYPE_INT64: _ClassVar[ColumnType]
    COLUMN_TYPE_INT32: _ClassVar[ColumnType]
    COLUMN_TYPE_INT16: _ClassVar[ColumnType]
    COLUMN_TYPE_INT8: _ClassVar[ColumnType]
    COLUMN_TYPE_UINT8: _ClassVar[ColumnType]
    COLUMN_TYPE_BOOL: _ClassVar[ColumnType]

class LearnerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_PHASE_UNSPECIFIED: _ClassVar[LearnerPhase]
    LEARNER_PHASE_FETCHING: _ClassVar[LearnerPhase]
    LEARNER_PHASE_TRAINING: _ClassVar[LearnerPhase]
    LEARNER_PHASE_SUBMITTING: _ClassVar[LearnerPhase]

class DivergedQuantity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIVERGED_QUANTITY_UNSPECIFIED: _ClassVar[DivergedQuantity]
    DIVERGED_QUANTITY_LOSS: _ClassVar[DivergedQuantity]
    DIVERGED_QUANTITY_WEIGHTS: _ClassVar[DivergedQuantity]
    DIVERGED_QUANTITY_GRADIENT: _ClassVar[DivergedQuantity]
SCORED_VALUES_UNSPECIFIED: ScoredValues
SCORED_VALUES_SIGNALS: ScoredValues
SCORED_VALUES_LOSSES: ScoredValues
SCORED_VALUES_LOSSES_AND_FEATURES: ScoredValues
SCORED_VALUES_UNPROMPTED: ScoredValues
TARGET_KIND_UNSPECIFIED: TargetKind
TARGET_KIND_CLASS: TargetKind
TARGET_KIND_CLASSES: TargetKind
TARGET_KIND_NUMBER: TargetKind
TARGET_KIND_TOKENS: TargetKind
COLUMN_TYPE_UNSPECIFIED: ColumnType
COLUMN_TYPE_FLOAT64: ColumnType
COLUMN_TYPE_FLOAT32: ColumnType
COLUMN_TYPE_FLOAT16: ColumnType
COLUMN_TYPE_BFLOAT16: ColumnType
COLUMN_TYPE_INT64: ColumnType
COLUMN_TYPE_INT32: ColumnType
COLUMN_TYPE_INT16: ColumnType
COLUMN_TYPE_INT8: ColumnType
COLUMN_TYPE_UINT8: ColumnType
COLUMN_TYPE_BOOL: ColumnType
LEARNER_PHASE_UNSPECIFIED: LearnerPhase
LEARNER_PHASE_FETCHING: LearnerPhase
LEARNER_PHASE_TRAINING: LearnerPhase
LEARNER_PHASE_SUBMITTING: LearnerPhase
DIVERGED_QUANTITY_UNSPECIFIED: DivergedQuantity
DIVERGED_QUANTITY_LOSS: DivergedQuantity
DIVERGED_QUANTITY_WEIGHTS: DivergedQuantity
DIVERGED_QUANTITY_GRADIENT: DivergedQuantity

class ProtocolVersion(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("instance_id", "name", "protocol", "device", "versions", "allowed_modules", "has_data", "source")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MODULES_FIELD_NUMBER: _ClassVar[int]
    HAS_DATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    name: str
    protocol: ProtocolVersion
    device: str
    versions: _containers.ScalarMap[str, str]
    allowed_modules: _containers.RepeatedScalarFieldContainer[str]
    has_data: bool
    source: str
    def __init__(self, instance_id: _Optional[str] = ..., name: _Optional[str] = ..., protocol: _Optional[_Union[ProtocolVersion, _Mapping]] = ..., device: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., allowed_modules: _Optional[_Iterable[str]] = ..., has_data: bool = ..., source: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("worker_id", "protocol")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    protocol: ProtocolVersion
    def __init__(self, worker_id: _Optional[str] = ..., protocol: _Optional[_Union[ProtocolVersion, _Mapping]] = ...) -> None: ...

class AcquireAssignmentRequest(_message.Message):
    __slots__ = ("worker_id", "wait_seconds")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    wait_seconds: float
    def __init__(self, worker_id: _Optional[str] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class AcquireAssignmentResponse(_message.Message):
    __slots__ = ("assignment", "idle_reason")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    IDLE_REASON_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    idle_reason: str
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., idle_reason: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("assignment_id", "run_id", "learner_index", "lease", "initial_weights", "shard", "task", "scoring", "own_shard")
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNER_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    OWN_SHARD_FIELD_NUMBER: _ClassVar[int]
    assignment_id: str
    run_id: str
    learner_index: int
    lease: Lease
    initial_weights: _blob_pb2.BlobRef
    shard: _blob_pb2.BlobRef
    task: LearnerTask
    scoring: ScoringTask
    own_shard: OwnShard
    def __init__(self, assignment_id: _Optional[str] = ..., run_id: _Optional[str] = ..., learner_index: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., initial_weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., shard: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., task: _Optional[_Union[LearnerTask, _Mapping]] = ..., scoring: _Optional[_Union[ScoringTask, _Mapping]] = ..., own_shard: _Optional[_Union[OwnShard, _Mapping]] = ...) -> None: ...

class OwnShard(_message.Message):
    __slots__ = ("source", "seed", "half", "names", "flagged", "number_columns", "category_columns")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FLAGGED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    source: str
    seed: int
    half: int
    names: _containers.RepeatedScalarFieldContainer[str]
    flagged: bool
    number_columns: _containers.RepeatedScalarFieldContainer[str]
    category_columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source: _Optional[str] = ..., seed: _Optional[int] = ..., half: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., flagged: bool = ..., number_columns: _Optional[_Iterable[str]] = ..., category_columns: _Optional[_Iterable[str]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("epoch", "duration_seconds", "heartbeat_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    duration_seconds: float
    heartbeat_seconds: float
    def __init__(self, epoch: _Optional[int] = ..., duration_seconds: _Optional[float] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class LearnerTask(_message.Message):
    __slots__ = ("model", "num_classes", "image", "learners", "augmentation", "pruning_method", "density", "seed", "columns", "other_target", "adapters")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    AUGMENTATION_FIELD_NUMBER: _ClassVar[int]
    PRUNING_METHOD_FIELD_NUMBER: _ClassVar[int]
    DENSITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OTHER_TARGET_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_classes: int
    image: ImageFormat
    learners: _config_pb2.LearnersConfig
    augmentation: _config_pb2.AugmentationConfig
    pruning_method: _config_pb2.PruningMethod
    density: float
    seed: int
    columns: ColumnsFormat
    other_target: Target
    adapters: _config_pb2.AdaptersConfig
    def __init__(self, model: _Optional[str] = ..., num_classes: _Optional[int] = ..., image: _Optional[_Union[ImageFormat, _Mapping]] = ..., learners: _Optional[_Union[_config_pb2.LearnersConfig, _Mapping]] = ..., augmentation: _Optional[_Union[_config_pb2.AugmentationConfig, _Mapping]] = ..., pruning_method: _Optional[_Union[_config_pb2.PruningMethod, str]] = ..., density: _Optional[float] = ..., seed: _Optional[int] = ..., columns: _Optional[_Union[ColumnsFormat, _Mapping]] = ..., other_target: _Optional[_Union[Target, _Mapping]] = ..., adapters: _Optional[_Union[_config_pb2.AdaptersConfig, _Mapping]] = ...) -> None: ...

class ScoringTask(_message.Message):
    __slots__ = ("model", "num_classes", "image", "columns", "other_target", "fingerprint", "start", "stop", "batch_size", "threads", "half_errors", "half_features", "seed", "quarantined", "nonce", "proof_ids", "adapters", "values")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OTHER_TARGET_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    HALF_ERRORS_FIELD_NUMBER: _ClassVar[int]
    HALF_FEATURES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_IDS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    model: str
    num_classes: int
    image: ImageFormat
    columns: ColumnsFormat
    other_target: Target
    fingerprint: str
    start: int
    stop: int
    batch_size: int
    threads: int
    half_errors: bool
    half_features: bool
    seed: int
    quarantined: _containers.RepeatedScalarFieldContainer[int]
    nonce: str
    proof_ids: _containers.RepeatedScalarFieldContainer[int]
    adapters: _config_pb2.AdaptersConfig
    values: ScoredValues
    def __init__(self, model: _Optional[str] = ..., num_classes: _Optional[int] = ..., image: _Optional[_Union[ImageFormat, _Mapping]] = ..., columns: _Optional[_Union[ColumnsFormat, _Mapping]] = ..., other_target: _Optional[_Union[Target, _Mapping]] = ..., fingerprint: _Optional[str] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., batch_size: _Optional[int] = ..., threads: _Optional[int] = ..., half_errors: bool = ..., half_features: bool = ..., seed: _Optional[int] = ..., quarantined: _Optional[_Iterable[int]] = ..., nonce: _Optional[str] = ..., proof_ids: _Optional[_Iterable[int]] = ..., adapters: _Optional[_Union[_config_pb2.AdaptersConfig, _Mapping]] = ..., values: _Optional[_Union[ScoredValues, str]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("kind", "num_labels", "mean", "std", "num_tokens", "length")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_LABELS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    kind: TargetKind
    num_labels: int
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    num_tokens: int
    length: int
    def __init__(self, kind: _Optional[_Union[TargetKind, str]] = ..., num_labels: _Optional[int] = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ..., num_tokens: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ImageFormat(_message.Message):
    __slots__ = ("channels", "height", "width", "mean", "std")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    channels: int
    height: int
    width: int
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, channels: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ...) -> None: ...

class ColumnsFormat(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[ColumnFormat]
    def __init__(self, columns: _Optional[_Iterable[_Union[ColumnFormat, _Mapping]]] = ...) -> None: ...

class ColumnFormat(_message.Message):
    __slots__ = ("column", "mean", "std")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    column: Column
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, column: _Optional[_Union[Column, _Mapping]] = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "shape", "num_values", "standardized")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    STANDARDIZED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: ColumnType
    shape: _containers.RepeatedScalarFieldContainer[int]
    num_values: int
    standardized: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[ColumnType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., num_values: _Optional[int] = ..., standardized: bool = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "assignment_id", "epoch", "progress")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    assignment_id: str
    epoch: int
    progress: LearnerProgress
    def __init__(self, worker_id: _Optional[str] = ..., assignment_id: _Optional[str] = ..., epoch: _Optional[int] = ..., progress: _Optional[_Union[LearnerProgress, _Mapping]] = ...) -> None: ...

class LearnerProgress(_message.Message):
    __slots__ = ("phase", "step", "num_steps", "loss")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    phase: LearnerPhase
    step: int
    num_steps: int
    loss: float
    def __init__(self, phase: _Optional[_Union[LearnerPhase, str]] = ..., step: _Optional[int] = ..., num_steps: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("stop",)
    STOP_FIELD_NUMBER: _ClassVar[int]
    stop: bool
    def __init__(self, stop: bool = ...) -> None: ...

class CommitResultRequest(_message.Message):
    __slots__ = ("worker_id", "assignment_id", "epoch", "result", "report", "snapshots", "data_proof")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    DATA_PROOF_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    assignment_id: str
    epoch: int
    result: _blob_pb2.BlobRef
    report: LearnerReport
    snapshots: _containers.RepeatedCompositeFieldContainer[_blob_pb2.BlobRef]
    data_proof: str
    def __init__(self, worker_id: _Optional[str] = ..., assignment_id: _Optional[str] = ..., epoch: _Optional[int] = ..., result: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., report: _Optional[_Union[LearnerReport, _Mapping]] = ..., snapshots: _Optional[_Iterable[_Union[_blob_pb2.BlobRef, _Mapping]]] = ..., data_proof: _Optional[str] = ...) -> None: ...

class LearnerReport(_message.Message):
    __slots__ = ("loss", "train_seconds", "total_seconds", "bytes_received", "num_examples", "fingerprint")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    loss: float
    train_seconds: float
    total_seconds: float
    bytes_received: int
    num_examples: int
    fingerprint: str
    def __init__(self, loss: _Optional[float] = ..., train_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., bytes_received: _Optional[int] = ..., num_examples: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class CommitResultResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseAssignmentRequest(_message.Message):
    __slots__ = ("worker_id", "assignment_id", "epoch", "error", "over_limits", "divergence")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OVER_LIMITS_FIELD_NUMBER: _ClassVar[int]
    DIVERGENCE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    assignment_id: str
    epoch: int
    error: str
    over_limits: bool
    divergence: Divergence
    def __init__(self, worker_id: _Optional[str] = ..., assignment_id: _Optional[str] = ..., epoch: _Optional[int] = ..., error: _Optional[str] = ..., over_limits: bool = ..., divergence: _Optional[_Union[Divergence, _Mapping]] = ...) -> None: ...

class Divergence(_message.Message):
    __slots__ = ("quantity", "step", "num_steps")
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    quantity: DivergedQuantity
    step: int
    num_steps: int
    def __init__(self, quantity: _Optional[_Union[DivergedQuantity, str]] = ..., step: _Optional[int] = ..., num_steps: _Optional[int] = ...) -> None: ...

class ReleaseAssignmentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDemandRequest(_message.Message):
    __slots__ = ("wait_seconds", "known")
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    wait_seconds: float
    known: GetDemandResponse
    def __init__(self, wait_seconds: _Optional[float] = ..., known: _Optional[_Union[GetDemandResponse, _Mapping]] = ...) -> None: ...

class GetDemandResponse(_message.Message):
    __slots__ = ("num_queued", "num_leased", "num_upcoming", "num_ranges")
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASED_FIELD_NUMBER: _ClassVar[int]
    NUM_UPCOMING_FIELD_NUMBER: _ClassVar[int]
    NUM_RANGES_FIELD_NUMBER: _ClassVar[int]
    num_queued: int
    num_leased: int
    num_upcoming: int
    num_ranges: int
    def __init__(self, num_queued: _Optional[int] = ..., num_leased: _Optional[int] = ..., num_upcoming: _Optional[int] = ..., num_ranges: _Optional[int] = ...) -> None: ...
