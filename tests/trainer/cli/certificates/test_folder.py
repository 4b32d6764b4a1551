from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.trainer.cli.certificates.authority import issue_server, make_authority
from lipt.trainer.cli.certificates.folder import Folder
from tests.trainer.cli.certificates.conftest import NOW


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_key_is_its_user_s_alone_as_is_the_folder(folder: Folder) -> None:
    assert mode(folder.path) == 0o700
    assert {mode(path) for path in folder.path.glob("*.key")} == {0o600}
    assert {mode(path) for path in folder.path.glob("*.pem")} == {0o644}


def test_what_was_written_is_read(folder: Folder) -> None:
    authority = folder.authority()
    assert authority.cert_pem() == folder.cert("ca").read_bytes()
    assert authority.key_pem() == folder.key("ca").read_bytes()


@pytest.mark.parametrize("there", ["x.key", "x.pem"])
def test_what_is_there_is_left_unless_told_otherwise(tmp_path: Path, there: str) -> None:
    folder = Folder(tmp_path)
    folder.require_free(["x"], force=False)
    (tmp_path / there).symlink_to("nowhere")  # also of somebody else's making
    with pytest.raises(ConfigError, match=f"{there} is there already.*--force"):
        folder.require_free(["a", "x"], force=False)
    folder.require_free(["x"], force=True)


def test_a_replaced_key_was_never_readable_by_others(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.key("x").touch(mode=0o666)
    folder.write("x", make_authority(now=NOW, days=1))
    assert mode(folder.key("x")) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.key", "x.pem"]


def test_a_folder_without_an_authority_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"lipt certs init --folder {tmp_path}"):
        Folder(tmp_path).authority()


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
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=own",
        "-days",
        "9",
    ]
    make += ["-addext", "keyUsage=critical,keyCertSign"]
    files = ["-keyout", folder.key("ca"), "-out", folder.cert("ca")]
    subprocess.run([*make, *files], check=True, capture_output=True)
    now = datetime.now(UTC)
    folder.write("coordinator", issue_server(folder.authority(), ["head"], now=now, days=1))
    verify = [
        "openssl",
        "verify",
        "-x509_strict",
        "-CAfile",
        folder.cert("ca"),
        folder.cert("coordinator"),
    ]
    subprocess.run(verify, check=True)
