"""A folder as `lipt certs init` and its like leave it, made at a known moment."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lipt.common.access.roles import Role
from lipt.trainer.cli.certificates.authority import issue_client, issue_server, make_authority
from lipt.trainer.cli.certificates.folder import Folder

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("made") / "certs")
    authority = make_authority(now=NOW, days=3650)
    folder.write("ca", authority)
    hosts = ["127.0.0.1", "head.example.org", "::1"]
    folder.write("coordinator", issue_server(authority, hosts, now=NOW, days=365))
    for role in Role:
        folder.write(role, issue_client(authority, role, role, now=NOW, days=365))
    scraped = issue_client(authority, "scraped", Role.WORKER, hosts=["gpu-1"], now=NOW, days=365)
    folder.write("scraped", scraped)
    return folder
