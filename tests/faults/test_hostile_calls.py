"""Seeded fuzzing of every RPC of a live coordinator: raw bytes, damaged and absurd messages."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lipt.common.errors import from_rpc_error
from lipt.v1 import run_pb2, run_pb2_grpc
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import reset_peak, resident_bytes
from tests.faults.mutation import mutate, random_message
from tests.rpcs import contract_methods, path_of

METHODS = tuple(contract_methods())
# A long poll or a stream may rightly go on; nothing else may take that long.
PATIENT = {"AcquireAssignment", "GetDemand", "WatchRun", "WatchService", "GetSubset", "Diagnose"}
POLL_SECONDS, CALL_SECONDS = 0.3, 60.0
NUM_AT_ONCE = 16
# Over the whole of the fuzzing, with ten thousands of log lines and workers' names kept.
MAX_GROWTH_BYTES = 128 * 2**20
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
    """One call: what is sent, message by message."""

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
    """The call's end, as a name."""
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
    "num_cases",
    [1000, pytest.param(20_000, marks=[pytest.mark.faults, pytest.mark.timeout(1800)])],
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
    assert ends.total() == num_cases
    growth = resident_bytes(pid, peak=True) - before
    record(f"{num_cases} calls, {growth / 1e6:.0f} MB more: {dict(ends.most_common())}")
    assert growth <= MAX_GROWTH_BYTES
    assert not re.search("Traceback|incident", coordinator.text())
    with cluster.client() as client:
        dataset = client.info().dataset
        assert dataset is not None
        assert dataset.num_examples == 1797
        # What fits by chance is a run like any other.
        for run in client.runs():
            client.cancel(run.run_id)


def test_message_that_unpacks_to_much_more_is_refused_before_it_does(cluster: Cluster) -> None:
    pid = cluster.start_coordinator("--insecure").process.pid
    packed = grpc.Compression.Gzip
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(cluster.address, options, packed) as channel:
        stub = run_pb2_grpc.RunServiceStub(channel)
        with pytest.raises(grpc.RpcError):  # as small as it may be: warms up
            stub.GetRun(run_pb2.GetRunRequest(run_id="0"), timeout=CALL_SECONDS)
        reset_peak(pid)
        before = resident_bytes(pid)
        with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
            stub.GetRun(run_pb2.GetRunRequest(run_id="0" * 2**28), timeout=CALL_SECONDS)
        assert resident_bytes(pid, peak=True) - before <= MAX_GROWTH_BYTES
