from lipt.v1 import blob_pb2 as _blob_pb2
from lipt.v1 import run_pb2 as _run_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DiagnoseRequest(_message.Message):
    __slots__ = ("run_id", "proxy", "features")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    proxy: str
    features: _blob_pb2.BlobRef
    def __init__(self, run_id: _Optional[str] = ..., proxy: _Optional[str] = ..., features: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("progress", "diagnosis")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSIS_FIELD_NUMBER: _ClassVar[int]
    progress: _run_pb2.Progress
    diagnosis: DiagnosisDescription
    def __init__(self, progress: _Optional[_Union[_run_pb2.Progress, _Mapping]] = ..., diagnosis: _Optional[_Union[DiagnosisDescription, _Mapping]] = ...) -> None: ...

class DiagnosisDescription(_message.Message):
    __slots__ = ("file", "fingerprint", "num_examples", "run_id", "proxy", "manifest_json")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    file: _blob_pb2.BlobRef
    fingerprint: str
    num_examples: int
    run_id: str
    proxy: str
    manifest_json: str
    def __init__(self, file: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., fingerprint: _Optional[str] = ..., num_examples: _Optional[int] = ..., run_id: _Optional[str] = ..., proxy: _Optional[str] = ..., manifest_json: _Optional[str] = ...) -> None: ...
