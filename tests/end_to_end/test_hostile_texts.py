"""What peers call themselves, from raw calls to the log and to the terminals of others."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.errors import from_rpc_error
from lipt.common.rpc.channel import open_channel, with_metadata
from lipt.v1 import run_pb2, run_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.cluster import Cluster

FORGED = "2026-01-01T00:00:00+0000 INFO fine"
# A line of the log, one of the doctor, a screen cleared in 7 and in 8 bits, and backward text.
HOSTILE = f"x\n{FORGED}\r\nok     all\x1b[2J\x9b2J\u202e[red]\x00"
CALL_SECONDS = 60.0
PROTOCOL = worker_pb2.ProtocolVersion(major=1)


def require_harmless(text: str) -> None:
    assert not {mark for mark in text if not mark.isprintable()} - {"\n"}
    lines = text.splitlines()
    assert not [line for line in lines if line.startswith((FORGED, "ok     all"))]


SECRET = "0123456789abcdef" * 2


def test_a_peers_texts_forge_no_line_and_steer_no_terminal(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    with open_channel(cluster.address) as channel, cluster.client() as client:
        workers = worker_pb2_grpc.WorkerServiceStub(
            with_metadata(channel, lambda: ((WORKER_SECRET, SECRET),))
        )
        require_refused(
            workers.Register,
            worker_pb2.RegisterRequest(instance_id="i", name="x" * 3_900_000, protocol=PROTOCOL),
            "RegisterRequest.name has 3900000 characters; at most 80 are taken",
        )
        require_refused(
            run_pb2_grpc.RunServiceStub(channel).CreateRun,
            run_pb2.CreateRunRequest(request_id="x" * 3_900_000),
            "CreateRunRequest.request_id has 3900000 characters; at most 100 are taken",
        )
        assert len(coordinator.text()) < 10_000

        registered = workers.Register(
            worker_pb2.RegisterRequest(
                instance_id=SECRET,
                name=HOSTILE,
                device=HOSTILE,
                versions={"torch": HOSTILE, HOSTILE: "1"},
                protocol=PROTOCOL,
            ),
            timeout=CALL_SECONDS,
        )
        run = client.start_run({**small_run, "learners": {"num_learners": 1, "num_steps": 1}})
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


def require_refused(call: Any, request: Any, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=CALL_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert words in str(from_rpc_error(caught.value))
