"""TLS files that cannot work are refused before anything listens, by file and reason."""

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles, require_deliberate_exposure, split_address

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
IN_TIME = datetime(2026, 2, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Files:
    """A certificate that is valid from BEGIN to END, and what belongs and does not belong to it."""

    cert: Path
    key: Path
    ca: Path
    other_key: Path
    garbage: Path

    def checked(self, now: datetime = IN_TIME, **others: Path) -> TlsFiles:
        paths = {"cert": self.cert, "key": self.key, "ca": self.ca} | others
        files = TlsFiles.from_options(**paths, now=lambda: now)
        assert files is not None
        return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", not_before=BEGIN, not_after=END)
    made = Files(*(folder / name for name in ("cert", "key", "ca", "other", "garbage")))
    authority.cert_pem.write_to_path(str(made.ca))
    issued.cert_chain_pems[0].write_to_path(str(made.cert))
    issued.private_key_pem.write_to_path(str(made.key))
    authority.issue_cert("other").private_key_pem.write_to_path(str(made.other_key))
    text = made.key.read_text()
    half = len(text) // 2
    made.garbage.write_text(text[:half] + "?" * 8 + text[half + 8 :])
    return made


def test_files_that_cannot_work_are_named_with_their_flags(files: Files, tmp_path: Path) -> None:
    edwards = tmp_path / "edwards.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", edwards], check=True)
    for flag, path, words in (
        ("key", files.other_key, f"does not belong to --tls-cert {files.cert}"),
        ("key", files.garbage, "holds no private key"),
        ("cert", files.garbage, "holds no certificate"),
        ("ca", files.garbage, "holds no certificate"),
        # gRPC closes connections on it.
        ("key", edwards, "is an Edwards curve's.*P-256"),
    ):
        with pytest.raises(ConfigError, match=f"--tls-{flag} {path} {words}"):
            files.checked(**{flag: path})


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
def test_a_certificate_out_of_its_time_is_refused_with_the_dates(
    files: Files, now: datetime, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        files.checked(now)


@pytest.mark.parametrize(
    ("days_left", "said"),
    [(15.0, ""), (13.9, "expires in 13 days, on 2026-03-01 12:30 UTC"), (0.5, "expires in 0 days")],
)
def test_a_certificate_that_expires_soon_is_said(files: Files, days_left: float, said: str) -> None:
    now = END - days_left * DAY
    note = files.checked(now).expires_soon(now)
    assert said in note
    assert bool(note) == bool(said)
    assert TlsFiles(ca=files.ca).expires_soon(now) == ""


def test_an_authority_all_of_whose_certificates_have_expired_is_refused(
    files: Files, tmp_path: Path
) -> None:
    old = tmp_path / "old.pem"
    old.write_text(files.cert.read_text())  # any certificate will do
    now = END + DAY
    with pytest.raises(ConfigError, match=f"--tls-ca {old} has expired"):
        TlsFiles.from_options(None, None, old, now=lambda: now)
    old.write_text(files.cert.read_text() + files.ca.read_text())
    assert TlsFiles.from_options(None, None, old, now=lambda: now) == TlsFiles(ca=old)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:port", "host:65536", "h:-1"])
def test_address_is_host_and_port_and_refused_with_an_example_if_malformed(address: str) -> None:
    assert split_address("head-node.cluster:50051") == ("head-node.cluster", 50051)
    assert split_address("[::1]:0") == ("::1", 0)
    with pytest.raises(ConfigError, match=r"Example: 127\.0\.0\.1:50051"):
        split_address(address)


def test_listening_beyond_this_machine_has_to_be_deliberate() -> None:
    tls = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))
    with pytest.raises(ConfigError, match=r"--tls-cert.*--insecure"):
        require_deliberate_exposure("0.0.0.0:50051", None, insecure=False)
    with pytest.raises(ConfigError, match="there is no TLS"):
        require_deliberate_exposure("[::]:9464", TlsFiles(ca=Path("a.pem")), insecure=False)
    require_deliberate_exposure("0.0.0.0:50051", None, insecure=True)
    require_deliberate_exposure("0.0.0.0:50051", tls, insecure=False)
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost"):
        require_deliberate_exposure(f"{host}:50051", None, insecure=False)
