from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import UnreachableError
from lipt.common.states import RunState
from lipt.trainer import Client
from tests.certificates import Certificates
from tests.cluster import Cluster


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.made(tmp_path / "certs")


@pytest.mark.smoke
def test_certified_peers_work_and_others_do_not_get_in(
    cluster: Cluster, small_run: dict[str, Any], certificates: Certificates
) -> None:
    coordinator = cluster.start_coordinator(*certificates.flags("coordinator"))
    coordinator.wait_for("mTLS")
    cluster.start_worker("certified", *certificates.flags("worker"))
    stranger = cluster.start_worker("stranger", "--tls-ca", str(certificates.folder / "ca.pem"))
    with Client(cluster.address, tls=certificates.files("trainer")) as client:
        run = client.wait(client.start_run(small_run).run_id)
        assert {learner.worker for learner in run.learners} == {"certified"}
    stranger.wait_for("asks for a client certificate: give --tls-cert and --tls-key.*Trying again")
    with Client(cluster.address) as plain, pytest.raises(UnreachableError):
        plain.runs()


def test_an_authority_is_exchanged_under_a_coordinator_that_serves(
    cluster: Cluster, small_run: dict[str, Any], certificates: Certificates, tmp_path: Path
) -> None:
    copied = certificates.copied(tmp_path / "copied")
    coordinator = cluster.start_coordinator(*certificates.flags("coordinator"))
    worker = cluster.start_worker("old", *copied.flags("worker"))
    worker.wait_for("joined")
    with Client(cluster.address, tls=copied.files("trainer")) as connected:
        connected.runs()
        certificates.make("init", "--force", "--host", "127.0.0.1")
        certificates.make("trainer", "--force")
        with Client(cluster.address, tls=certificates.files("trainer")) as client:
            run = client.start_run(small_run)
            coordinator.wait_for(r"new connections use the new content of .*coordinator\.pem")
            # Connections of before go on.
            assert client.wait(run.run_id).state is RunState.READY
            assert [each.run_id for each in connected.runs()] == [run.run_id]
        with Client(cluster.address, tls=copied.files("trainer")) as late:
            with pytest.raises(UnreachableError):
                late.runs()
            # Its files follow; the client that was opened before does so, too.
            for name in ("ca.pem", "trainer.pem", "trainer.key"):
                shutil.copy(certificates.folder / name, copied.folder / name)
            assert [each.run_id for each in late.runs()] == [run.run_id]
        assert [each.run_id for each in connected.runs()] == [run.run_id]
