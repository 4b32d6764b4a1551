"""Seeded fuzzing of a peer's bytes and messages: refused by name, in bounded memory."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf.message import Message
from torch import Tensor

from lipt.common.blobs.blob import BlobName, blob_from_proto, chunk_data
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.common.config.tasks import LearnerTask
from lipt.common.config.values import run_config_from_proto, validate
from lipt.common.data.shard import open_shard
from lipt.common.errors import LiptError, WeightsError
from lipt.common.images.formats import ImageFormat
from lipt.common.rpc.messages import message_to_dict
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.encodings import SPARSE_KEY, encode_planes, encode_sparse, open_weights
from lipt.common.weights.files import pack, read_weights
from lipt.common.weights.specs import TensorSpec, specs_of
from lipt.trainer.views import InfoView, RunView, StrategyView, view_of
from lipt.v1 import blob_pb2, config_pb2, info_pb2, run_pb2, subset_pb2, worker_pb2
from tests.faults.memory import memory_growth
from tests.faults.mutation import mutate, mutate_header, random_message

LONG = [pytest.mark.faults, pytest.mark.timeout(1800)]
# What the allocator and caches may take; no case has more than some kilobytes to decode.
MAX_GROWTH_BYTES = 48 * 2**20

WEIGHTS = {
    "conv.weight": torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(1)).relu(),
    "conv.bias": torch.arange(4.0),
    "norm.num_batches": torch.tensor(3),
    "half": torch.eye(9, dtype=torch.bfloat16),
}
LIKE = specs_of(WEIGHTS)
IMAGE = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))


def decode(content: bytes) -> None:
    decoded = dict(open_weights(content, like=LIKE))
    assert specs_of(decoded) == LIKE


def read(content: bytes) -> None:
    weights = read_weights(content, like=LIKE, max_bytes=1_000_000)
    assert specs_of(weights) == LIKE


def shard(content: bytes) -> None:
    found = open_shard(content, IMAGE, num_examples=4, target=SingleLabel(10))
    assert isinstance(found.examples, Tensor)
    assert found.examples.shape == (4, 1, 8, 8)


def shard_file() -> bytes:
    from lipt.common.data import open_dataset, pack_shard

    return pack_shard(open_dataset("digits"), torch.arange(4))


READERS: dict[str, tuple[Callable[[bytes], None], Callable[[], bytes]]] = {
    "sparse learner": (decode, lambda: encode_sparse(WEIGHTS)),
    "compressed learner": (decode, lambda: encode_planes(WEIGHTS)),
    "rounded learner": (decode, lambda: encode_planes(WEIGHTS, bfloat16=True)),
    "safetensors": (read, lambda: pack(WEIGHTS, {"key": "text"})),
    "shard": (shard, shard_file),
}


@pytest.mark.parametrize("num_cases", [1500, pytest.param(25_000, marks=LONG)])
@pytest.mark.parametrize("reader", READERS)
def test_damaged_file_is_refused_by_name_or_still_the_model_s(reader: str, num_cases: int) -> None:
    parse, make = READERS[reader]
    good = make()
    parse(good)
    draw, outcomes = random.Random(f"{reader} {num_cases}"), Counter[str]()
    with memory_growth(MAX_GROWTH_BYTES):
        for number in range(num_cases):
            damage = mutate_header if number % 2 else mutate
            try:
                parse(damage(draw, good))
            except LiptError as error:
                outcomes[error.reason] += 1
            else:
                outcomes["fine"] += 1
    # Damage to values alone cannot be seen here: the blob's digest is for that.
    assert outcomes["fine"] < num_cases / 2
    assert outcomes.total() == num_cases


def test_bitmask_that_claims_2_60_elements_is_refused_from_its_header() -> None:
    claims = '{"version":1,"shapes":{"w":[1152921504606846976]}}'
    stored = {"mask/w": torch.ones(1, dtype=torch.uint8), "values/w": torch.ones(1)}
    like = {"w": TensorSpec((2**60,), torch.float32)}
    with (
        memory_growth(2**20),
        pytest.raises(WeightsError, match=r"needs uint8\[144115188075855872\]"),
    ):
        dict(open_weights(pack(stored, {SPARSE_KEY: claims}), like=like))


@contextmanager
def receiving(store: BlobStore, name: BlobName) -> Iterator[Callable[[blob_pb2.Chunk], None]]:
    with store.open_upload(name, store.committed_offset(name)) as upload:
        yield lambda chunk: upload.write(
            chunk_data(chunk, blob=name, offset_bytes=upload.offset_bytes)
        )


@pytest.mark.parametrize("num_cases", [1000, pytest.param(20_000, marks=LONG)])
def test_damaged_chunks_never_change_what_is_stored(tmp_path: Path, num_cases: int) -> None:
    draw, outcomes = random.Random(num_cases), Counter[str]()
    data = draw.randbytes(8 * 64)
    store, name = BlobStore(tmp_path, max_blob_bytes=10_000), BlobName.of(data)
    with memory_growth(MAX_GROWTH_BYTES), receiving(store, name) as write:
        offset = 0
        for number in range(num_cases):
            if number % (num_cases // 8) == 0:
                piece = data[offset : offset + 64]
                write(blob_pb2.Chunk(offset_bytes=offset, data=piece, crc32=zlib.crc32(piece)))
                offset += 64
            chunk = blob_pb2.Chunk(
                offset_bytes=offset, data=data[offset : offset + 64], crc32=draw.randrange(2**32)
            )
            if number % 3 == 0:
                random_message(draw, chunk)
            try:
                write(chunk)
            except LiptError as error:
                outcomes[error.reason] += 1
            else:
                # An empty chunk at the right place says nothing, rightly.
                assert not chunk.data
                outcomes["fine"] += 1
    assert outcomes.total() == num_cases
    assert (tmp_path / "uploads" / f"{name.sha256}.part").read_bytes() == data


NUM_MESSAGES = 10_000

CONVERTERS: dict[str, tuple[type[Message], Callable[[Any], object]]] = {
    "blob's name": (blob_pb2.BlobRef, blob_from_proto),
    "run's config": (config_pb2.RunConfig, lambda it: run_config_from_proto(it, RunConfig())),
    "learner's task": (
        worker_pb2.LearnerTask,
        lambda it: validate(LearnerTask, message_to_dict(it)),
    ),
    "run's view": (run_pb2.Run, partial(view_of, RunView)),
    "coordinator's view": (info_pb2.GetInfoResponse, partial(view_of, InfoView)),
    "strategy's view": (subset_pb2.Strategy, partial(view_of, StrategyView)),
}
# What acts on these checks them; a view is only looked at.
CHECKED = ("blob's name", "run's config", "learner's task")


@pytest.mark.slow
@pytest.mark.parametrize("converter", CONVERTERS)
def test_absurd_message_is_a_value_or_refused_by_name(converter: str) -> None:
    kind, convert = CONVERTERS[converter]
    draw, outcomes = random.Random(converter), Counter[str]()
    for _ in range(NUM_MESSAGES):
        try:
            convert(random_message(draw, kind()))
        except LiptError as error:
            outcomes[error.reason] += 1
        else:
            outcomes["fine"] += 1
    assert outcomes["fine"] < (NUM_MESSAGES / 2 if converter in CHECKED else NUM_MESSAGES + 1)
    assert outcomes.total() == NUM_MESSAGES
