import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.process import STOP_SIGNALS
from lipt.common.rpc.channel import open_channel
from lipt.common.states import LearnerState, RunState
from lipt.common.tensor_files import pack
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.cluster import SMALL_RUN, Cluster
from tests.end_to_end.conftest import small_run


def test_a_worker_s_exit_status_tells_a_batch_system_if_it_finished(cluster: Cluster) -> None:
    cluster.start_coordinator()
    batch = ("--max-learners", "1", "--stopped-status", "143")
    with cluster.client() as client:
        told = cluster.start_worker("told", *batch)
        told.wait_for("joined")
        assert told.stop() == 143
        client.start_run(small_run(num_learners=1))
        assert cluster.start_worker("done", *batch).wait() == 0
        client.wait()


def test_a_worker_waits_for_the_coordinator_to_start(cluster: Cluster) -> None:
    with socket.socket() as taken:  # reserves the port; no process listens on it
        taken.bind(("127.0.0.1", 0))
        cluster.address = "{}:{}".format(*taken.getsockname())
        worker = cluster.start_worker("early")
        worker.wait_for("Trying again until")
    cluster.start_coordinator("--listen", cluster.address).wait_for("worker early .* joined")
    assert worker.stop() == 0


def test_a_missing_allowed_module_is_reported_at_the_start(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    worker = cluster.start_worker("vm", "--allow-module", "absent_module")
    assert "lipt-worker: --allow-module absent_module: there is no module" in worker.refused()


# The script, for a command that is plugged in is found by what is installed.
UP = (str(Path(sys.executable).with_name("lipt")), "up")


def test_lipt_up_starts_workers_for_a_run_and_stops_them(cluster: Cluster) -> None:
    flags = ["--data", "digits", "--model", "resnet8", "--listen", "127.0.0.1:0"]
    flags += ["--state-dir", str(cluster.state), "--workers", "2", "--idle-seconds", "1"]
    cache = ["--", "--cache-dir", str(cluster.directory / "cache")]
    up = cluster.start("up", [*UP, *flags, *cache])
    cluster.address = up.wait_for(r"lipt serves digits on (\S+), for up to 2 workers")[1]
    up.wait_for(f"lipt run start --watch --coordinator {cluster.address}")
    assert len(up.children()) == 1  # no worker before there are learners
    with cluster.client() as client:
        client.wait(client.start_run(SMALL_RUN).run_id)
    up.wait_for("starting 2 workers for 4 learners")
    up.wait_for("; 0 workers left|ending [12] workers?: there is no learner")
    assert up.stop(signal.SIGINT) == 0
    assert "coordinator | " in up.text()
    assert "worker 0 | " in up.text()
    assert "Traceback" not in up.text()


def test_up_ends_with_its_coordinator(cluster: Cluster) -> None:
    flags = ["--data", "digits", "--listen", "127.0.0.1:0", "--state-dir", str(cluster.state)]
    up = cluster.start("up", [*UP, *flags])
    up.wait_for("lipt serves digits")
    for child in up.children():
        os.kill(child, signal.SIGKILL)
    assert "the coordinator has ended with status -9" in up.refused()


# Long enough for one commit on a busy machine.
DEADLINE_SECONDS = 20.0


@pytest.mark.parametrize(
    # How much later it is is for the machine to say; tests/coordinator/runs/test_driver.py shows
    # with a clock of its own that the service means to be on time.
    "late_seconds",
    [60.0, pytest.param(1.0, marks=pytest.mark.faults)],
)
def test_run_goes_on_at_its_deadline_without_the_dead_and_the_slow(
    cluster: Cluster, late_seconds: float
) -> None:
    cluster.start_coordinator(*cluster.leases_of(3.0))
    slow = cluster.start_worker("slow")
    slow.wait_for("joined")
    # So long that only its deadline can end it.
    run_of_three = small_run(
        num_learners=3, num_steps=100_000, deadline_seconds=DEADLINE_SECONDS, min_learners=1
    )
    with cluster.client() as client:
        quick, dead = (cluster.play_worker(name) for name in ("quick", "dead"))
        run = client.start_run(run_of_three)
        slow.wait_for("density")
        dead.take()
        first = quick.take()
        quick.submit(first)
        (final,) = (view for view in client.watch(run.run_id) if view.ended)
        slow.wait_for("is no longer needed")
    assert final.state is RunState.READY, final.message
    assert final.learners[first.learner_index].state is LearnerState.DONE
    dropped = [item for item in final.learners if item.index != first.learner_index]
    assert {item.state for item in dropped} == {LearnerState.DROPPED}
    assert all("the deadline of 20 s has passed with 1 of 3" in item.message for item in dropped)
    assert final.costs is not None
    assert 0.0 <= final.costs.training_seconds - DEADLINE_SECONDS <= late_seconds


# What a service manager gives a process before it kills it.
GRACE_SECONDS = 30.0
LONG_RUN = small_run(num_learners=1, num_steps=100_000, batch_size=64)


def test_a_coordinator_with_stalled_clients_ends_in_time(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(*cluster.config("drain_seconds = 2.0\n"))
    polling = cluster.start_worker("polling")
    polling.wait_for("joined")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(cluster.client())
        path = cluster.directory / "large.safetensors"
        path.write_bytes(pack({"w": torch.zeros(8_000_000)}))
        name = client.upload_weights(path)
        large = blob_pb2.BlobRef(sha256=name.sha256, size_bytes=name.size_bytes)
        channel = stack.enter_context(open_channel(cluster.address))
        stub: Any = blob_pb2_grpc.BlobServiceStub(channel)
        stalled = [stub.ReadBlob(blob_pb2.ReadBlobRequest(blob=large)) for _ in range(5)]
        for reader in stalled:
            next(reader)
        run = client.start_run(LONG_RUN)
        watch = client.watch(run.run_id)
        next(iter(watch))
        watching = open_channel(cluster.address)
        stack.enter_context(watching)
        health: Any = health_pb2_grpc.HealthStub(watching)
        states = health.Watch(health_pb2.HealthCheckRequest())
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        coordinator.send(signal.SIGTERM)
        # At once: while the readers are still being waited for.
        assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert coordinator.process.poll() is None
        assert coordinator.process.wait(GRACE_SECONDS) == 0
        for reader in stalled:
            with pytest.raises(grpc.RpcError):
                for _ in reader:
                    pass
    assert "Traceback" not in coordinator.text()
    polling.send(signal.SIGTERM)
    assert polling.process.wait(GRACE_SECONDS) == 0


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("imported", ["typer", "grpc", "torch"])
@pytest.mark.parametrize("service", ["coordinator", "worker"])
def test_service_that_is_still_importing_ends_with_status_0(
    cluster: Cluster, service: str, imported: str, number: int
) -> None:
    # The interpreter says what it has imported, before it goes on with the next.
    arguments = ["-X", "importtime", "-m", f"lipt.{service}"]
    if service == "coordinator":
        arguments += ["--state-dir", str(cluster.directory), "--data", "digits"]
    process = cluster.start(service, arguments)
    process.wait_for(rf"\| +{imported}$")
    assert process.stop(number) == 0
    assert f"lipt-{service}: stopped while it was starting" in process.text()
    assert "Traceback" not in process.text()
    assert not (cluster.directory / "lipt.db").exists()


def test_a_closed_terminal_and_repeated_signals_are_one_orderly_end(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    with cluster.client() as client:
        run = client.start_run(LONG_RUN)
        worker = cluster.start_worker("one")
        worker.wait_for("density")
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            worker.send(number)
        assert worker.wait() == 0
        assert "released learner" in worker.text()
        assert client.run(run.run_id).learners[0].state is LearnerState.QUEUED
    # A terminal's end reaches the whole session.
    children = coordinator.children()
    for child in children + coordinator.computing():
        os.kill(child, signal.SIGHUP)
    with cluster.client() as client:
        client.subset(strategy="uniform", fraction=0.1)
    assert coordinator.children() == children
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        coordinator.send(number)
    assert coordinator.wait() == 0
    for process in (coordinator, worker):
        assert process.text().endswith("stopped\n")
        assert "Traceback" not in process.text()


# As `nohup` starts a program.
IGNORING_HANGUPS = (
    "-c",
    """import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from lipt.coordinator.__main__ import main
main()""",
)


def test_a_hangup_that_is_ignored_at_the_start_stays_ignored(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(program=IGNORING_HANGUPS)
    coordinator.send(signal.SIGHUP)
    with cluster.client() as client:
        client.info()
    assert "stopping" not in coordinator.text()
    assert coordinator.stop() == 0


def test_worker_whose_coordinator_does_not_answer_ends_in_time(cluster: Cluster) -> None:
    # A long lease has long heartbeats, which must not hold a worker up.
    coordinator = cluster.start_coordinator(*cluster.leases_of(3600.0))
    with cluster.client() as client:
        client.start_run(LONG_RUN)
        training = cluster.start_worker("training")
        training.wait_for("density")
        polling = cluster.start_worker("polling")
        polling.wait_for("joined")
        coordinator.send(signal.SIGSTOP)
        try:
            for worker in (polling, training):
                worker.send(signal.SIGTERM)
            assert [it.process.wait(GRACE_SECONDS) for it in (polling, training)] == [0, 0]
        finally:
            coordinator.send(signal.SIGCONT)
