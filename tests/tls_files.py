"""TLS files of an authority that a test makes up, or as `lipt certs` makes them."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Self

import trustme

from lipt.common.access.tls import TlsFiles
from tests import processes


def write_files(
    folder: Path,
    authority: trustme.CA,
    *,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    issued = authority.issue_cert("127.0.0.1", "localhost", not_before=begin, not_after=end)
    files = TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    authority.cert_pem.write_to_path(str(files.ca))
    issued.private_key_pem.write_to_path(str(files.key))
    issued.cert_chain_pems[0].write_to_path(str(files.cert))
    return files


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made(cls, folder: Path) -> Self:
        """Of "coordinator", which is on this machine, "worker" and "trainer"."""
        certificates = cls(folder)
        certificates.make("init", "--host", "127.0.0.1")
        certificates.make("worker")
        certificates.make("trainer")
        return certificates

    def copied(self, folder: Path) -> Certificates:
        shutil.copytree(self.folder, folder)
        return Certificates(folder)

    def make(self, *arguments: str) -> str:
        command = ["-m", "lipt.cli", "certs", *arguments]
        done = processes.run([*command, "--folder", str(self.folder)])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def files(self, name: str) -> TlsFiles:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        return TlsFiles(cert, key, self.folder / "ca.pem")

    def flags(self, name: str) -> tuple[str, ...]:
        files = self.files(name)
        return (
            *("--tls-cert", str(files.cert)),
            *("--tls-key", str(files.key)),
            *("--tls-ca", str(files.ca)),
        )
