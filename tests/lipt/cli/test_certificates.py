import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from lipt.cli.certificates import Folder, Pair, issue_client, issue_server, make_authority
from lipt.common.access import Role
from lipt.common.access.tls import PemFile, require_key
from lipt.common.errors import ConfigError

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


DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def verified(folder: Folder, name: str, purpose: str, *more: str | Path) -> bool:
    """Whether OpenSSL takes a certificate for a purpose, with all of RFC 5280's rules."""
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, *more]
    command += ["-CAfile", folder.cert("ca"), folder.cert(name)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_certificate_is_good_for_its_purpose_and_its_hosts_alone(folder: Folder) -> None:
    for name, client, server in (
        ("coordinator", False, True),
        ("worker", True, False),
        ("trainer", True, False),
        ("admin", True, False),
        ("scraped", True, True),
    ):
        assert verified(folder, name, "sslclient") == client
        assert verified(folder, name, "sslserver") == server
    for flag, good, bad in (
        ("-verify_hostname", "head.example.org", "example.org"),
        ("-verify_ip", "::1", "127.0.0.2"),
    ):
        assert verified(folder, "coordinator", "sslserver", flag, good)
        assert not verified(folder, "coordinator", "sslserver", flag, bad)
    assert verified(folder, "scraped", "sslserver", "-verify_hostname", "gpu-1")


def test_a_peer_s_certificate_cannot_sign_others(folder: Folder) -> None:
    taken = folder.cert("worker"), folder.key("worker")
    certificate = x509.load_pem_x509_certificate(taken[0].read_bytes())
    key: Any = load_pem_private_key(taken[1].read_bytes(), None)
    worker = Pair(certificate, key)
    folder.write("forged", issue_client(worker, "forged", Role.ADMIN, now=NOW, days=1))
    assert not verified(folder, "forged", "sslclient", "-untrusted", taken[0])


def test_a_certificate_counts_from_an_hour_ago_within_its_authority() -> None:
    authority = make_authority(now=NOW, days=100)
    for days, counted in ((90, 90), (200, 100)):
        made = issue_server(authority, ["head"], now=NOW, days=days).certificate
        assert made.not_valid_before_utc == NOW - HOUR
        assert made.not_valid_after_utc == NOW + counted * DAY
    late = NOW + 99 * DAY
    made = issue_client(authority, "a", Role.WORKER, now=late, days=2).certificate
    assert made.not_valid_after_utc == authority.certificate.not_valid_after_utc
    authority = make_authority(now=NOW, days=100)
    with pytest.raises(ConfigError, match="lipt certs init --force"):
        issue_server(authority, ["head"], now=NOW + 100 * DAY, days=1)


def test_invalid_hosts_and_names_are_refused() -> None:
    authority = make_authority(now=NOW, days=1)
    for host in ("", "head:50051", "https://head", "[::1]", "a..b", "-head", "a*.b"):
        with pytest.raises(ConfigError, match="is not a host's name or IP address"):
            issue_server(authority, ["head", host], now=NOW, days=1)
    for name in ("", "../x", "a b", ".a", "a" * 65, "a\n"):
        with pytest.raises(ConfigError, match="is not a name of 1 to 64"):
            issue_client(authority, name, Role.WORKER, now=NOW, days=1)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_and_their_folder_are_private(folder: Folder) -> None:
    assert mode(folder.path) == 0o700
    assert {mode(path) for path in folder.path.glob("*.key")} == {0o600}
    assert {mode(path) for path in folder.path.glob("*.pem")} == {0o644}


@pytest.mark.parametrize("there", ["x.key", "x.pem"])
def test_existing_certificates_are_not_overwritten_by_default(tmp_path: Path, there: str) -> None:
    folder = Folder(tmp_path)
    (tmp_path / there).symlink_to("nowhere")  # also of somebody else's making
    with pytest.raises(ConfigError, match=f"{there} is there already.*--force"):
        folder.require_free(["a", "x"], force=False)
    folder.require_free(["x"], force=True)


def test_a_replaced_key_is_never_readable_by_others(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.key("x").touch(mode=0o666)
    folder.write("x", make_authority(now=NOW, days=1))
    assert mode(folder.key("x")) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.key", "x.pem"]


def test_a_pair_that_may_not_sign_is_no_authority(folder: Folder, tmp_path: Path) -> None:
    other = Folder(tmp_path)
    other.cert("ca").write_bytes(folder.cert("worker").read_bytes())
    other.key("ca").write_bytes(folder.key("worker").read_bytes())
    with pytest.raises(ConfigError, match="is not an authority's certificate"):
        other.authority()
    other.key("ca").write_bytes(folder.key("ca").read_bytes())
    with pytest.raises(ConfigError, match="does not belong to"):
        other.authority()


def test_an_authority_that_openssl_made_signs_as_well(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=own"]
    make += ["-days", "9", "-addext", "keyUsage=critical,keyCertSign"]
    files = ["-keyout", folder.key("ca"), "-out", folder.cert("ca")]
    subprocess.run([*make, *files], check=True, capture_output=True)
    now = datetime.now(UTC)
    folder.write("coordinator", issue_server(folder.authority(), ["head"], now=now, days=1))
    assert verified(folder, "coordinator", "sslserver")


def test_renewals_at_the_same_time_leave_a_pair_that_belongs_together(tmp_path: Path) -> None:
    folder, authority = Folder(tmp_path), make_authority(now=NOW, days=1)
    pairs = [issue_client(authority, "gpu-1", Role.WORKER, now=NOW, days=1) for _ in range(4)]

    def renew(pair: Pair) -> None:
        for _ in range(25):
            folder.write("gpu-1", pair)

    with ThreadPoolExecutor(len(pairs)) as pool:
        list(pool.map(renew, pairs))
    cert, key = PemFile.read("", folder.cert("gpu-1")), PemFile.read("", folder.key("gpu-1"))
    require_key(key, cert)
