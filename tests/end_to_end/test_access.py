import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lipt import Client
from lipt.common.errors import UnreachableError
from lipt.common.states import RunState
from tests import processes
from tests.cluster import SMALL_RUN, Cluster
from tests.tls_files import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.made(tmp_path / "certs")


@pytest.mark.smoke
def test_certified_peers_work_and_others_do_not_get_in(
    cluster: Cluster, certificates: Certificates
) -> None:
    coordinator = cluster.start_coordinator(*certificates.flags("coordinator"))
    coordinator.wait_for("mTLS")
    cluster.start_worker("certified", *certificates.flags("worker"))
    stranger = cluster.start_worker("stranger", "--tls-ca", str(certificates.folder / "ca.pem"))
    with Client(cluster.address, tls=certificates.files("trainer")) as client:
        run = client.wait(client.start_run(SMALL_RUN).run_id)
        assert {learner.worker for learner in run.learners} == {"certified"}
    stranger.wait_for("asks for a client certificate: give --tls-cert and --tls-key.*Trying again")
    with Client(cluster.address) as plain, pytest.raises(UnreachableError):
        plain.runs()


def test_an_authority_is_exchanged_under_a_coordinator_that_serves(
    cluster: Cluster, certificates: Certificates, tmp_path: Path
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
            run = client.start_run(SMALL_RUN)
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


@pytest.mark.parametrize("secure", [False, True])
def test_everything_is_served_at_an_ipv6_address(
    cluster: Cluster, tmp_path: Path, secure: bool
) -> None:
    ports = ("--listen", "--dashboard-listen", "--metrics-listen", "--health-listen")
    flags = [word for port in ports for word in (port, "[::1]:0")]
    certificates = Certificates(tmp_path / "certs")
    if secure:
        certificates.make("init", "--host", "::1")
        for role in ("worker", "trainer"):
            certificates.make(role)
        flags += certificates.flags("coordinator")
    coordinator = cluster.start_coordinator(*flags)
    assert cluster.address.startswith("[::1]:")
    page = coordinator.wait_for(r"the page is at (\S+):")[1]
    assert page.startswith(f"http{'s' if secure else ''}://[::1]:")
    health = coordinator.wait_for(r"health on (\S+)")[1]
    checked = processes.run(
        ["-m", "lipt.common.rpc.health_check"], {**os.environ, "LIPT_HEALTH_LISTEN": health}
    )
    assert checked.returncode == 0, checked.stderr
    cluster.start_worker("six", *(certificates.flags("worker") if secure else ()))
    tls = certificates.files("trainer") if secure else None
    with Client(cluster.address, tls=tls) as client:
        run = client.wait(client.start_run(SMALL_RUN).run_id)
        assert {learner.worker for learner in run.learners} == {"six"}
        link = client.open_page().url
    assert link.startswith(f"{page}/sign-in?code=")
    ca = ssl.create_default_context(cafile=certificates.folder / "ca.pem") if secure else True
    with httpx.Client(base_url=page, trust_env=False, verify=ca, timeout=60) as browser:
        assert browser.get(link).status_code == 303
        answer = browser.post("/api/AccessService/WhoAmI", json={}, headers={"Origin": page})
        assert answer.status_code == 200


@pytest.fixture
def outside() -> Iterator[dict[str, str]]:
    """The environment of a client that looks for local sockets where there are none."""
    # Short: in place of a longer one /tmp is taken.
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield {"TMPDIR": directory, "XDG_RUNTIME_DIR": directory}


def test_a_caller_without_the_local_socket_needs_a_token(
    cluster: Cluster, tmp_path: Path, outside: dict[str, str]
) -> None:
    cluster.start_coordinator().wait_for("lets in this user's processes, and who shows a token")
    stranger = cluster.start_worker("stranger", environment=outside)
    stranger.wait_for(r"serves the user that started it.*lipt token create --role.*Trying again")
    command = ["-m", "lipt.cli", "run", "list", "--coordinator", cluster.address]
    text = cluster.start("list", command, outside).refused()
    assert "serves the user that started it" in text
    token = tmp_path / "token"
    made = cluster.lipt("token", "create", "--role", "worker", "--name", "guest")
    token.write_text(made.stdout)
    cluster.start_worker("guest", "--token-file", str(token), environment=outside)
    with cluster.client() as client:
        run = client.wait(client.start_run(SMALL_RUN).run_id)
        assert {learner.worker for learner in run.learners} == {"guest"}
    text = cluster.start("list", [*command, "--token-file", str(token)], outside).refused()
    assert "(guest) has the role worker, and RunService/ListRuns takes the role trainer" in text
    assert made.stdout.strip() not in cluster.lipt("token", "list").stdout


@pytest.mark.smoke
def test_a_worker_stops_when_its_token_is_revoked(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_coordinator("--insecure", "--require-token")
    file = tmp_path / "worker.token"
    own = str(cluster.state / "admin.token")
    with Client(cluster.address, token_file=own) as client:
        given = client.create_token("worker")
        file.write_text(given.secret)
        worker = cluster.start_worker("one", "--token-file", str(file))
        worker.wait_for("joined")
        client.revoke_token(given.token.token_id)
        run = client.start_run(SMALL_RUN)
        worker.wait_for(f"the token {given.token.token_id} was revoked on .*Trying again")
        assert client.run(run.run_id).state is not RunState.READY
        file.write_text(client.create_token("worker").secret)
        assert client.wait(run.run_id).state is RunState.READY
    assert given.secret not in worker.text()


def test_a_new_coordinator_on_a_port_is_found(cluster: Cluster, tmp_path: Path) -> None:
    first = cluster.start_coordinator()
    worker = cluster.start_worker("one")
    worker.wait_for("joined")
    with cluster.client() as client:
        assert client.who_am_i().roles == ("admin",)
        first.stop(signal.SIGKILL)
        # Of another state, so with another token of its own.
        other = ("--listen", cluster.address, "--state-dir", str(tmp_path / "other"))
        cluster.start_coordinator(*other)
        run = client.wait(client.start_run(SMALL_RUN).run_id)
    assert {learner.worker for learner in run.learners} == {"one"}
