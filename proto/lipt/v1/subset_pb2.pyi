from lipt.v1 import blob_pb2 as _blob_pb2
from lipt.v1 import limits_pb2 as _limits_pb2
from lipt.v1 import run_pb2 as _run_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetSubsetRequest(_message.Message):
    __slots__ = ("run_id", "strategy", "fraction", "budget", "balanced", "options", "weights", "features", "previous", "preset", "proxy", "labels", "soft_labels", "mixture", "targets")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SOFT_LABELS_FIELD_NUMBER: _ClassVar[int]
    MIXTURE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    strategy: str
    fraction: float
    budget: int
    balanced: bool
    options: _containers.ScalarMap[str, str]
    weights: _blob_pb2.BlobRef
    features: _blob_pb2.BlobRef
    previous: str
    preset: str
    proxy: str
    labels: str
    soft_labels: bool
    mixture: _blob_pb2.BlobRef
    targets: _containers.RepeatedCompositeFieldContainer[_blob_pb2.BlobRef]
    def __init__(self, run_id: _Optional[str] = ..., strategy: _Optional[str] = ..., fraction: _Optional[float] = ..., budget: _Optional[int] = ..., balanced: bool = ..., options: _Optional[_Mapping[str, str]] = ..., weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., features: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., previous: _Optional[str] = ..., preset: _Optional[str] = ..., proxy: _Optional[str] = ..., labels: _Optional[str] = ..., soft_labels: bool = ..., mixture: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[_blob_pb2.BlobRef, _Mapping]]] = ...) -> None: ...

class GetSubsetResponse(_message.Message):
    __slots__ = ("progress", "subset")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUBSET_FIELD_NUMBER: _ClassVar[int]
    progress: _run_pb2.Progress
    subset: Subset
    def __init__(self, progress: _Optional[_Union[_run_pb2.Progress, _Mapping]] = ..., subset: _Optional[_Union[Subset, _Mapping]] = ...) -> None: ...

class Subset(_message.Message):
    __slots__ = ("run_id", "strategy", "num_examples", "balanced", "fingerprint", "digest", "weights_sha256", "manifest_json", "kept", "file", "num_classes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    BALANCED_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    strategy: str
    num_examples: int
    balanced: bool
    fingerprint: str
    digest: str
    weights_sha256: str
    manifest_json: str
    kept: bool
    file: _blob_pb2.BlobRef
    num_classes: int
    def __init__(self, run_id: _Optional[str] = ..., strategy: _Optional[str] = ..., num_examples: _Optional[int] = ..., balanced: bool = ..., fingerprint: _Optional[str] = ..., digest: _Optional[str] = ..., weights_sha256: _Optional[str] = ..., manifest_json: _Optional[str] = ..., kept: bool = ..., file: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., num_classes: _Optional[int] = ...) -> None: ...

class ListStrategiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListStrategiesResponse(_message.Message):
    __slots__ = ("strategies",)
    STRATEGIES_FIELD_NUMBER: _ClassVar[int]
    strategies: _containers.RepeatedCompositeFieldContainer[Strategy]
    def __init__(self, strategies: _Optional[_Iterable[_Union[Strategy, _Mapping]]] = ...) -> None: ...

class Strategy(_message.Message):
    __slots__ = ("name", "summary", "paper", "returns_weights", "balanced_by_default", "options", "needs", "cost", "presets", "default_proxy", "works_without_labels", "target_kinds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PAPER_FIELD_NUMBER: _ClassVar[int]
    RETURNS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BALANCED_BY_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROXY_FIELD_NUMBER: _ClassVar[int]
    WORKS_WITHOUT_LABELS_FIELD_NUMBER: _ClassVar[int]
    TARGET_KINDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    paper: str
    returns_weights: bool
    balanced_by_default: bool
    options: _containers.RepeatedCompositeFieldContainer[StrategyOption]
    needs: _containers.RepeatedScalarFieldContainer[str]
    cost: str
    presets: _containers.RepeatedCompositeFieldContainer[StrategyPreset]
    default_proxy: str
    works_without_labels: bool
    target_kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ..., paper: _Optional[str] = ..., returns_weights: bool = ..., balanced_by_default: bool = ..., options: _Optional[_Iterable[_Union[StrategyOption, _Mapping]]] = ..., needs: _Optional[_Iterable[str]] = ..., cost: _Optional[str] = ..., presets: _Optional[_Iterable[_Union[StrategyPreset, _Mapping]]] = ..., default_proxy: _Optional[str] = ..., works_without_labels: bool = ..., target_kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class StrategyPreset(_message.Message):
    __slots__ = ("name", "summary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    summary: str
    def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

class StrategyOption(_message.Message):
    __slots__ = ("name", "default_value", "allowed_values", "help")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_VALUES_FIELD_NUMBER: _ClassVar[int]
    HELP_FIELD_NUMBER: _ClassVar[int]
    name: str
    default_value: str
    allowed_values: _containers.RepeatedScalarFieldContainer[str]
    help: str
    def __init__(self, name: _Optional[str] = ..., default_value: _Optional[str] = ..., allowed_values: _Optional[_Iterable[str]] = ..., help: _Optional[str] = ...) -> None: ...
