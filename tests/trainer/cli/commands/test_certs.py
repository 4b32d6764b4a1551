import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from lipt.common.access.certificate import identity_of
from lipt.common.access.roles import Role
from lipt.trainer.cli.certificates import Folder

LOOPBACK = ["localhost", "127.0.0.1", "::1"]


@pytest.fixture
def certs(lipt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: lipt("certs", *arguments)


def said(result: Any) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_what_is_said_can_be_typed(certs: Any) -> None:
    lines = certs("init", "--host", "head").stdout.splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("    ")]
    assert [command[0] for command in commands] == [
        *("lipt-coordinator", "lipt", "lipt", "lipt-worker", "lipt")
    ]
    flags = ["--tls-cert", "certs/worker.pem", "--tls-key", "certs/worker.key"]
    flags += ["--tls-ca", "certs/ca.pem"]
    assert commands[3] == ["lipt-worker", "--coordinator", "head:50051", *flags]
    for command in commands[1:3]:
        assert certs(*command[2:]).exit_code == 0
    for line in lines:
        if line.startswith("To "):
            named = [word for word in shlex.split(line.replace("'", "")) if "/" in word]
            assert len(named) == 3
            assert all(Path(word).is_file() for word in named)


@pytest.mark.parametrize("role", Role)
def test_a_peer_has_its_name_and_its_role(certs: Any, role: Role) -> None:
    certs("init")
    made = said(certs(role, "gpu-1", "--json"))
    identity = identity_of({"x509_pem_cert": [Path(made["cert"]).read_bytes()]})
    assert identity is not None
    assert (made["cert"], identity.name, identity.roles) == ("certs/gpu-1.pem", "gpu-1", {role})
    program = "lipt-worker" if role is Role.WORKER else "lipt doctor"
    assert made["commands"][0].startswith(f"{program} --coordinator {socket.gethostname()}:50051 ")
    assert Path(said(certs(role, "--json"))["cert"]) == Path(f"certs/{role}.pem")


@pytest.mark.parametrize(
    ("host", "listen", "address"),
    [
        ("head", "0.0.0.0:50051", "head:50051"),
        ("localhost", "127.0.0.1:50051", "localhost:50051"),
        ("fd00::5", "[::]:50051", "[fd00::5]:50051"),
        ("*.example.org", "0.0.0.0:50051", "localhost:50051"),
    ],
)
def test_commands_fit_the_first_host(certs: Any, host: str, listen: str, address: str) -> None:
    start, worker, trainer = said(certs("init", "--host", host, "--json"))["commands"]
    assert f" --listen {listen} " in start
    assert f" --coordinator {address} " in worker
    assert f" --coordinator {address} " in trainer


def test_the_coordinator_s_certificate_is_made_anew_for_the_same_hosts(certs: Any) -> None:
    assert said(certs("init", "--json"))["hosts"] == [socket.gethostname(), *LOOPBACK]
    made = said(certs("init", "--force", "--host", "10.0.0.5", "--host", "::1", "--json"))
    assert Folder(Path("certs")).hosts("coordinator") == made["hosts"]
    assert made["hosts"] == ["10.0.0.5", "::1", "localhost", "127.0.0.1"]
    certs("init", "--force", "--host", "head")
    before = Path("certs/coordinator.pem").read_bytes()
    authority = Path("certs/ca.pem").read_bytes()
    assert "certs/coordinator.key is there already" in certs("coordinator").stderr
    assert said(certs("coordinator", "--force", "--json"))["hosts"] == ["head", *LOOPBACK]
    assert Path("certs/coordinator.pem").read_bytes() != before
    assert said(certs("coordinator", "--force", "--host", "new", "--json"))["hosts"][0] == "new"
    assert Path("certs/ca.pem").read_bytes() == authority


def test_what_is_refused_writes_nothing(certs: Any) -> None:
    assert "lipt certs init --folder certs" in certs("worker").stderr
    assert "is not a host's name" in certs("init", "--host", "head:50051").stderr
    assert not Path("certs").exists()
    assert certs("init", "--days", "0").exit_code == 2


def test_who_serves_nothing_has_no_certificate_of_a_server(certs: Any) -> None:
    certs("init")
    refused = certs("trainer", "--host", "head")
    assert refused.exit_code == 2
    assert "--host" in refused.stderr
    assert not Path("certs/trainer.key").exists()
