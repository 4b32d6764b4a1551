"""Workers that lie: a stranger with all that is published of a worker, and one found by redundancy.

`GetInfo` names workers' ids, `GetRun` learners' attempts and results: with these a stranger once
committed a learner of another run under a victim's live lease.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.errors import ForeignWorkerError, LiptError, from_rpc_error
from lipt.common.process.devices import processor_name, versions
from lipt.common.rpc.channel import open_channel
from lipt.v1 import (
    info_pb2,
    info_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from tests.cluster import Cluster
from tests.played_worker import PlayedWorker

CALL_SECONDS = 60.0
# One density, so that a learner of one run passes for one of the other.
RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 2, "num_steps": 1, "batch_size": 32},
    "pruning": {"density_min": 0.9, "density_max": 0.9},
    "soup": {"num_alphas": 1, "batch_norm_examples": 64},
}
FORGED_LOSS = 1e-9
# What a worker of its own would be known by, and show.
OWN = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Impostor:
    """A peer that makes calls as it likes, and what it finds published."""

    workers: Any
    worker_id: str
    assignment_id: str
    epoch: int
    # Of a learner of the other run.
    replayed: Any
    metadata: tuple[tuple[str, str], ...]

    @property
    def held(self) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "assignment_id": self.assignment_id,
            "epoch": self.epoch,
        }

    def refusal(self, call: Callable[..., Any], request: Any) -> LiptError:
        """What a call is refused with."""

        def make() -> None:
            answer = call(request, timeout=CALL_SECONDS, metadata=self.metadata)
            # A stream says it as it is read.
            list(answer) if hasattr(answer, "__iter__") else pytest.fail(f"answered {answer}")

        with pytest.raises(grpc.RpcError) as caught:
            make()
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        return from_rpc_error(caught.value)


@contextmanager
def impostor_beside(
    cluster: Cluster, victim: PlayedWorker, *, old: str, new: str, shows: str
) -> Iterator[Impostor]:
    """A stranger, once the victim has a lease; all it knows it has asked for."""
    with open_channel(cluster.address) as channel:
        info: Any = info_pb2_grpc.InfoServiceStub(channel)
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        (shown,) = info.GetInfo(info_pb2.GetInfoRequest(), timeout=CALL_SECONDS).workers
        before = runs.GetRun(run_pb2.GetRunRequest(run_id=old), timeout=CALL_SECONDS).run
        now = runs.GetRun(run_pb2.GetRunRequest(run_id=new), timeout=CALL_SECONDS).run
        leased = [it for it in now.learners if it.state == run_pb2.LEARNER_STATE_LEASED]
        if shows:
            workers.Register(
                worker_pb2.RegisterRequest(
                    instance_id=shows,
                    name="stranger",
                    protocol=worker_pb2.ProtocolVersion(major=1, minor=3),
                ),
                timeout=CALL_SECONDS,
            )
        yield Impostor(
            workers,
            worker_id=shown.worker_id,
            assignment_id=f"{now.run_id}/{leased[0].index}",
            epoch=leased[0].attempts,
            replayed=before.learners[0].result,
            metadata=((WORKER_SECRET, shows),) if shows else (),
        )


@pytest.mark.parametrize("shows", ["", OWN], ids=["shows nothing", "shows its own secret"])
def test_what_is_published_of_a_worker_is_of_no_use_to_others(cluster: Cluster, shows: str) -> None:
    cluster.start_coordinator()
    with cluster.client() as client:
        victim = cluster.play_worker("victim")
        old = client.start_run({**RUN, "seed": 1})
        for _ in range(2):
            victim.submit(victim.take())
        client.wait(old.run_id)
        new = client.start_run({**RUN, "seed": 2})
        assignment = victim.take()
        with impostor_beside(
            cluster, victim, old=old.run_id, new=new.run_id, shows=shows
        ) as impostor:
            assert (impostor.worker_id, impostor.epoch) == (victim.worker_id, assignment.epoch)
            assert impostor.assignment_id == assignment.assignment_id
            replay = worker_pb2.CommitResultRequest(
                **impostor.held,
                result=impostor.replayed,
                report=worker_pb2.LearnerReport(loss=FORGED_LOSS),
            )
            workers = impostor.workers
            for call, request in (
                (workers.CommitResult, replay),
                (workers.Heartbeat, worker_pb2.HeartbeatRequest(**impostor.held)),
                (workers.ReleaseAssignment, worker_pb2.ReleaseAssignmentRequest(**impostor.held)),
                (
                    workers.ReleaseAssignment,
                    worker_pb2.ReleaseAssignmentRequest(**impostor.held, error="it diverged"),
                ),
                (
                    workers.AcquireAssignment,
                    worker_pb2.AcquireAssignmentRequest(worker_id=impostor.worker_id),
                ),
            ):
                error = impostor.refusal(call, request)
                assert isinstance(error, ForeignWorkerError)
                assert "does not show the secret of the worker" in str(error)
                assert victim.secret not in str(error)
            learner = client.run(new.run_id).learners[assignment.learner_index]
            assert (learner.attempts, learner.result) == (assignment.epoch, None)
        victim.submit(assignment)
        victim.submit(victim.take())
        final = client.wait(new.run_id)
    assert [learner.loss for learner in final.learners] == [1.0, 1.0]
    replayed = impostor.replayed.sha256
    assert replayed not in {it.result.sha256 for it in final.learners if it.result}


def test_a_liar_is_named_and_the_soup_is_the_one_without_it(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    learners = {**small_run["learners"], "num_learners": 2, "redundancy": 2}
    with cluster.client() as client:
        run = client.start_run({**small_run, "learners": learners})
        liar = cluster.play_worker("liar")
        # On such a device as the honest ones have, or so it says.
        like_theirs = versions() | {"cpu": processor_name()}
        liar.client.register(
            liar.secret, name="liar", device="cpu", versions=like_theirs, allowed_modules=()
        )
        # Nothing is wrong with it by itself: theta*, pruned as it should be.
        liar.submit(liar.take())
        held = client.run(run.run_id)
        assert [learner.result for learner in held.learners] == [None, None]
        assert held.waiting.startswith(
            "worker liar is not enough: learners.redundancy = 2 wants another"
        )
    # What is held back is as durable as what is in.
    coordinator.stop(signal.SIGKILL)
    coordinator = cluster.start_coordinator()
    workers = [cluster.start_worker(name) for name in ("honest", "other")]
    with cluster.client() as client:
        final = client.wait(run.run_id)
        alone = {**learners, "redundancy": 1}
        once = client.wait(client.start_run({**small_run, "learners": alone}).run_id)
    for worker in workers:
        assert worker.stop() == 0
    assert [learner.attempts for learner in final.learners] == [3, 2]
    assert final.pretrained_weights == once.pretrained_weights
    shown = cluster.lipt("run", "show", run.run_id).stdout
    assert "liar handed in" in shown
    assert "agree on it, and worker liar handed in" in shown
    log = coordinator.text()
    assert "event=learner_disputed run=" in log
    assert "event=learner_disputed detail=settled" in log
