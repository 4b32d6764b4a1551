from lipt.v1 import limits_pb2 as _limits_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShardRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARD_RULE_UNSPECIFIED: _ClassVar[ShardRule]
    SHARD_RULE_RANDOM: _ClassVar[ShardRule]
    SHARD_RULE_SOURCE: _ClassVar[ShardRule]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_AUTO: _ClassVar[Precision]
    PRECISION_FLOAT32: _ClassVar[Precision]
    PRECISION_BFLOAT16: _ClassVar[Precision]

class LearnerOptimizer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_OPTIMIZER_UNSPECIFIED: _ClassVar[LearnerOptimizer]
    LEARNER_OPTIMIZER_AUTO: _ClassVar[LearnerOptimizer]
    LEARNER_OPTIMIZER_SGD: _ClassVar[LearnerOptimizer]
    LEARNER_OPTIMIZER_ADAMW: _ClassVar[LearnerOptimizer]

class WeightEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHT_ENCODING_UNSPECIFIED: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_BITMASK: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_PLANES: _ClassVar[WeightEncoding]
    WEIGHT_ENCODING_BFLOAT16_PLANES: _ClassVar[WeightEncoding]

class AugmentationMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUGMENTATION_METHOD_UNSPECIFIED: _ClassVar[AugmentationMethod]
    AUGMENTATION_METHOD_RANDAUGMENT: _ClassVar[AugmentationMethod]
    AUGMENTATION_METHOD_CROP_FLIP: _ClassVar[AugmentationMethod]
    AUGMENTATION_METHOD_NONE: _ClassVar[AugmentationMethod]

class PruningMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRUNING_METHOD_UNSPECIFIED: _ClassVar[PruningMethod]
    PRUNING_METHOD_MAGNITUDE: _ClassVar[PruningMethod]
    PRUNING_METHOD_SNIP: _ClassVar[PruningMethod]
    PRUNING_METHOD_RANDOM: _ClassVar[PruningMethod]
    PRUNING_METHOD_NONE: _ClassVar[PruningMethod]

class SoupMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOUP_METHOD_UNSPECIFIED: _ClassVar[SoupMethod]
    SOUP_METHOD_GREEDY: _ClassVar[SoupMethod]
    SOUP_METHOD_UNIFORM: _ClassVar[SoupMethod]
    SOUP_METHOD_INTERPOLATION: _ClassVar[SoupMethod]
    SOUP_METHOD_SIMPLEX: _ClassVar[SoupMethod]
SHARD_RULE_UNSPECIFIED: ShardRule
SHARD_RULE_RANDOM: ShardRule
SHARD_RULE_SOURCE: ShardRule
PRECISION_UNSPECIFIED: Precision
PRECISION_AUTO: Precision
PRECISION_FLOAT32: Precision
PRECISION_BFLOAT16: Precision
LEARNER_OPTIMIZER_UNSPECIFIED: LearnerOptimizer
LEARNER_OPTIMIZER_AUTO: LearnerOptimizer
LEARNER_OPTIMIZER_SGD: LearnerOptimizer
LEARNER_OPTIMIZER_ADAMW: LearnerOptimizer
WEIGHT_ENCODING_UNSPECIFIED: WeightEncoding
WEIGHT_ENCODING_BITMASK: WeightEncoding
WEIGHT_ENCODING_PLANES: WeightEncoding
WEIGHT_ENCODING_BFLOAT16_PLANES: WeightEncoding
AUGMENTATION_METHOD_UNSPECIFIED: AugmentationMethod
AUGMENTATION_METHOD_RANDAUGMENT: AugmentationMethod
AUGMENTATION_METHOD_CROP_FLIP: AugmentationMethod
AUGMENTATION_METHOD_NONE: AugmentationMethod
PRUNING_METHOD_UNSPECIFIED: PruningMethod
PRUNING_METHOD_MAGNITUDE: PruningMethod
PRUNING_METHOD_SNIP: PruningMethod
PRUNING_METHOD_RANDOM: PruningMethod
PRUNING_METHOD_NONE: PruningMethod
SOUP_METHOD_UNSPECIFIED: SoupMethod
SOUP_METHOD_GREEDY: SoupMethod
SOUP_METHOD_UNIFORM: SoupMethod
SOUP_METHOD_INTERPOLATION: SoupMethod
SOUP_METHOD_SIMPLEX: SoupMethod

class RunConfig(_message.Message):
    __slots__ = ("model", "seed", "validation", "initialization", "learners", "augmentation", "pruning", "soup", "evaluation_threads", "adapters")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZATION_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    AUGMENTATION_FIELD_NUMBER: _ClassVar[int]
    PRUNING_FIELD_NUMBER: _ClassVar[int]
    SOUP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_THREADS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model: str
    seed: int
    validation: ValidationConfig
    initialization: InitializationConfig
    learners: LearnersConfig
    augmentation: AugmentationConfig
    pruning: PruningConfig
    soup: SoupConfig
    evaluation_threads: int
    adapters: AdaptersConfig
    def __init__(self, model: _Optional[str] = ..., seed: _Optional[int] = ..., validation: _Optional[_Union[ValidationConfig, _Mapping]] = ..., initialization: _Optional[_Union[InitializationConfig, _Mapping]] = ..., learners: _Optional[_Union[LearnersConfig, _Mapping]] = ..., augmentation: _Optional[_Union[AugmentationConfig, _Mapping]] = ..., pruning: _Optional[_Union[PruningConfig, _Mapping]] = ..., soup: _Optional[_Union[SoupConfig, _Mapping]] = ..., evaluation_threads: _Optional[int] = ..., adapters: _Optional[_Union[AdaptersConfig, _Mapping]] = ...) -> None: ...

class ValidationConfig(_message.Message):
    __slots__ = ("fraction", "min_per_class")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MIN_PER_CLASS_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    min_per_class: int
    def __init__(self, fraction: _Optional[float] = ..., min_per_class: _Optional[int] = ...) -> None: ...

class InitializationConfig(_message.Message):
    __slots__ = ("epochs", "steps", "weights_sha256", "batch_size", "learning_rate", "new_head")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    NEW_HEAD_FIELD_NUMBER: _ClassVar[int]
    epochs: float
    steps: int
    weights_sha256: str
    batch_size: int
    learning_rate: float
    new_head: bool
    def __init__(self, epochs: _Optional[float] = ..., steps: _Optional[int] = ..., weights_sha256: _Optional[str] = ..., batch_size: _Optional[int] = ..., learning_rate: _Optional[float] = ..., new_head: bool = ...) -> None: ...

class LearnersConfig(_message.Message):
    __slots__ = ("num_learners", "num_minibatches", "num_steps", "batch_size", "learning_rate", "momentum", "weight_decay", "min_learners", "deadline_seconds", "max_attempts", "precision", "cpu_threads", "encoding", "num_snapshots", "redundancy", "frozen", "shards", "worker_sources", "optimizer", "accumulation_steps")
    NUM_LEARNERS_FIELD_NUMBER: _ClassVar[int]
    NUM_MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    MIN_LEARNERS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    CPU_THREADS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    NUM_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    REDUNDANCY_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SOURCES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    num_learners: int
    num_minibatches: int
    num_steps: int
    batch_size: int
    learning_rate: float
    momentum: float
    weight_decay: float
    min_learners: int
    deadline_seconds: float
    max_attempts: int
    precision: Precision
    cpu_threads: int
    encoding: WeightEncoding
    num_snapshots: int
    redundancy: int
    frozen: _containers.RepeatedScalarFieldContainer[str]
    shards: ShardRule
    worker_sources: _containers.RepeatedScalarFieldContainer[str]
    optimizer: LearnerOptimizer
    accumulation_steps: int
    def __init__(self, num_learners: _Optional[int] = ..., num_minibatches: _Optional[int] = ..., num_steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., learning_rate: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., min_learners: _Optional[int] = ..., deadline_seconds: _Optional[float] = ..., max_attempts: _Optional[int] = ..., precision: _Optional[_Union[Precision, str]] = ..., cpu_threads: _Optional[int] = ..., encoding: _Optional[_Union[WeightEncoding, str]] = ..., num_snapshots: _Optional[int] = ..., redundancy: _Optional[int] = ..., frozen: _Optional[_Iterable[str]] = ..., shards: _Optional[_Union[ShardRule, str]] = ..., worker_sources: _Optional[_Iterable[str]] = ..., optimizer: _Optional[_Union[LearnerOptimizer, str]] = ..., accumulation_steps: _Optional[int] = ...) -> None: ...

class AdaptersConfig(_message.Message):
    __slots__ = ("rank", "alpha", "target_modules")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    alpha: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., alpha: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ...) -> None: ...

class AugmentationConfig(_message.Message):
    __slots__ = ("method", "num_ops", "magnitude")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_OPS_FIELD_NUMBER: _ClassVar[int]
    MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    method: AugmentationMethod
    num_ops: int
    magnitude: int
    def __init__(self, method: _Optional[_Union[AugmentationMethod, str]] = ..., num_ops: _Optional[int] = ..., magnitude: _Optional[int] = ...) -> None: ...

class PruningConfig(_message.Message):
    __slots__ = ("method", "density_min", "density_max")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    DENSITY_MIN_FIELD_NUMBER: _ClassVar[int]
    DENSITY_MAX_FIELD_NUMBER: _ClassVar[int]
    method: PruningMethod
    density_min: float
    density_max: float
    def __init__(self, method: _Optional[_Union[PruningMethod, str]] = ..., density_min: _Optional[float] = ..., density_max: _Optional[float] = ...) -> None: ...

class SoupConfig(_message.Message):
    __slots__ = ("method", "num_alphas", "reestimate_batch_norm", "batch_norm_examples")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_ALPHAS_FIELD_NUMBER: _ClassVar[int]
    REESTIMATE_BATCH_NORM_FIELD_NUMBER: _ClassVar[int]
    BATCH_NORM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    method: SoupMethod
    num_alphas: int
    reestimate_batch_norm: bool
    batch_norm_examples: int
    def __init__(self, method: _Optional[_Union[SoupMethod, str]] = ..., num_alphas: _Optional[int] = ..., reestimate_batch_norm: bool = ..., batch_norm_examples: _Optional[int] = ...) -> None: ...
