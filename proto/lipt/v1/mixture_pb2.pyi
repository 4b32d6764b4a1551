from lipt.v1 import blob_pb2 as _blob_pb2
from lipt.v1 import run_pb2 as _run_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetMixtureRequest(_message.Message):
    __slots__ = ("run_id", "target")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    target: _blob_pb2.BlobRef
    def __init__(self, run_id: _Optional[str] = ..., target: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class GetMixtureResponse(_message.Message):
    __slots__ = ("progress", "mixture")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MIXTURE_FIELD_NUMBER: _ClassVar[int]
    progress: _run_pb2.Progress
    mixture: MixtureDescription
    def __init__(self, progress: _Optional[_Union[_run_pb2.Progress, _Mapping]] = ..., mixture: _Optional[_Union[MixtureDescription, _Mapping]] = ...) -> None: ...

class MixtureDescription(_message.Message):
    __slots__ = ("file", "fingerprint", "run_id", "manifest_json")
    FILE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    file: _blob_pb2.BlobRef
    fingerprint: str
    run_id: str
    manifest_json: str
    def __init__(self, file: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., fingerprint: _Optional[str] = ..., run_id: _Optional[str] = ..., manifest_json: _Optional[str] = ...) -> None: ...
