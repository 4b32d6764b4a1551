from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlobRef(_message.Message):
    __slots__ = ("sha256", "size_bytes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size_bytes: int
    def __init__(self, sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset_bytes", "data", "crc32")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    data: bytes
    crc32: int
    def __init__(self, offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ("blob", "offset_bytes")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob: BlobRef
    offset_bytes: int
    def __init__(self, blob: _Optional[_Union[BlobRef, _Mapping]] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class ReadBlobResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: Chunk
    def __init__(self, chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class WriteBlobRequest(_message.Message):
    __slots__ = ("blob", "chunk")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    blob: BlobRef
    chunk: Chunk
    def __init__(self, blob: _Optional[_Union[BlobRef, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class WriteBlobResponse(_message.Message):
    __slots__ = ("blob",)
    BLOB_FIELD_NUMBER: _ClassVar[int]
    blob: BlobRef
    def __init__(self, blob: _Optional[_Union[BlobRef, _Mapping]] = ...) -> None: ...

class GetUploadStatusRequest(_message.Message):
    __slots__ = ("blob",)
    BLOB_FIELD_NUMBER: _ClassVar[int]
    blob: BlobRef
    def __init__(self, blob: _Optional[_Union[BlobRef, _Mapping]] = ...) -> None: ...

class GetUploadStatusResponse(_message.Message):
    __slots__ = ("committed_offset_bytes", "complete")
    COMMITTED_OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    committed_offset_bytes: int
    complete: bool
    def __init__(self, committed_offset_bytes: _Optional[int] = ..., complete: bool = ...) -> None: ...
