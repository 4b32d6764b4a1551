"""TLS files of an authority that a test makes up."""

from __future__ import annotations

from pathlib import Path

import trustme

from lipt.common.access.tls import TlsFiles


def write_files(folder: Path, authority: trustme.CA) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    files = TlsFiles(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    authority.cert_pem.write_to_path(str(files.ca))
    issued.private_key_pem.write_to_path(str(files.key))
    issued.cert_chain_pems[0].write_to_path(str(files.cert))
    return files
