"""A pool's questions to its coordinator, over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lipt.common.errors import IncompatibleProtocolError, LiptError
from lipt.common.rpc.channel import open_channel
from lipt.v1 import info_pb2, info_pb2_grpc, worker_pb2, worker_pb2_grpc
from lipt.worker.pool.demand import DemandSource
from lipt.worker.pool.scaling import Demand


class Fake(worker_pb2_grpc.WorkerServiceServicer, info_pb2_grpc.InfoServiceServicer):
    """A coordinator of some version; `GetDemand` is answered once `may_answer` is set."""

    def __init__(self) -> None:
        self.version: tuple[int, int] = (1, 0)
        self.asked: list[worker_pb2.GetDemandRequest] = []
        self.was_asked, self.may_answer = threading.Event(), threading.Event()

    def GetInfo(self, request: Any, context: Any) -> Any:
        major, minor = self.version
        return info_pb2.GetInfoResponse(
            protocol=worker_pb2.ProtocolVersion(major=major, minor=minor)
        )

    def GetDemand(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        self.was_asked.set()
        assert self.may_answer.wait(60.0)
        return worker_pb2.GetDemandResponse(num_queued=1, num_leased=2, num_coming=3, num_ranges=4)


@pytest.fixture
def served() -> Iterator[tuple[Fake, DemandSource]]:
    fake = Fake()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    server = grpc.server(ThreadPoolExecutor(2))
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(fake, server)
    info_pb2_grpc.add_InfoServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as channel:
        yield fake, DemandSource(channel)
    fake.may_answer.set()
    server.stop(None).wait()


def test_demand_is_asked_for_with_what_is_known(served: tuple[Fake, DemandSource]) -> None:
    fake, source = served
    fake.may_answer.set()
    first = source.wait(None, wait_seconds=2.0)
    assert first == Demand(num_queued=1, num_leased=2, num_coming=3)
    assert first.num_open == 6
    assert source.wait(first, wait_seconds=2.0) == first
    without, having = fake.asked
    assert not without.HasField("known")
    assert (having.known.num_queued, having.known.num_leased, having.known.num_coming) == (1, 2, 3)


def test_ranges_count_for_workers_that_have_the_data_and_are_known_to_all(
    served: tuple[Fake, DemandSource],
) -> None:
    fake, blind = served
    fake.may_answer.set()
    assert blind.wait(None, wait_seconds=2.0).num_ranges == 0
    blind.wait(Demand(), wait_seconds=2.0)
    # Else it would be told the same again and again.
    assert fake.asked[-1].known.num_ranges == 4


def test_wait_ends_when_it_is_interrupted(served: tuple[Fake, DemandSource]) -> None:
    fake, source = served

    def interrupt() -> None:
        assert fake.was_asked.wait(60.0)
        source.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert source.wait(Demand(num_queued=4), wait_seconds=60.0) == Demand(num_queued=4)
    assert source.wait(None, wait_seconds=60.0) == Demand()
    thread.join()


def test_coordinator_of_another_protocol_is_refused(
    served: tuple[Fake, DemandSource],
) -> None:
    fake, source = served
    source.require_same_protocol()
    fake.version = (2, 0)
    with pytest.raises(IncompatibleProtocolError, match="speaks protocol 2, this pool 1"):
        source.require_same_protocol()


def test_coordinator_that_is_away_is_an_error_of_this_package(
    served: tuple[Fake, DemandSource],
) -> None:
    with open_channel("127.0.0.1:1") as channel, pytest.raises(LiptError, match=r"127\.0\.0\.1:1"):
        DemandSource(channel).wait(None, wait_seconds=0.0)
