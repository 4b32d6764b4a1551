"""Who gets in at a coordinator, as people meet it: the commands, workers, other users."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.access.tokens import Token
from lipt.common.errors import PermissionDeniedError, UnauthenticatedError
from lipt.common.states import RunState
from lipt.common.weights.files import pack
from lipt.trainer import Client
from tests.cluster import Cluster


def elsewhere(directory: Path) -> dict[str, str]:
    """The environment of a client that looks for local tokens where there are none."""
    directory.mkdir(exist_ok=True)
    return {"TMPDIR": str(directory), "XDG_RUNTIME_DIR": str(directory)}


def test_who_finds_no_local_token_is_refused_until_it_has_a_token(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    cluster.start_coordinator().wait_for("lets in this user's processes, and who shows a token")
    outside = elsewhere(tmp_path / "elsewhere")
    stranger = cluster.start_worker("stranger", environment=outside)
    stranger.wait_for(r"serves the user that started it.*lipt token create --role.*Trying again")
    command = ["-m", "lipt.trainer.cli", "run", "list", "--coordinator", cluster.address]
    text = cluster.start("list", command, outside).refused()
    assert "serves the user that started it" in text
    token = tmp_path / "token"
    made = cluster.lipt("token", "create", "--role", "worker", "--name", "guest")
    token.write_text(made.stdout)
    cluster.start_worker("guest", "--token-file", str(token), environment=outside)
    with cluster.client() as client:
        run = client.wait(client.start_run(small_run).run_id)
        assert {learner.worker for learner in run.learners} == {"guest"}
    text = cluster.start("list", [*command, "--token-file", str(token)], outside).refused()
    assert "(guest) has the role worker, and RunService/ListRuns takes the role trainer" in text
    listed = cluster.lipt("token", "list").stdout
    assert [line.split()[1:4] for line in listed.splitlines()[1:]] == [["guest", "worker", "valid"]]
    assert made.stdout.strip() not in listed


@pytest.mark.smoke
def test_worker_whose_token_is_revoked_stops_and_goes_on_with_another(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    cluster.start_coordinator("--insecure", "--require-token")
    file = tmp_path / "worker.token"
    own = str(cluster.state / "admin.token")
    with Client(cluster.address, token_file=own) as client:
        given = client.create_token("worker")
        file.write_text(given.secret)
        worker = cluster.start_worker("one", "--token-file", str(file))
        worker.wait_for("joined")
        client.revoke_token(given.token.token_id)
        run = client.start_run(small_run)
        worker.wait_for(f"the token {given.token.token_id} was revoked on .*Trying again")
        assert client.run(run.run_id).state is not RunState.READY
        file.write_text(client.create_token("worker").secret)
        assert client.wait(run.run_id).state is RunState.READY
    assert given.secret not in worker.text()


def test_session_ends_at_the_call_after_its_token_is_revoked(cluster: Cluster) -> None:
    cluster.start_coordinator("--insecure", "--require-token").wait_for("lets in who shows a token")
    asking = partial(Client, cluster.address)
    with asking(token_file=cluster.state / "admin.token") as admin:
        given = admin.create_token("trainer", name="notebook")
        with asking(token=given.secret) as client:
            assert client.runs() == []
            assert client.who_am_i().roles == ("trainer",)
            upload = client.upload_weights(pack({"w": torch.ones(3)}))
            assert upload.size_bytes > 12
            with pytest.raises(PermissionDeniedError, match="takes the role admin"):
                client.create_token("admin")
            admin.revoke_token(given.token.token_id)
            for call in (
                client.runs,
                lambda: next(client.watch()),
                lambda: client.upload_weights(pack({"w": torch.zeros(3)})),
            ):
                with pytest.raises(UnauthenticatedError, match=r"\(notebook\) was revoked"):
                    call()
    with asking() as nobody, pytest.raises(UnauthenticatedError, match="no token"):
        nobody.runs()
    with (
        asking(token=Token.draw("x").text) as wrong,
        pytest.raises(UnauthenticatedError, match="none of this coordinator's"),
    ):
        wrong.runs()


def test_next_coordinator_on_a_port_is_found_whatever_became_of_the_last(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    first = cluster.start_coordinator()
    worker = cluster.start_worker("one")
    worker.wait_for("joined")
    with cluster.client() as client:
        assert client.who_am_i().roles == ("admin",)
        first.stop(signal.SIGKILL)
        # Of another state, so with another token of its own.
        other = ("--listen", cluster.address, "--state-dir", str(tmp_path / "other"))
        cluster.start_coordinator(*other)
        run = client.wait(client.start_run(small_run).run_id)
    assert {learner.worker for learner in run.learners} == {"one"}
