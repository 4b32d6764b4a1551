import re
import resource
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt import Client
from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.errors import from_rpc_error
from lipt.common.rpc.channel import open_channel, with_metadata
from lipt.v1 import worker_pb2, worker_pb2_grpc
from tests.cluster import Cluster
from tests.end_to_end.conftest import small_run

CALL_SECONDS = 60.0
# What a worker of its own would be known by, and show.
OWN = "0123456789abcdef" * 2
NUM_CONNECTIONS = 1000
# A coordinator that may open 1,024 files, of which 512 at first.
NARROW = (
    "-c",
    """import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
from lipt.coordinator.cli import main
main()""",
)


def test_silent_connections_do_not_block_other_callers(cluster: Cluster) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * NUM_CONNECTIONS:
        pytest.skip("this process may not open as many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * NUM_CONNECTIONS), hard))
    flags = ("--health-listen", "127.0.0.1:0", "--dashboard-listen", "127.0.0.1:0")
    coordinator = cluster.start_coordinator(*flags, program=NARROW)
    page = coordinator.wait_for(r"the page is at (http://\S+):")[1]
    health = coordinator.wait_for(r"health on (\S+)")[1]
    with cluster.client() as early, ExitStack() as stack:
        early.info()
        for address in (cluster.address, health, page.removeprefix("http://")):
            host, port = address.split(":")
            for _ in range(NUM_CONNECTIONS):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
        # Connected and new clients of this user, and the page, at once.
        early.info()
        with cluster.client() as late:
            late.info()
        assert httpx.get(page, trust_env=False, timeout=20).status_code == 200
        coordinator.wait_for("connections, 129 of them of 127.0.0.1: silent ones are closed")
        # Others once the deadline of silent connections has passed.
        options = (("grpc.max_reconnect_backoff_ms", 500),)
        with grpc.insecure_channel(health, options) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            answer = stub.Check(request, timeout=CALL_SECONDS, wait_for_ready=True)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with grpc.insecure_channel(cluster.address, options) as channel:
            grpc.channel_ready_future(channel).result(CALL_SECONDS)
    limits = Path(f"/proc/{coordinator.process.pid}/limits").read_text()
    assert re.search(r"Max open files +1024 +1024", limits)


NUM_RESETS = 5_000
_SETTINGS, _HEADERS, _RST_STREAM, _END_HEADERS = 4, 1, 3, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header of HPACK, neither indexed nor compressed."""
    return b"\0" + b"".join(bytes([len(it)]) + it.encode() for it in (name, value))


def reset_calls(address: str, number: int) -> None:
    """Begin calls without a credential and reset each at once, on one connection."""
    host, _, port = address.rpartition(":")
    block = literal(":method", "POST") + literal(":scheme", "http") + literal(":authority", "x")
    block += literal(":path", "/lipt.v1.RunService/ListRuns") + literal("te", "trailers")
    block += literal("content-type", "application/grpc")
    cancelled = struct.pack(">I", 8)
    with socket.create_connection((host, int(port)), timeout=CALL_SECONDS) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0))
        for stream in range(1, 2 * number, 2):
            begin = frame(_HEADERS, _END_HEADERS, stream, block)
            connection.sendall(begin + frame(_RST_STREAM, 0, stream, cancelled))


def test_calls_that_strangers_reset_do_not_fail_other_callers(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    token = (cluster.state / "admin.token").read_text().strip()
    # Of this user, and over the strangers' port.
    with cluster.client() as own, Client(cluster.address, token=token) as shown:
        own.info()
        shown.info()
        with ThreadPoolExecutor(8) as pool:
            attacks = [pool.submit(reset_calls, cluster.address, NUM_RESETS) for _ in range(8)]
            while not all(attack.done() for attack in attacks):
                own.runs()
                shown.runs()
        for attack in attacks:
            attack.result()
    text = coordinator.text()
    assert text.count("detail=UNAUTHENTICATED") <= 100
    assert "Traceback" not in text


def test_a_faulty_worker_is_named_and_the_soup_is_the_one_without_it(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        run = client.start_run(small_run(num_learners=2, redundancy=2))
        faulty = cluster.play_worker("faulty")
        # Nothing is wrong with it by itself: theta*, pruned as it should be.
        faulty.submit(faulty.take())
        held = client.run(run.run_id)
        assert [learner.result for learner in held.learners] == [None, None]
        assert held.waiting_reason.startswith("learners.redundancy = 2 needs another worker")
    # What is held back is as durable as what is in.
    coordinator.stop(signal.SIGKILL)
    coordinator = cluster.start_coordinator()
    workers = [cluster.start_worker(name) for name in ("honest", "other")]
    with cluster.client() as client:
        final = client.wait(run.run_id)
        once = client.wait(client.start_run(small_run(num_learners=2)).run_id)
    for worker in workers:
        assert worker.stop() == 0
    assert [learner.attempts for learner in final.learners] == [3, 2]
    assert final.pretrained_weights == once.pretrained_weights
    shown = cluster.lipt("run", "show", run.run_id).stdout
    assert "faulty submitted" in shown
    assert "agree on it, and worker faulty submitted" in shown
    log = coordinator.text()
    assert "event=learner_disputed run=" in log
    assert "event=learner_disputed detail=settled" in log


FORGED = "2026-01-01T00:00:00+0000 INFO fine"
# A line of the log, one of the doctor, a screen cleared in 7 and in 8 bits, and backward text.
HOSTILE = f"x\n{FORGED}\r\nok     all\x1b[2J\x9b2J\u202e[red]\x00"
PROTOCOL = worker_pb2.ProtocolVersion(major=1)


def require_harmless(text: str) -> None:
    assert not {mark for mark in text if not mark.isprintable()} - {"\n"}
    lines = text.splitlines()
    assert not [line for line in lines if line.startswith((FORGED, "ok     all"))]


def test_a_peer_s_text_cannot_control_logs_or_terminals(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    with open_channel(cluster.address) as channel, cluster.client() as client:
        workers = worker_pb2_grpc.WorkerServiceStub(
            with_metadata(channel, lambda: ((WORKER_SECRET, OWN),))
        )
        long = worker_pb2.RegisterRequest(instance_id="i", name="x" * 3_900_000, protocol=PROTOCOL)
        with pytest.raises(grpc.RpcError) as caught:
            workers.Register(long, timeout=CALL_SECONDS)
        words = "RegisterRequest.name has 3900000 characters; at most 80 are taken"
        assert words in str(from_rpc_error(caught.value))
        assert len(coordinator.text()) < 10_000
        registered = workers.Register(
            worker_pb2.RegisterRequest(
                instance_id=OWN,
                name=HOSTILE,
                device=HOSTILE,
                versions={"torch": HOSTILE, HOSTILE: "1"},
                protocol=PROTOCOL,
            ),
            timeout=CALL_SECONDS,
        )
        run = client.start_run(small_run(num_learners=1, num_steps=1))
        polling = worker_pb2.AcquireAssignmentRequest(worker_id=registered.worker_id)
        polling.wait_seconds = 60.0
        held = workers.AcquireAssignment(polling).assignment
        workers.ReleaseAssignment(
            worker_pb2.ReleaseAssignmentRequest(
                worker_id=registered.worker_id,
                assignment_id=held.assignment_id,
                epoch=held.lease.epoch,
                error=HOSTILE,
            ),
            timeout=CALL_SECONDS,
        )
        workers.AcquireAssignment(polling)
        for command in (["doctor"], ["run", "show"]):
            shown = cluster.lipt(*command)
            assert r"x\n2026-01-01" in shown.stdout
            require_harmless(shown.stdout)
            require_harmless(shown.stderr)
        client.cancel(run.run_id)
    log = coordinator.text()
    assert r"worker x\n2026-01-01" in log
    assert "event=learner_failed" in log
    require_harmless(log)
