import asyncio
import json
import math
import random
import re
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from torch import Tensor

from lipt.common.blobs.blob import blob_from_proto
from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import run_config_from_proto, validate
from lipt.common.errors import LiptError, from_rpc_error
from lipt.common.rpc.messages import message_to_dict
from lipt.common.tensor_files import pack, read_weights, specs_of
from lipt.core.catalogue import StrategyView
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.specs import ImageFormat
from lipt.data.shard import open_shard
from lipt.data.targets.values import SingleLabel
from lipt.models.encodings import encode_planes, encode_sparse, open_weights
from lipt.trainer.views import InfoView, RunView, view_of
from lipt.v1 import blob_pb2, config_pb2, info_pb2, run_pb2, run_pb2_grpc, subset_pb2, worker_pb2
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import memory_growth, reset_peak, resident_bytes
from tests.rpcs import contract_methods, path_of

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
    from lipt.data.loading import open_dataset
    from lipt.data.shard import pack_shard

    return pack_shard(open_dataset("digits"), torch.arange(4))


FINE = "fine"
# A file's reader, an intact one, and the reasons by which damaged ones may be refused.
OF_WEIGHTS = {"INVALID_WEIGHTS", "BLOB_TOO_LARGE"}
READERS: dict[str, tuple[Callable[[bytes], None], Callable[[], bytes], set[str]]] = {
    "sparse learner": (decode, lambda: encode_sparse(WEIGHTS), OF_WEIGHTS),
    "compressed learner": (decode, lambda: encode_planes(WEIGHTS), OF_WEIGHTS),
    "rounded learner": (decode, lambda: encode_planes(WEIGHTS, bfloat16=True), OF_WEIGHTS),
    "safetensors": (read, lambda: pack(WEIGHTS, {"key": "text"}), OF_WEIGHTS),
    "shard": (shard, shard_file, {"BAD_DATA"}),
}


def outcome_of(action: Callable[[], object]) -> str:
    """`FINE`, or the reason of a refusal; another error fails the test."""
    try:
        action()
    except LiptError as error:
        return error.reason
    return FINE


@pytest.mark.parametrize("num_cases", [1500, pytest.param(25_000, marks=LONG)])
@pytest.mark.parametrize("reader", READERS)
def test_damaged_file_is_refused_by_name_or_still_the_model_s(reader: str, num_cases: int) -> None:
    parse, make, reasons = READERS[reader]
    good = make()
    parse(good)
    draw, outcomes = random.Random(f"{reader} {num_cases}"), Counter[str]()
    with memory_growth(MAX_GROWTH_BYTES):
        for number in range(num_cases):
            damage = mutate_header if number % 2 else mutate
            outcomes[outcome_of(partial(parse, damage(draw, good)))] += 1
    # Damage to values alone cannot be seen here: the blob's digest is for that.
    assert outcomes[FINE] < num_cases / 10
    assert outcomes.keys() <= {FINE} | reasons


NUM_MESSAGES = 10_000

# What a message becomes, and the outcomes that occur. A view shows what a newer peer may send.
CONVERTERS: dict[str, tuple[type[Message], Callable[[Any], object], set[str]]] = {
    "blob's name": (blob_pb2.BlobRef, blob_from_proto, {FINE, "INVALID_REQUEST"}),
    "run's config": (
        config_pb2.RunConfig,
        lambda it: run_config_from_proto(it, RunConfig()),
        {FINE, "INVALID_CONFIG"},
    ),
    "learner's task": (
        worker_pb2.LearnerTask,
        lambda it: validate(LearnerTask, message_to_dict(it)),
        {"INVALID_CONFIG"},
    ),
    "run's view": (run_pb2.Run, partial(view_of, RunView), {FINE, "INVALID_CONFIG"}),
    "coordinator's view": (
        info_pb2.GetInfoResponse,
        partial(view_of, InfoView),
        {FINE, "INVALID_CONFIG"},
    ),
    "strategy's view": (subset_pb2.Strategy, partial(view_of, StrategyView), {FINE}),
}


@pytest.mark.slow
@pytest.mark.parametrize("converter", CONVERTERS)
def test_absurd_message_is_a_value_or_refused_by_name(converter: str) -> None:
    kind, convert, expected = CONVERTERS[converter]
    draw = random.Random(converter)
    messages = (random_message(draw, kind()) for _ in range(NUM_MESSAGES))
    assert {outcome_of(partial(convert, message)) for message in messages} == expected


METHODS = tuple(contract_methods())
# A long poll or a stream may rightly go on; nothing else may take that long.
PATIENT = {
    *("AcquireAssignment", "GetDemand", "WatchRun", "WatchService"),
    *("GetSubset", "GetMixture", "Diagnose"),
}
POLL_SECONDS, CALL_SECONDS = 0.3, 60.0
NUM_AT_ONCE = 16
# Over the whole of the fuzzing, with ten thousands of log lines and workers' names kept.
MAX_SERVICE_GROWTH_BYTES = 128 * 2**20
MAX_MESSAGES = 4

# None by which a peer's calls would be refused before they are read.
LIMITS = """
[limits]
max_blob_bytes = 1000000
[limits.per_peer]
calls_per_second = 0
registrations_per_minute = 0
"""

# Statuses that a peer can act on. UNKNOWN and a bare INTERNAL would mean an unforeseen error.
NAMED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.PERMISSION_DENIED,
}


class Case(NamedTuple):
    method: MethodDescriptor
    messages: tuple[bytes, ...]


def draw_case(draw: random.Random) -> Case:
    method = draw.choice(METHODS)
    num = draw.randint(0, MAX_MESSAGES) if method.client_streaming else 1
    return Case(method, tuple(draw_message(draw, method) for _ in range(num)))


def draw_message(draw: random.Random, method: MethodDescriptor) -> bytes:
    if draw.random() < 0.2:
        return draw.randbytes(draw.choice((0, 1, 10, 1000, 100_000)))
    message: Message = random_message(draw, GetMessageClass(method.input_type)())
    if isinstance(message, run_pb2.CreateRunRequest):
        # A run that is taken would be computed: there is none with so few examples.
        message.config.learners.num_learners = 10_000
    content = message.SerializeToString()
    return mutate(draw, content) if draw.random() < 0.3 else content


async def call(channel: grpc.aio.Channel, threaded: grpc.Channel, case: Case) -> str:
    patient = case.method.name in PATIENT
    seconds = POLL_SECONDS if patient else CALL_SECONDS
    try:
        if case.method.client_streaming:
            # The asynchronous client answers INTERNAL of itself when it is refused while it sends.
            method = threaded.stream_unary(path_of(case.method))
            await asyncio.to_thread(method, iter(case.messages), timeout=seconds)
        elif case.method.server_streaming:
            async for _ in channel.unary_stream(path_of(case.method))(
                case.messages[0], timeout=seconds
            ):
                pass
        else:
            await channel.unary_unary(path_of(case.method))(case.messages[0], timeout=seconds)
    except grpc.RpcError as failure:
        error: Any = failure  # a call, too
        if patient and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return "waiting"
        reason = from_rpc_error(error).reason
        if error.code() in NAMED and reason != "INTERNAL":
            return reason
        sent = [message[:200] for message in case.messages]
        raise AssertionError(
            f"{path_of(case.method)} {sent}: {error.code()}: {error.details()}"
        ) from None
    return "OK"


async def fuzz(address: str, num_cases: int) -> Counter[str]:
    draw, ends = random.Random(num_cases), Counter[str]()
    turns = asyncio.Semaphore(NUM_AT_ONCE)
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        threaded = stack.enter_context(grpc.insecure_channel(address))
        group = await stack.enter_async_context(asyncio.TaskGroup())

        async def one(case: Case) -> None:
            try:
                ends[await call(channel, threaded, case)] += 1
            finally:
                turns.release()

        for _ in range(num_cases):
            await turns.acquire()
            group.create_task(one(draw_case(draw)))
    return ends


@pytest.mark.parametrize(
    "num_cases", [1000, pytest.param(20_000, marks=[pytest.mark.faults, pytest.mark.timeout(1800)])]
)
def test_every_call_with_hostile_messages_ends_with_a_named_status(
    cluster: Cluster, num_cases: int, record: Record
) -> None:
    limits = cluster.config(LIMITS)
    coordinator = cluster.start_coordinator("--insecure", *limits)
    pid = coordinator.process.pid
    asyncio.run(fuzz(cluster.address, 100))  # imports, pools and buffers are there from here on
    reset_peak(pid)
    before = resident_bytes(pid)
    ends = asyncio.run(fuzz(cluster.address, num_cases))
    # Calls of both kinds: some are answered, and refusals come from behind the first checks.
    assert ends.keys() >= {"OK", "INVALID_REQUEST", "INVALID_CONFIG", "UNKNOWN_RUN"}
    growth = resident_bytes(pid, peak=True) - before
    record(f"{num_cases} calls, {growth / 1e6:.0f} MB more: {dict(ends.most_common())}")
    assert growth <= MAX_SERVICE_GROWTH_BYTES
    assert not re.search("Traceback|incident", coordinator.text())
    with cluster.client() as client:
        dataset = client.info().dataset
        assert dataset is not None
        assert dataset.num_examples == 1797
        # What fits by chance is a run like any other.
        for run in client.runs():
            client.cancel(run.run_id)


def test_a_compression_bomb_is_refused_before_unpacking(cluster: Cluster) -> None:
    pid = cluster.start_coordinator("--insecure").process.pid
    packed = grpc.Compression.Gzip
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(cluster.address, options, packed) as channel:
        stub = run_pb2_grpc.RunServiceStub(channel)
        with pytest.raises(grpc.RpcError):  # as small as it may be: warms up
            stub.GetRun(run_pb2.GetRunRequest(run_id="0"), timeout=CALL_SECONDS)
        exhausted = pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED")
        with memory_growth(MAX_SERVICE_GROWTH_BYTES, pid), exhausted:
            stub.GetRun(run_pb2.GetRunRequest(run_id="0" * 2**28), timeout=CALL_SECONDS)
