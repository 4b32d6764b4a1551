"""Seeded damage: to bytes anywhere, to the numbers of a JSON header, to any protobuf message."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from contextlib import suppress
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS = (0, 1, 2, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**64)
_JSON_NUMBERS = (*_NUMBERS, -1, -(2**63), 1e308, -0.5, math.nan, math.inf)
_JSON_WORDS = (b"null", b"[]", b"{}", b'""', b"true", b"[[[[[[[[", b'"\\ud800"', b"1e99999")
_JSON_VALUES = (*_JSON_NUMBERS, None, True, [], {}, "", "F32", "BOOL", [0, 8], [[[[]]]])
_DOUBLES = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 1e308, math.inf, -math.inf, math.nan)
_TEXTS = (
    *("", "x", "latest", "../../etc/passwd", "a/0", "/", "x/-1", "x/99999999999999999999"),
    *("0" * 64, "f" * 64, "F" * 64, "grand", "resnet8", "os:system", "torchvision:resnet18"),
    *("\x00", "\n", "\u202e", "é" * 40, "9" * 5000, "x" * 100_000),
)


def mutate(draw: random.Random, content: bytes) -> bytes:
    """One to four edits: flipped, overwritten, removed, doubled or inserted bytes."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        edit = draw.randrange(6)
        if edit == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif edit == 1:
            data[at : at + 8] = struct.pack("<Q", draw.choice(_NUMBERS) % 2**64)
        elif edit == 2:
            del data[at : at + draw.randint(1, 16)]
        elif edit == 3:
            data[at:at] = data[at : at + draw.randint(1, 64)]
        elif edit == 4:
            data[at:at] = draw.randbytes(draw.randint(1, 16))
        else:
            del data[at:]
    return bytes(data)


def mutate_header(draw: random.Random, content: bytes) -> bytes:
    """A safetensors file whose JSON says something else; its length is that of the new JSON."""
    (length,) = struct.unpack_from("<Q", content)
    header, values = content[8 : 8 + length], content[8 + length :]
    if draw.random() < 0.5:
        with suppress(ValueError, RecursionError):  # it is not JSON any more
            header = json.dumps(mutate_json(draw, json.loads(header))).encode()
            return struct.pack("<Q", len(header)) + header + values
    for _ in range(draw.randint(1, 3)):
        numbers = list(re.finditer(rb"-?\d+|\"[^\"]*\"", header))
        if not numbers:
            break
        place = draw.choice(numbers)
        if draw.random() < 0.7:
            new = repr(draw.choice(_JSON_NUMBERS)).encode()
        else:
            new = draw.choice(_JSON_WORDS)
        header = header[: place.start()] + new + header[place.end() :]
    return struct.pack("<Q", len(header)) + header + values


def mutate_json(draw: random.Random, value: Any) -> Any:
    """One node becomes something else, goes, or gets another name; also of JSON in a text."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        with suppress(ValueError):
            return json.dumps(mutate_json(draw, json.loads(value)))
    if not value or not isinstance(value, dict | list) or draw.random() < 0.05:
        return draw.choice(_JSON_VALUES)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], mutate_json(draw, value[at]), *value[at + 1 :]]
    name = draw.choice(sorted(value))
    rest = {key: kept for key, kept in value.items() if key != name}
    if draw.random() < 0.1:
        return rest
    new = draw.choice(_TEXTS[:10]) if draw.random() < 0.1 else name
    return rest | {new: mutate_json(draw, value[name])}


def random_message(draw: random.Random, message: Message, *, depth: int = 0) -> Any:
    """Fill any message with values of its types, most of them at the edges."""
    for field in message.DESCRIPTOR.fields:
        if draw.random() < 0.3 or depth > 4:
            continue
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        if entry:
            for _ in range(draw.randint(0, 3)):
                # All maps of the contract are from text to text.
                getattr(message, field.name)[draw.choice(_TEXTS)] = draw.choice(_TEXTS)
        elif field.is_repeated:
            for _ in range(draw.randint(0, 3)):
                if field.message_type is not None:
                    random_message(draw, getattr(message, field.name).add(), depth=depth + 1)
                else:
                    getattr(message, field.name).append(_scalar(draw, field))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            random_message(draw, getattr(message, field.name), depth=depth + 1)
        else:
            setattr(message, field.name, _scalar(draw, field))
    return message


def _scalar(draw: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return draw.randbytes(draw.choice((0, 1, 100, 300_000)))
        return draw.choice(_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice((0, 1, 2, 3, 99, -1))
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw.choice(_DOUBLES[:6] if kind == FieldDescriptor.CPPTYPE_FLOAT else _DOUBLES)
    number = draw.choice(_NUMBERS)
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return number % 2**bits
    return draw.choice((1, -1)) * (number % 2 ** (bits - 1))
