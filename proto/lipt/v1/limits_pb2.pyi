from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
MAX_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
max_characters: _descriptor.FieldDescriptor
MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
max_entries: _descriptor.FieldDescriptor
