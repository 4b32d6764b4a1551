from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from lipt.common.errors import ConfigError, UnreachableError
from lipt.common.network.tls import TlsFiles
from lipt.common.states import RunState
from lipt.trainer import Client
from tests.cluster import Cluster


@dataclass(frozen=True)
class Party:
    """A certificate and its key as files, beside the authority's."""

    cert: Path
    key: Path
    ca: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.cert), "--tls-key", str(self.key), "--tls-ca", str(self.ca))


@pytest.fixture
def party(tmp_path: Path) -> Party:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    party = Party(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(str(party.ca))
    issued.private_key_pem.write_to_path(str(party.key))
    issued.cert_chain_pems[0].write_to_path(str(party.cert))
    return party


def test_certified_peers_work_and_others_do_not_get_in(
    cluster: Cluster, small_run: dict[str, Any], party: Party
) -> None:
    coordinator = cluster.start_coordinator(*party.flags)
    coordinator.wait_for("mTLS")
    cluster.start_worker("certified", *party.flags)
    stranger = cluster.start_worker("stranger", "--tls-ca", str(party.ca))
    with Client(cluster.address, tls=TlsFiles(party.cert, party.key, party.ca)) as client:
        run = client.wait(client.start_run(small_run).run_id)
        assert run.state is RunState.READY, run.message
        assert {learner.worker for learner in run.learners} == {"certified"}
    stranger.wait_for("asks for a client certificate: give --tls-cert and --tls-key.*Trying again")
    with Client(cluster.address) as plain, pytest.raises(UnreachableError):
        plain.runs()


def test_incomplete_certificates_are_refused(party: Party, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tls-cert was given without --tls-key"):
        TlsFiles.from_options(party.cert, None, None)
    with pytest.raises(ConfigError, match=r"none\.pem is not a file"):
        TlsFiles.from_options(None, None, tmp_path / "none.pem")
    assert TlsFiles.from_options(None, None, None) is None
