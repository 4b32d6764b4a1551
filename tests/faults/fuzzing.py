"""Coverage-guided fuzzing of what parses a peer's bytes: atheris keeps what reaches new code.

Run: python -m tests.faults.fuzzing TARGET CORPUS [FLAGS OF libFuzzer]
It starts from CORPUS, a directory, and from a good input of its own, and ends with a status
other than 0 at the first input that is neither read nor refused by name, or takes too long.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import resource
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.faults.mutation import mutate, mutate_header, random_message

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lipt.common.blobs.store import BlobStore
    from lipt.v1 import blob_pb2

CHUNKS = "chunk stream"

Parse = Callable[[bytes], None]
Damage = Callable[[random.Random, bytes], bytes]

_BLOB = bytes(range(256)) * 2
_MAX_BYTES = 20_000
# Corpus and caches; no case has more than some kilobytes to decode.
_MAX_GROWTH_BYTES = 256 * 2**20


def main() -> None:
    target, corpus, *flags = sys.argv[1:]
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["lipt"]):
        import lipt.common.blobs.blob  # noqa: F401 - the chunk stream's, too
        from lipt.common.errors import LiptError
        from tests.faults.test_hostile_bytes import READERS
        from tests.faults.test_hostile_messages import CONVERTERS

    with TemporaryDirectory() as directory:
        if target in READERS:
            (parse, make), damage = READERS[target], damage_file
            good = make()
            parse(good)
        elif target in CONVERTERS:
            parse, good, damage = one_message(*CONVERTERS[target])
        else:
            parse, good, damage = chunk_stream(Path(directory))
            parse(good)
        (Path(corpus) / "good").write_bytes(good)

        def one(content: bytes) -> None:
            with suppress(LiptError):
                parse(content)

        def mutator(content: bytes, max_bytes: int, seed: int) -> bytes:
            draw = random.Random(seed)
            if draw.random() < 0.3:
                changed: bytes = atheris.Mutate(content, len(content))
                return changed
            return damage(draw, content)[:max_bytes]

        # libFuzzer looks at the peak, which a process has from the one that started it.
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        limit = (peak + _MAX_GROWTH_BYTES) // 2**20
        bounds = [f"-max_len={_MAX_BYTES}", f"-rss_limit_mb={limit}", "-timeout=20"]
        atheris.Setup([sys.argv[0], *bounds, *flags, corpus], one, custom_mutator=mutator)
        atheris.Fuzz()


def damage_file(draw: random.Random, content: bytes) -> bytes:
    if draw.random() < 0.5:
        with suppress(struct.error):  # too short for a header
            return mutate_header(draw, content)
    return mutate(draw, content)


def one_message(
    kind: type[Message], convert: Callable[[Any], object]
) -> tuple[Parse, bytes, Damage]:
    """A message: what reads it, one to start from, what damages it."""
    from google.protobuf.message import DecodeError

    def parse(content: bytes) -> None:
        try:
            message = kind.FromString(content)
        except DecodeError:  # gRPC refuses it before anybody sees it
            return
        convert(message)

    def damage(draw: random.Random, content: bytes) -> bytes:
        if draw.random() < 0.5:
            return mutate(draw, content)
        message = kind()
        with suppress(DecodeError):
            message = kind.FromString(content)
        changed: bytes = random_message(draw, message).SerializeToString()
        return changed

    return parse, random_message(random.Random(0), kind()).SerializeToString(), damage


def chunk_stream(
    directory: Path,
) -> tuple[Parse, bytes, Damage]:
    """An upload's messages, each after its length: what reads them, a good one, what damages it."""
    from google.protobuf.message import DecodeError

    from lipt.common.blobs.blob import BlobName, blob_to_proto
    from lipt.common.blobs.store import BlobStore
    from lipt.v1 import blob_pb2

    store = BlobStore(directory, max_blob_bytes=10_000)
    messages = []
    for offset in range(0, len(_BLOB), 128):
        data = _BLOB[offset : offset + 128]
        chunk = blob_pb2.Chunk(offset_bytes=offset, data=data, crc32=zlib.crc32(data))
        messages.append(blob_pb2.WriteBlobRequest(chunk=chunk))
    messages[0].blob.CopyFrom(blob_to_proto(BlobName.of(_BLOB)))

    def damage(draw: random.Random, content: bytes) -> bytes:
        stream = list(unframed(content))
        if not stream:
            return mutate(draw, content)
        number = draw.randrange(len(stream))
        changed = mutate(draw, stream[number])
        if draw.random() < 0.7:
            with suppress(DecodeError, ValueError):
                request = blob_pb2.WriteBlobRequest.FromString(stream[number])
                damage_request(draw, request)
                changed = request.SerializeToString()
        stream[number : number + draw.randrange(2)] = [changed]
        return framed(stream)

    return (
        lambda content: receive(store, directory, content),
        framed(message.SerializeToString() for message in messages),
        damage,
    )


def damage_request(draw: random.Random, request: blob_pb2.WriteBlobRequest) -> None:
    """What a peer could send that keeps to the format: more, less, or something absurd."""
    chunk = request.chunk
    edit = draw.randrange(4)
    if edit == 0:
        chunk.data += draw.randbytes(draw.randint(1, 64))
    elif edit == 1:
        chunk.data = chunk.data[: draw.randrange(len(chunk.data) + 1)]
    elif edit == 2:
        chunk.offset_bytes += draw.choice((-1, 1, 128, len(chunk.data)))
    else:
        random_message(draw, request)
    if draw.random() < 0.7:
        chunk.crc32 = zlib.crc32(chunk.data)


def receive(store: BlobStore, directory: Path, content: bytes) -> None:
    """What the service does with an upload's messages; nothing but the blob may be stored."""
    from google.protobuf.message import DecodeError

    from lipt.common.blobs.blob import blob_from_proto, chunk_data
    from lipt.v1 import blob_pb2

    requests: list[blob_pb2.WriteBlobRequest] = []
    with suppress(DecodeError):  # gRPC refuses it before the service sees it
        requests += map(blob_pb2.WriteBlobRequest.FromString, unframed(content))
    if not requests:
        return
    name = blob_from_proto(requests[0].blob)
    try:
        with store.open_upload(name, requests[0].chunk.offset_bytes) as upload:
            for request in requests:
                upload.write(chunk_data(request.chunk, blob=name, offset_bytes=upload.offset_bytes))
            upload.finish()
    finally:
        for path in [path for path in directory.rglob("*") if path.is_file()]:
            found = path.read_bytes()
            assert len(found) <= name.size_bytes, path
            if path.parent.parent.name == "blobs":
                assert hashlib.sha256(found).hexdigest() == path.name, path
            else:
                assert path == directory / "uploads" / f"{name.sha256}.part"
            path.unlink()


def framed(messages: Any) -> bytes:
    return b"".join(struct.pack("<I", len(message)) + message for message in messages)


def unframed(content: bytes) -> Iterator[bytes]:
    while len(content) >= 4:
        (length,) = struct.unpack_from("<I", content)
        yield content[4 : 4 + length]
        content = content[4 + length :]


if __name__ == "__main__":
    main()
