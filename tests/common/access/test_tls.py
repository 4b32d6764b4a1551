import logging
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from lipt.common.access.tls import (
    Renewal,
    TlsFiles,
    require_deliberate_exposure,
    server_credentials,
    split_address,
)
from lipt.common.errors import ConfigError
from tests.serving import answering
from tests.tls_files import write_files

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
IN_TIME = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TLS files of a certificate that is valid from BEGIN to END."""
    made = tmp_path_factory.mktemp("tls")
    write_files(made, trustme.CA(), begin=BEGIN, end=END)
    return made


def checked(folder: Path, now: datetime = IN_TIME, **others: Path) -> TlsFiles:
    paths = {name: folder / f"{name}.pem" for name in ("cert", "key", "ca")} | others
    files = TlsFiles.from_options(**paths, now=lambda: now)
    assert files is not None
    return files


def test_unusable_tls_files_are_named_with_their_flags(folder: Path, tmp_path: Path) -> None:
    edwards, garbage = tmp_path / "edwards.pem", tmp_path / "garbage.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", edwards], check=True)
    text = (folder / "key.pem").read_text()
    garbage.write_text(text[: len(text) // 2] + "?" * 8 + text[len(text) // 2 + 8 :])
    other_key = write_files(tmp_path / "other", trustme.CA()).key
    for flag, path, words in (
        ("key", other_key, f"does not belong to --tls-cert {folder}/cert.pem"),
        ("key", garbage, "holds no private key"),
        ("cert", garbage, "holds no certificate"),
        ("ca", garbage, "holds no certificate"),
        # gRPC closes connections on it.
        ("key", edwards, "is an Edwards curve's.*P-256"),
    ):
        with pytest.raises(ConfigError, match=f"--tls-{flag} {path} {words}"):
            checked(folder, **{flag: path})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            END + DAY,
            "has expired: .* from 2026-01-01 00:00 to 2026-03-01 12:30 UTC, .*-03-02 12:30",
        ),
        (BEGIN - DAY, "is not valid yet: it is valid from 2026-01-01 00:00"),
    ],
)
def test_expired_or_future_certificate_is_refused(folder: Path, now: datetime, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(folder, now)


@pytest.mark.parametrize(
    ("days_left", "said"),
    [(15.0, ""), (13.9, "expires in 13 days, on 2026-03-01 12:30 UTC"), (0.5, "expires in 0 days")],
)
def test_certificate_that_expires_soon_is_logged(folder: Path, days_left: float, said: str) -> None:
    now = END - days_left * DAY
    note = checked(folder, now).expires_soon(now)
    assert said in note
    assert bool(note) == bool(said)
    assert TlsFiles(ca=folder / "ca.pem").expires_soon(now) == ""


def test_an_authority_of_expired_certificates_is_refused(folder: Path, tmp_path: Path) -> None:
    # Any certificate will do.
    old, expired, now = tmp_path / "old.pem", (folder / "cert.pem").read_text(), END + DAY
    old.write_text(expired)
    with pytest.raises(ConfigError, match=f"--tls-ca {old} has expired"):
        TlsFiles.from_options(None, None, old, now=lambda: now)
    old.write_text(expired + (folder / "ca.pem").read_text())
    assert TlsFiles.from_options(None, None, old, now=lambda: now) == TlsFiles(ca=old)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:port", "host:65536", "h:-1"])
def test_address_is_host_and_port_and_refused_with_an_example_if_malformed(address: str) -> None:
    assert split_address("head-node.cluster:50051") == ("head-node.cluster", 50051)
    assert split_address("[::1]:0") == ("::1", 0)
    with pytest.raises(ConfigError, match=r"Example: 127\.0\.0\.1:50051"):
        split_address(address)


@pytest.mark.parametrize(
    "address",
    ["::1:50051", "2001:db8::5:50051", "[::1:50051", "::1]:50051", "[host]:50051", "[]:1"],
)
def test_an_ipv6_address_and_no_other_host_has_brackets(address: str) -> None:
    with pytest.raises(ConfigError, match=r"into brackets: \[::1\]:50051"):
        split_address(address)


def test_listening_beyond_this_machine_needs_a_flag() -> None:
    tls = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))
    with pytest.raises(ConfigError, match=r"--tls-cert.*--insecure"):
        require_deliberate_exposure("0.0.0.0:50051", None, insecure=False)
    with pytest.raises(ConfigError, match="there is no TLS"):
        require_deliberate_exposure("[::]:9464", TlsFiles(ca=Path("a.pem")), insecure=False)
    require_deliberate_exposure("0.0.0.0:50051", None, insecure=True)
    require_deliberate_exposure("0.0.0.0:50051", tls, insecure=False)
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost"):
        require_deliberate_exposure(f"{host}:50051", None, insecure=False)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def served_files(tmp_path: Path, authority: trustme.CA) -> TlsFiles:
    return write_files(tmp_path / "server", authority)


def content(path: Path | None) -> bytes:
    assert path is not None
    return path.read_bytes()


def test_contents_are_the_same_object_until_the_files_change(
    served_files: TlsFiles, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    renewal = Renewal(served_files)
    before = renewal.current()
    assert renewal.current() is before
    content_before = content(served_files.cert)
    write_files(tmp_path / "server", authority)
    after = renewal.current()
    assert (before.cert, after.cert) == (content_before, content(served_files.cert))
    assert renewal.current() is after
    names = f"{served_files.cert}, {served_files.key}, {served_files.ca}"
    assert caplog.messages == [f"new connections use the new content of {names}"]


def test_a_half_replaced_key_pair_is_not_used_and_logged_once(
    served_files: TlsFiles, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert served_files.cert is not None
    assert served_files.key is not None
    renewal = Renewal(served_files)
    before = renewal.current()
    fresh = write_files(tmp_path / "fresh", authority)
    served_files.cert.write_bytes(content(fresh.cert))
    assert [renewal.current() for _ in range(3)] == [before] * 3
    (line,) = caplog.messages
    assert f"--tls-key {served_files.key} does not belong to --tls-cert {served_files.cert}" in line
    assert line.endswith("What was read before stays in use.")
    served_files.key.write_bytes(content(fresh.key))
    assert renewal.current().cert == content(fresh.cert)
    assert renewal.current().key == content(fresh.key)


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_missing_truncated_or_invalid_file_is_not_used(
    served_files: TlsFiles, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = getattr(served_files, name)
    renewal = Renewal(served_files)
    before = renewal.current()
    whole = path.read_bytes()
    path.unlink()
    assert renewal.current() is before
    for damaged in (whole[: len(whole) // 2], b"\xff" * len(whole)):
        path.write_bytes(damaged)
        assert renewal.current() is before
    assert [f"--tls-{name} {path}" in line for line in caplog.messages] == [True] * 3
    path.write_bytes(whole)
    assert renewal.current() is before


def test_a_replaced_folder_behind_a_link_is_reread(tmp_path: Path, authority: trustme.CA) -> None:
    # As Kubernetes renews a secret in a pod: the files are links into a folder behind a link.
    write_files(tmp_path / "1", authority)
    fresh = write_files(tmp_path / "2", authority)
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "mounted").mkdir()
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / "mounted" / name).symlink_to(Path("..", "data", name))
    mounted = TlsFiles(*(tmp_path / "mounted" / f"{name}.pem" for name in ("cert", "key", "ca")))
    renewal = Renewal(mounted)
    renewal.current()
    (tmp_path / "next").symlink_to("2")
    (tmp_path / "next").rename(tmp_path / "data")
    assert renewal.current().cert == content(fresh.cert)


def test_files_that_are_invalid_at_the_start_are_refused(served_files: TlsFiles) -> None:
    with pytest.raises(ConfigError, match="a server needs --tls-cert"):
        server_credentials(TlsFiles(ca=served_files.ca))
    assert served_files.key is not None
    served_files.key.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no private key"):
        server_credentials(served_files)


async def kind_of(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Say "mutual" to who has shown a certificate, and else "one-sided"."""
    return b"mutual" if "x509_pem_cert" in context.auth_context() else b"one-sided"


def connect(address: str, served_files: TlsFiles) -> grpc.aio.Channel:
    # Each channel has a connection of its own.
    options = [("grpc.use_local_subchannel_pool", 1)]
    pem = served_files.read(datetime.now(UTC))
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
    return grpc.aio.secure_channel(address, credentials, options)


async def ask(address: str, served_files: TlsFiles) -> bytes:
    async with connect(address, served_files) as channel:
        return bytes(await channel.unary_unary("/s/m")(b"", timeout=30))


@pytest.mark.parametrize("mutual", [False, True])
async def test_a_server_renews_certificates_and_keeps_connections(
    tmp_path: Path, mutual: bool
) -> None:
    old, new = trustme.CA(), trustme.CA()
    old_peer = write_files(tmp_path / "old", old)
    new_peer = write_files(tmp_path / "new", new)
    served_files = write_files(tmp_path / "server", old)
    said = b"mutual" if mutual else b"one-sided"
    credentials = server_credentials(served_files if mutual else replace(served_files, ca=None))
    async with answering(kind_of, credentials) as address:
        async with connect(address, old_peer) as connection:
            method = connection.unary_unary("/s/m")
            assert await method(b"", timeout=30) == said
            write_files(tmp_path / "server", new)
            assert await ask(address, new_peer) == said
            assert await method(b"", timeout=30) == said
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(address, old_peer)
